"""Now, or at the next checkpoint? Both numbers, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpuwatch.decide.drain_timing import weigh
from gpuwatch.model.policy import Policy
from gpuwatch.model.run import RunView
from tests.fakes import T0, rank_view, run_view


def gang(**changes: Any) -> RunView:
    """Ten nodes, steps of 36 s, a save each 100 steps = 1 h; 50 steps since the last one."""
    ranks = [rank_view(n, f"m-{n}", step=150) for n in range(10)]
    usual: dict[str, Any] = {"usual_step_s": 36.0, "checkpoint_step": 100, "checkpoint_every_steps": 100}
    return run_view(*ranks, **(usual | changes))


def test_both_losses_in_node_hours_of_the_gang() -> None:
    timing = weigh(gang(), Policy(restart_cost_s=360, sick_hazard_per_hour=1.0), T0)
    assert timing is not None
    assert timing.wait_s == 1800
    assert timing.now_node_hours == pytest.approx(10 * (0.5 + 0.1))
    fails = 1 - math.exp(-0.5)
    assert timing.wait_node_hours == pytest.approx(10 * (fails * (0.5 + 0.25) + 0.1))
    assert timing.wait()
    assert "6.0 node-hours" in timing.because
    assert "a guess" in timing.because


@pytest.mark.parametrize(
    ("hazard", "wait"),
    [
        pytest.param(0.0, True, id="a-node-that-never-fails-may-wait"),
        pytest.param(2.0, True, id="still-cheaper"),
        pytest.param(3.0, False, id="fails-too-soon"),
        pytest.param(100.0, False, id="fails-at-once"),
    ],
)
def test_the_more_likely_it_fails_the_sooner(hazard: float, wait: bool) -> None:
    timing = weigh(gang(), Policy(sick_hazard_per_hour=hazard), T0)
    assert timing is not None
    assert timing.wait() is wait


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"usual_step_s": None}, id="step-not-learned"),
        pytest.param({"checkpoint_every_steps": None}, id="rhythm-not-learned"),
        pytest.param({"checkpoint_step": None}, id="never-saved"),
        pytest.param({"step": None}, id="no-step-yet"),
        pytest.param({"moved_monotonic_ns": T0.monotonic_ns - 109 * 10**9}, id="it-does-not-step-any-more"),
    ],
)
def test_nothing_to_weigh(changes: dict[str, Any]) -> None:
    assert weigh(gang(**changes), Policy(), T0) is None


def test_right_after_a_save_there_is_nothing_to_lose_by_going_now() -> None:
    timing = weigh(gang(checkpoint_step=150), Policy(), T0)
    assert timing is not None
    assert not timing.wait()
