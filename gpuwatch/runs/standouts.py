"""Which ranks of a standing gang differ from the rest: where to look first. Nobody is condemned by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpuwatch.model.run import RankView, RunView

FEW_RATIO = 0.25  # more than a quarter that differ are no stand-out, they are a gang in two minds


def stand_outs(run: RunView) -> tuple[str, ...]:
    """Machines of the ranks that stand out, sorted; empty where nobody does.

    In this order: a process that is gone, a rank that is behind in steps, a rank in another phase than the most.
    """
    ranks = [rank for rank in run.ranks if rank.phase != "done"]
    for differing in (
        [rank for rank in ranks if rank.alive is False],
        _behind(ranks),
        _elsewhere(ranks),
    ):
        if differing and len(differing) <= max(1, int(FEW_RATIO * len(ranks))):
            return tuple(sorted({rank.machine for rank in differing}))
    return ()


def _behind(ranks: Sequence[RankView]) -> list[RankView]:
    steps = [-1 if rank.step is None else rank.step for rank in ranks]
    furthest = max(steps, default=-1)
    return [rank for rank, step in zip(ranks, steps, strict=True) if step < furthest]


def _elsewhere(ranks: Sequence[RankView]) -> list[RankView]:
    phases = Counter(rank.phase for rank in ranks)
    if len(phases) < 2:
        return []
    usual = max(sorted(phases), key=lambda phase: phases[phase])
    return [rank for rank in ranks if rank.phase != usual]
