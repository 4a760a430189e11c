"""Money of a bill that has no place in any machine's time: shared rows, unused commitments, slivers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpuwatch.cost.bills import UnplacedTime
from gpuwatch.cost.pricing import TICKS_PER_HOUR, row_hours
from gpuwatch.model.ledger import snap_ns
from gpuwatch.model.money import Basis, BillRow, Category

BELOW_THE_TOTAL = ("tax", "credit", "purchase", "adjustment")


@dataclass(slots=True, frozen=True)
class LooseMoney:
    """An amount of one bill row within a period. `category` None: a line below the total."""

    category: Category | None
    kind: str
    usd: Fraction
    machine: str
    open: bool
    node_ticks: int = 0  # billed machine time that has no place on the clock


def loose_money(
    bills: Sequence[BillRow],
    unplaced: Sequence[UnplacedTime],
    basis: Basis,
    since: int | None = None,
    until: int | None = None,
) -> list[LooseMoney]:
    """All of it within [since, until), spread evenly over each row's charge period where that is cut."""
    homeless = {time.bill_row: time.ticks for time in unplaced}
    result: list[LooseMoney] = []
    for index, row in enumerate(bills):
        amount = row.amount_usd(basis)
        share = _share(row, since, until)
        if amount is None or not share:
            continue
        usd = Fraction(amount)
        if row.kind in BELOW_THE_TOTAL:
            result.append(LooseMoney(None, row.kind, usd * share, row.machine, row.open))
        elif row.kind == "unused_commitment":
            result.append(LooseMoney(Category.UNUSED_COMMITMENT, row.kind, usd * share, row.machine, row.open))
        elif row.kind == "shared" or not row.machine:
            result.append(LooseMoney(Category.SHARED, "shared", usd * share, row.machine, row.open))
        else:
            ticks = homeless.get(index, 0)
            hours = row_hours(row)
            on_the_clock = Fraction(row.quantity_ticks - ticks, TICKS_PER_HOUR)
            rest = usd - usd * on_the_clock / hours if hours else usd
            if rest or ticks:
                result.append(
                    LooseMoney(Category.BILLING_ROUNDUP, row.kind, rest * share, row.machine, row.open, ticks)
                )
    return result


def _share(row: BillRow, since: int | None, until: int | None) -> Fraction:
    start, end = snap_ns(row.period_start_unix_ns), snap_ns(row.period_end_unix_ns)
    low = start if since is None else max(start, since)
    high = end if until is None else min(end, until)
    if end <= start:  # a charge of one instant
        return Fraction((since is None or since <= start) and (until is None or start < until))
    return Fraction(max(high - low, 0), end - start)
