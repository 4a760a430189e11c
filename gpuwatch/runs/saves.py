"""Checkpoints: durable when the last shard is, and a restart would go on from there. Who writes shards is learned."""

from __future__ import annotations

from gpuwatch.model.ledger import CheckpointSaved, LedgerLine, snap_ns
from gpuwatch.model.moment import Moment
from gpuwatch.runs.book import Attempt, Rank, Run

SETTLED_NS = 30 * 10**9
"""No further rank has saved a shard, or entered a phase, for so long: nobody else will."""


def follow_saves(
    run: Run, attempt: Attempt, ranks: list[Rank], ahead: dict[str, int], now: Moment, lines: list[LedgerLine]
) -> None:
    """A checkpoint is durable when its last shard is. Who writes shards is learned from the first one."""
    for rank in ranks:
        step, stamp_ns = rank.beat.checkpoint_step, rank.beat.checkpoint_unix_ns
        if step is None or stamp_ns is None or (attempt.saved_step is not None and step <= attempt.saved_step):
            continue
        shards = attempt.saving.setdefault(step, {})
        if rank.view.rank not in shards:
            shards[rank.view.rank] = stamp_ns - ahead.get(rank.view.machine, 0)
            attempt.saving_monotonic_ns = now.monotonic_ns
    settled = now.monotonic_ns - attempt.saving_monotonic_ns >= SETTLED_NS
    everybody = {rank.view.rank for rank in ranks}
    for step in sorted(attempt.saving):
        shards = attempt.saving[step]
        beyond = {r.view.rank for r in ranks if (r.beat.checkpoint_step or -1) >= step} | shards.keys()
        savers = run.savers or (frozenset(everybody) if everybody <= beyond else frozenset())
        if not savers and settled:
            savers = frozenset(shards)
        if savers and savers <= beyond:
            saved(run, attempt, step, savers, lines)


def saved(run: Run, attempt: Attempt, step: int, savers: frozenset[int], lines: list[LedgerLine]) -> None:
    """Write it down: a restart would go on from here."""
    at_ns = snap_ns(max(attempt.saving[step].values()))
    lines.append(CheckpointSaved(at_unix_ns=at_ns, run=attempt.run, attempt=attempt.attempt, step=step))
    if attempt.saved_step is not None and step > attempt.saved_step:
        run.save_steps = (*run.save_steps, step - attempt.saved_step)[-10:]
    run.savers = savers
    attempt.saved_step, attempt.saved_unix_ns = step, at_ns
    attempt.saving = {other: shards for other, shards in attempt.saving.items() if other > step}
