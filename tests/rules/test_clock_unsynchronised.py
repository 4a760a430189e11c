"""What the kernel says of its clock."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.rules.clock_unsynchronised import Settings, examine
from tests.fakes import T0, node_view
from tests.fakes_node import with_host


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ({"clock_synchronised": True}, False),
        ({"clock_synchronised": True, "clock_offset_s": 0.49}, False),
        ({"clock_synchronised": True, "clock_offset_s": -0.5}, True),
        ({"clock_synchronised": False}, True),
        ({"clock_synchronised": False, "uptime_s": 899.0}, False),
        ({"clock_synchronised": False, "uptime_s": None}, False),
        ({"clock_synchronised": None}, False),
    ],
)
def test_each(host: dict[str, Any], told: bool) -> None:
    found = examine(with_host(**host), T0, Settings())
    assert (found is not None) == told
    assert found is None or found.note


def test_a_node_that_does_not_tell() -> None:
    assert examine(node_view(), T0, Settings()) is None
