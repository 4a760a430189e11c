"""The cloud's word."""

from __future__ import annotations

import pytest

from gpuwatch.model.states import Health
from gpuwatch.model.view import CloudSays
from gpuwatch.rules.machine_gone import Settings, examine
from tests.fakes import T0, node_view


@pytest.mark.parametrize(
    ("state", "absent", "health", "cause"),
    [
        ("running", "", None, ""),
        ("starting", "", None, ""),
        ("unknown", "", None, ""),
        ("stopped", "", Health.DEAD, ""),
        ("failed", "", Health.DEAD, ""),
        ("stopped", "stopped", Health.ABSENT, "absent_stopped"),
        ("stopped", "powered_down", Health.ABSENT, "absent_powered_down"),
        ("gone", "scaled_in", Health.ABSENT, "absent_scaled_in"),
        ("gone", "evicted", Health.ABSENT, "absent_evicted"),
        ("gone", "surplus", Health.ABSENT, "absent_surplus"),
        ("gone", "", Health.ABSENT, "absent_unexplained"),
        ("gone", "unexplained", Health.ABSENT, "absent_unexplained"),
        ("releasing", "", Health.ABSENT, "absent_unexplained"),
    ],
)
def test_each_state(state: str, absent: str, health: Health | None, cause: str) -> None:
    says = CloudSays(state=state, received_monotonic_ns=T0.monotonic_ns, absent_because=absent)
    found = examine(node_view(cloud=says), T0, Settings())
    assert (None if found is None else found.argues_for) is health
    if found is not None:
        assert (found.path, found.cause, found.conclusive) == ("cloud", cause, False)


def test_no_word_is_no_finding() -> None:
    assert examine(node_view(), T0, Settings()) is None
