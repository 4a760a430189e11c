"""Whole units dealt out in proportion, by largest remainder: shares of a GPU, and ticks."""

from __future__ import annotations

from collections.abc import Sequence


def scaled(shares: Sequence[int], capacity: int) -> list[int]:
    """Shares as they are if they fit, else scaled to `capacity` (largest remainder, ties to the first)."""
    total = sum(shares)
    if total <= capacity:
        return list(shares)
    return apportioned(shares, capacity)


def apportioned(weights: Sequence[int], units: int) -> list[int]:
    """`units` dealt out by weight, whole, adding up exactly; ties to the first. All weights 0: nothing to anyone."""
    total = sum(weights)
    if total == 0:
        return [0 for _ in weights]
    dealt = [weight * units // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(weights[i] * units % total), i))
    for index in by_remainder[: units - sum(dealt)]:
        dealt[index] += 1
    return dealt
