"""Restarts: under and at the threshold."""

from __future__ import annotations

import pytest

from gpuwatch.rules.service_restarts import Settings, examine
from tests.fakes import T0, node_view
from tests.fakes_node import service_unit, with_services


@pytest.mark.parametrize(("count", "told"), [(0, 0), (2, 0), (3, 1), (269, 1)])
def test_each_number(count: int, told: int) -> None:
    found = list(examine(with_services(service_unit(recent_restart_count=count)), T0, Settings()))
    assert len(found) == told
    assert all(one.note for one in found)


def test_a_node_whose_services_are_not_watched() -> None:
    assert list(examine(node_view(), T0, Settings())) == []
