"""Whether a gang, or its ranks on one machine, still finish steps: by their heartbeats, not by the scheduler."""

from __future__ import annotations

from gpuwatch.aggregator.reach import Hands
from gpuwatch.model.run import RunView

STILL_S = 30.0  # no step of the gang for so long, where its usual step is not known: it does not move
STILL_STEPS = 3.0
STILL_REPORTS = 2.5  # steps shorter than a report's interval are only seen when one comes


def moves(hands: Hands) -> bool:
    """Whether the gang on this node still finishes steps."""
    run = hands.scene.run_of(hands.saga.action.machine)
    return run is not None and hands.now.age_s(run.moved_monotonic_ns) <= _patience_s(hands, run)


def still_steps(hands: Hands) -> str:
    """A second word on whether the node is empty: its own ranks, as far as they finish steps. Empty: none does."""
    machine = hands.saga.action.machine
    run = hands.scene.run_of(machine)
    own = [] if run is None else [rank for rank in run.ranks if rank.machine == machine]
    if run is None or not own:
        return ""
    age_s = min(hands.now.age_s(rank.moved_monotonic_ns) for rank in own)
    return f"run {run.run} made progress on it {age_s:.0f} s ago" if age_s <= _patience_s(hands, run) else ""


def _patience_s(hands: Hands, run: RunView) -> float:
    if run.usual_step_s is None:
        return STILL_S
    heard = [hands.scene.views[machine].interval_s for machine in run.machines if machine in hands.scene.views]
    return max(STILL_STEPS * run.usual_step_s, STILL_REPORTS * max(heard, default=0.0))
