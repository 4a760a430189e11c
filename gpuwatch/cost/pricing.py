"""Intervals -> exact money. Units (ticks x thousandths of a GPU) are summed per rate; each sum is multiplied once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from gpuwatch.model.ledger import TICK_NS
from gpuwatch.model.money import Basis, BillRow, Interval, Price, Terms

TICKS_PER_HOUR = 10**9


class PriceSource(Protocol):
    """The price book, as the cost room sees it."""

    def steps(self, terms: Terms, pool: str) -> Sequence[tuple[int, Price]]:
        """(valid from unix ns, price), sorted, the first from before all time; empty: no price is known."""


@dataclass(slots=True, frozen=True)
class Rate:
    """What one whole machine costs an hour. `usd_per_hour` None: unknown, never 0."""

    usd_per_hour: Fraction | None
    capacity: int  # the machine's thousandths of a GPU
    price: Price | None = None  # from the book
    bill_row: int | None = None  # from the bill
    label: str = ""  # what has this price, or lacks one

    def usd(self, units: int) -> Fraction:
        """Exact money of so many units; only for a known rate."""
        assert self.usd_per_hour is not None
        return Fraction(units, self.capacity * TICKS_PER_HOUR) * self.usd_per_hour


def usd_of_ticks(ticks: int, gpu_thousandths: int, gpus: int, usd_per_hour: Fraction) -> Fraction:
    """units x price / (1000 g x 10^9): exact."""
    return Rate(usd_per_hour, 1000 * gpus).usd(ticks * gpu_thousandths)


def row_hours(row: BillRow) -> Fraction:
    """The row's quantity: as printed where it is finer than a tick, else its ticks."""
    if row.quantity_hours is not None:
        return Fraction(row.quantity_hours)
    return Fraction(row.quantity_ticks, TICKS_PER_HOUR)


def bill_basis(bills: Sequence[BillRow], wanted: Basis | None) -> Basis:
    """The basis to report: what was asked for, else `effective` where the whole bill states it, else `billed`."""
    if wanted is not None:
        return wanted
    charged = [row for row in bills if row.kind in ("usage", "shared", "unused_commitment")]
    stated = bool(charged) and all(row.effective_usd is not None for row in charged)
    return Basis.EFFECTIVE if stated else Basis.BILLED


@dataclass(slots=True)
class Rates:
    """Finds the rate of each interval, and cuts it where its price steps."""

    prices: PriceSource
    bills: Sequence[BillRow] = ()
    basis: Basis = Basis.BILLED
    known: list[Rate] = field(default_factory=list)
    _by_terms: dict[tuple[Terms, str, int], tuple[list[int], list[int]]] = field(default_factory=dict)

    def cut(self, interval: Interval, start: int, end: int) -> Iterable[tuple[int, int, int]]:
        """(start, end, index into `known`) of the part of an interval that lies in [start, end)."""
        key = (interval.terms, interval.pool, interval.machine_gpu_thousandths)
        found = self._by_terms.get(key)
        if found is None:
            found = self._by_terms[key] = self._rates(*key)
        since, rates = found
        if len(since) == 1:
            yield start, end, rates[0]
            return
        index = max(bisect_right(since, start) - 1, 0)
        while start < end:
            until = min(end, since[index + 1]) if index + 1 < len(since) else end
            yield start, until, rates[index]
            start, index = until, index + 1

    def _rates(self, terms: Terms, pool: str, capacity: int) -> tuple[list[int], list[int]]:
        label = terms.sku or pool or "unnamed machines"
        if terms.bill_row is not None:
            row = self.bills[terms.bill_row]
            amount, hours = row.amount_usd(self.basis), row_hours(row)
            usd = Fraction(amount) / hours if amount is not None and hours else None
            return [0], [self._add(Rate(usd, capacity, None, terms.bill_row, label))]
        steps = self.prices.steps(terms, pool)
        if not steps:
            return [0], [self._add(Rate(None, capacity, None, None, _unpriced(terms, pool)))]
        rates = [self._add(Rate(Fraction(price.usd_per_hour), capacity, price, None, label)) for _, price in steps]
        return [since for since, _ in steps], rates

    def _add(self, rate: Rate) -> int:
        self.known.append(rate)
        return len(self.known) - 1


def _unpriced(terms: Terms, pool: str) -> str:
    what = " ".join(word for word in (terms.provider, terms.region, terms.sku, terms.price_kind) if word)
    return f"{what} (pool {pool})" if pool else what


def units_of(interval: Interval, start: int, end: int) -> int:
    """Ticks x thousandths of a GPU between two tick boundaries."""
    return (end - start) // TICK_NS * interval.gpu_thousandths
