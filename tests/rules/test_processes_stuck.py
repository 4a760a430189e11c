"""Processes that cannot be woken, by how long."""

from __future__ import annotations

import pytest

from gpuwatch.model.facts.host import StuckProcess
from gpuwatch.rules.processes_stuck import Settings, examine
from tests.fakes import T0, node_view
from tests.fakes_node import with_host


@pytest.mark.parametrize(("stuck_s", "told"), [(0.0, False), (299.0, False), (300.0, True), (9_000.0, True)])
def test_each_length(stuck_s: float, told: bool) -> None:
    found = examine(with_host(stuck_processes=(StuckProcess(7, "python", stuck_s, "nvos_wait"),)), T0, Settings())
    assert (found is not None) == told
    assert found is None or found.note
    assert found is None or "python (7) in nvos_wait" in found.because


def test_a_node_without_any() -> None:
    assert examine(with_host(), T0, Settings()) is None
    assert examine(node_view(), T0, Settings()) is None
