"""A training run makes no progress: its ranks are read freshly, and none of them has moved.

About the run, not about the node: a healthy node stays. Silence of the reporting path is no hang; that needs fresh
reports without progress, which is why a rank's own node must have read the same record for at least half the limit.

Limit of a step: `step_factor` times the run's learned step, at least `min_s`; before it is learned `unlearned_s`.
Source of 660 s: PyTorch's NCCL watchdog gives up after 600 s by default (pytorch/pytorch#110947); that first, then one
60 s report. A pause with a name is no hang: in `init`, `checkpoint` or `evaluate` the limit is `phase_factor` times the
run's usual length of that phase, before it is known 30, 10 or 60 min; the longest of the phases that ranks are in.
A rank whose process is gone while others still wait is a hang after `dead_rank_s`: it will not come back.
A gang whose other ranks go on (elastic, replicated) is not stalled. Asked once a run, through its first machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuwatch.model.evidence import Evidence, Finding, Subject, Unknown
from gpuwatch.model.moment import Moment
from gpuwatch.model.run import RankView, RunView
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be set, with its usual value."""

    step_factor: float = 5.0
    min_s: float = 120.0
    unlearned_s: float = 660.0
    phase_factor: float = 2.0
    init_s: float = 1800.0  # usual lengths before the first of the run; the same three as in docs/money.md
    checkpoint_s: float = 600.0
    evaluate_s: float = 3600.0
    dead_rank_s: float = 60.0
    fresh_s: float = 30.0  # an older record of a rank says nothing about now


def examine(view: NodeView, now: Moment, settings: Settings) -> Finding | None:
    """By monotonic ages; the node's own clock only for how long it has read the same record."""
    run = view.run
    if run is None or not run.machines or run.machines[0] != view.machine:
        return None
    age_s = now.age_s(run.moved_monotonic_ns)
    if age_s <= min(settings.min_s, settings.dead_rank_s):
        return None
    subject = Subject("run", run.run)
    fresh = [rank for rank in run.ranks if now.age_s(rank.received_monotonic_ns) <= settings.fresh_s]
    if not fresh:
        why = f"no rank of {run.run} has been read for {settings.fresh_s:.0f} s"
        return Unknown(rule="training_stalled", subject=subject, because=why)
    waiting = [rank for rank in fresh if rank.phase != "done"]
    gone = [rank for rank in waiting if rank.alive is False]
    if not waiting or len(gone) == len(waiting):
        return None  # it is over, or ending: the attempt's end is told by others
    limit_s, words = _limit(run, waiting, settings)
    if gone and settings.dead_rank_s < limit_s:
        limit_s, words = settings.dead_rank_s, f"the process of rank {gone[0].rank} is gone"
    if age_s <= limit_s or min(rank.still_s for rank in waiting) < limit_s / 2:
        return None
    where = "before its first step" if run.step is None else f"after step {run.step}"
    return Evidence(
        rule="training_stalled",
        subject=subject,
        argues_for=Health.SUSPECT,
        because=f"no rank of {run.run} has moved for {age_s:.0f} s {where} (limit {limit_s:.0f} s: {words})",
        conclusive=True,
        onset_unix_ns=_onset_unix_ns(run, waiting, now),
        action="restart_job",
        kind="run_stalled",
        cause="run_stalled",
    )


def _limit(run: RunView, waiting: Sequence[RankView], settings: Settings) -> tuple[float, str]:
    if run.usual_step_s is None:
        limit_s, words = max(settings.min_s, settings.unlearned_s), "its usual step is not known yet"
    else:
        limit_s = max(settings.min_s, settings.step_factor * run.usual_step_s)
        words = f"its usual step is {run.usual_step_s:.3g} s"
    before_known = {"init": settings.init_s, "checkpoint": settings.checkpoint_s, "evaluate": settings.evaluate_s}
    for phase in sorted({rank.phase for rank in waiting} & before_known.keys()):
        learned = run.usual_phase_s if run.phase == phase else None
        usual_s = before_known[phase] if learned is None else learned
        phase_limit_s = max(settings.min_s, settings.phase_factor * usual_s)
        if phase_limit_s > limit_s or len({rank.phase for rank in waiting}) == 1:
            limit_s, words = phase_limit_s, f"its usual {phase} is {usual_s:.3g} s"
    return limit_s, words


def _onset_unix_ns(run: RunView, waiting: Sequence[RankView], now: Moment) -> int:
    """The last proof of progress plus one usual step, by the training processes' own stamps."""
    stamps = [max(rank.step_end_unix_ns or 0, rank.phase_start_unix_ns or 0) for rank in waiting]
    moved_ns = max(stamps, default=0) or now.unix_ns - (now.monotonic_ns - run.moved_monotonic_ns)
    return min(now.unix_ns, moved_ns + int((run.usual_step_s or 0.0) * 1e9))


RULE = Rule(
    settings=Settings,
    examine=examine,
    on="tick",
    matters="every GPU of the run is paid for and none makes progress",
    source="pytorch/pytorch#110947 (NCCL watchdog of 600 s)",
)
