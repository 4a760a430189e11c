"""What is usual for a run: lower medians of its latest hundred (FinOps reference §3.3)."""

from __future__ import annotations

from collections.abc import Sequence

WINDOW = 100
WARM_UP = 10  # first executions of an attempt: compilation, caches
ENOUGH = 3
SLOW = 1.05  # longer than this times the usual teaches nothing, once a hundred are known


def lower_median(values: Sequence[int]) -> int:
    """The middle one, of an even number the lower of the two."""
    return sorted(values)[(len(values) - 1) // 2]


def usual_ns(values: Sequence[int]) -> int | None:
    """None before there are enough to speak of a usual length."""
    return lower_median(values) if len(values) >= ENOUGH else None


def appended(values: tuple[int, ...], value: int, count: int = 1) -> tuple[int, ...]:
    """The latest hundred."""
    return (*values, *(value for _ in range(min(count, WINDOW))))[-WINDOW:]


def executed(values: tuple[int, ...], each_ns: int, count: int, before: int) -> tuple[int, ...]:
    """`count` steps of equal length ended, `before` others of the attempt earlier. Slow and first ones are left out."""
    if len(values) >= WINDOW and each_ns > SLOW * lower_median(values):
        return values
    taught = count - max(0, min(count, WARM_UP - before))
    return appended(values, each_ns, taught) if taught > 0 else values
