"""The scheduler's word."""

from __future__ import annotations

import pytest

from gpuwatch.model.states import Health
from gpuwatch.model.view import SchedulerSays
from gpuwatch.rules.node_down import Settings, examine
from tests.fakes import T0, node_view


@pytest.mark.parametrize(
    ("state", "fires"),
    [
        ("idle", False),
        ("allocated", False),
        ("draining", False),
        ("drained", False),
        ("unknown", False),
        ("down", True),
    ],
)
def test_only_down_counts_and_never_alone(state: str, fires: bool) -> None:
    says = SchedulerSays(state=state, received_monotonic_ns=T0.monotonic_ns, reason="Not responding")
    found = examine(node_view(scheduler=says), T0, Settings())
    assert (found is not None) is fires
    if found is not None:
        assert (found.argues_for, found.path, found.conclusive) == (Health.DEAD, "scheduler", False)
        assert "Not responding" in found.because


def test_no_word_is_no_finding() -> None:
    assert examine(node_view(), T0, Settings()) is None
