"""Silence argues for SUSPECT, never for more."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.states import Health
from gpuwatch.model.wire import Goodbye
from gpuwatch.rules.agent_silent import Settings, examine
from tests.fakes import T0, later, node_view


@pytest.mark.parametrize(
    ("silent_s", "changes", "fires"),
    [
        pytest.param(0.0, {}, False, id="just-reported"),
        pytest.param(7.5, {}, False, id="exactly-one-and-a-half-intervals"),
        pytest.param(7.6, {}, True, id="overdue"),
        pytest.param(59.0, {"interval_s": 60.0}, False, id="a-slower-agent-is-due-later"),
        pytest.param(91.0, {"interval_s": 60.0}, True, id="a-slower-agent-is-overdue"),
    ],
)
def test_a_report_is_overdue_after_one_and_a_half_intervals(
    silent_s: float, changes: dict[str, Any], fires: bool
) -> None:
    found = examine(node_view(silent_s=silent_s, **changes), T0, Settings())
    assert (found is not None) is fires
    if found is not None:
        assert found.argues_for is Health.SUSPECT
        assert not found.conclusive


def test_who_was_never_heard_cannot_fall_silent() -> None:
    assert examine(node_view(last_report_monotonic_ns=None), T0, Settings()) is None


def test_who_said_goodbye_is_not_silent_but_who_came_back_and_fell_silent_is() -> None:
    heard_ns = later(T0, -600).monotonic_ns
    gone = node_view(silent_s=600, goodbye=Goodbye("stop"), goodbye_monotonic_ns=heard_ns)
    back = node_view(silent_s=300, goodbye=Goodbye("stop"), goodbye_monotonic_ns=heard_ns)
    assert examine(gone, T0, Settings()) is None
    assert examine(back, T0, Settings()) is not None


def test_the_wall_clock_is_not_asked() -> None:
    stepped = T0.__class__(T0.unix_ns + 3600 * 10**9, T0.monotonic_ns)
    assert examine(node_view(silent_s=1.0), stepped, Settings()) is None
