"""A bill of materials: lines of quantity x time x unit price, exact, rounded line by line so that they add up."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

import msgspec

from gpuwatch.cost.rounding import as_decimal, largest_remainder

HOURS_A_MONTH = 730  # of a forecast only: a calendar month has 672 to 744


class BomLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line: `quantity` units for `hours` (1 for what is not sold by the hour) at `unit_usd`."""

    what: str
    quantity: Decimal
    unit_usd: Decimal
    hours: Decimal = Decimal(1)

    def exact_usd(self) -> Fraction:
        return Fraction(self.quantity) * Fraction(self.hours) * Fraction(self.unit_usd)


def priced(lines: Sequence[BomLine]) -> tuple[list[Decimal], Decimal]:
    """Each line's amount in cents, and their sum: the lines add up to it as printed."""
    cents = largest_remainder([line.exact_usd() for line in lines])
    return [as_decimal(amount) for amount in cents], as_decimal(sum(cents))
