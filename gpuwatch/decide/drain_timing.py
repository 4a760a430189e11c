"""When to drain a node that is sick but still stepping is a money question: now, or at the next checkpoint?

Draining now loses the gang's work since its last checkpoint and its way back. Waiting loses only the way back if the
node lives until the next save, and more than now if it fails before: the work up to then. Both in node-hours of the
whole gang, which is what the price multiplies. How soon a sick node fails is a guess and is called one (policy
`sick_hazard_per_hour`). Never asked for faults that make results suspect: those stop at once.
"""

from __future__ import annotations

import math

import msgspec

from gpuwatch.model.moment import Moment
from gpuwatch.model.policy import Policy
from gpuwatch.model.run import RunView

STILL_STEPPING_STEPS = 3.0


class Timing(msgspec.Struct, frozen=True):
    """Expected loss of both choices, in node-hours of the gang."""

    now_node_hours: float
    wait_node_hours: float
    wait_s: float  # until the next checkpoint
    because: str

    def wait(self) -> bool:
        """Whether waiting is cheaper."""
        return self.wait_node_hours < self.now_node_hours


def weigh(run: RunView, policy: Policy, now: Moment) -> Timing | None:
    """The two losses. None: the run does not step, or its rhythm of steps and saves is not known: nothing to weigh."""
    step_s, every = run.usual_step_s, run.checkpoint_every_steps
    if not step_s or not every or run.step is None or run.checkpoint_step is None:
        return None
    if now.age_s(run.moved_monotonic_ns) > max(STILL_STEPPING_STEPS * step_s, run.usual_phase_s or 0.0):
        return None
    done_steps = max(0, run.step - run.checkpoint_step)
    at_stake_s = done_steps * step_s
    wait_s = max(0, every - done_steps) * step_s
    nodes = len(run.machines)
    back_s = policy.restart_cost_s
    fails = 1.0 - math.exp(-policy.sick_hazard_per_hour * wait_s / 3600.0)
    loss_now = nodes * (at_stake_s + back_s) / 3600.0
    loss_wait = nodes * (fails * (at_stake_s + wait_s / 2) + back_s) / 3600.0
    because = (
        f"draining now is expected to lose {loss_now:.1f} node-hours of the gang, waiting {wait_s / 60:.0f} min for "
        f"the next checkpoint {loss_wait:.1f} (a guess: {policy.sick_hazard_per_hour:g} failures an hour)"
    )
    return Timing(loss_now, loss_wait, wait_s, because)
