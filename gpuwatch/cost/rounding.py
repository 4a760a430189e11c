"""From exact amounts to printed ones: rounded once, parts that add up to their total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar

K = TypeVar("K")

USD_MINOR_UNITS = 2  # ISO 4217: cents


def round_half_up(amount: Fraction, minor_units: int = USD_MINOR_UNITS) -> int:
    """To the nearest minor unit, ties away from zero; in minor units."""
    scaled = abs(amount) * 10**minor_units
    nearest: int = (2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator)
    return nearest if amount >= 0 else -nearest


def largest_remainder(
    parts: Sequence[Fraction], minor_units: int = USD_MINOR_UNITS, total: int | None = None
) -> list[int]:
    """Whole minor units that add up to `total` (by default the rounded sum of the parts).

    Each part is floored toward minus infinity; the missing units go one each to the largest remainders, ties in the
    order given.
    """
    scaled = [part * 10**minor_units for part in parts]
    floors = [part.numerator // part.denominator for part in scaled]
    if total is None:
        total = round_half_up(sum(parts, Fraction(0)), minor_units)
    missing = total - sum(floors)
    if not parts:
        return []
    order = sorted(range(len(parts)), key=lambda i: (floors[i] - scaled[i], i))
    rounds, extra = divmod(missing, len(parts))  # `rounds` is 0 unless a total from elsewhere is far from the sum
    for rank, index in enumerate(order):
        floors[index] += rounds + (rank < extra)
    return floors


def round_nested(
    groups: Mapping[K, Sequence[Fraction]], minor_units: int = USD_MINOR_UNITS, total: int | None = None
) -> dict[K, list[int]]:
    """Two keys: the first is rounded, then each of its values is split inside. Margins are sums of printed cells."""
    outer = largest_remainder([sum(parts, Fraction(0)) for parts in groups.values()], minor_units, total)
    return {
        key: largest_remainder(parts, minor_units, whole)
        for (key, parts), whole in zip(groups.items(), outer, strict=True)
    }


def as_decimal(minor: int, minor_units: int = USD_MINOR_UNITS) -> Decimal:
    """Minor units as an amount with all its places: 5 -> 0.05."""
    return Decimal(minor).scaleb(-minor_units)
