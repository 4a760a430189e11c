"""INTERVALS -> SUMS: what every category, node, run, team, user, pool, incident, cause or day cost in a period.

Sums are exact: units per rate, one multiplication each. Nothing is rounded here. What has no price is counted in
node-hours and stays outside the money.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from gpuwatch.cost.faults import FaultBook
from gpuwatch.cost.intervals import Account
from gpuwatch.cost.loose import LooseMoney, loose_money
from gpuwatch.cost.pricing import TICKS_PER_HOUR, PriceSource, Rate, Rates, bill_basis, units_of
from gpuwatch.errors import UsageError
from gpuwatch.model.ledger import TICK_NS
from gpuwatch.model.money import Basis, Category, Interval

Key = tuple[str, ...]
UNALLOCATED = "(unallocated)"
NO_FAULT = "(no fault)"
NONE = "(none)"
_DAY_NS = 24 * 3600 * 10**9
_SPREAD = frozenset({"run", "team", "user"})  # keys over which shared cost is spread

DIMENSIONS: dict[str, Callable[[Interval, FaultBook], str]] = {
    "category": lambda i, _: i.category.value,
    "node": lambda i, _: i.machine,
    "run": lambda i, _: i.run or UNALLOCATED,
    "team": lambda i, _: i.team or UNALLOCATED,
    "user": lambda i, _: i.user or UNALLOCATED,
    "pool": lambda i, _: i.pool or NONE,
    "incident": lambda i, _: i.fault or NO_FAULT,
    "cause": lambda i, faults: _cause(i, faults),
    "day": lambda i, _: str(i.start_unix_ns // _DAY_NS),  # intervals are cut at UTC midnight for it
}
"""What a report can be split by."""


def _cause(interval: Interval, faults: FaultBook) -> str:
    fault = faults.by_id.get(interval.fault) if interval.fault is not None else None
    if fault is not None and fault.cause:
        return fault.cause
    return interval.cause or NONE


@dataclass(slots=True)
class Cell:
    """One row's sums: units by rate, apart for what is provisional, and money without a place in time."""

    units: defaultdict[tuple[int, bool], int] = field(default_factory=lambda: defaultdict(int))
    loose: Fraction = Fraction(0)
    loose_provisional: Fraction = Fraction(0)
    loose_node_ticks: int = 0

    def usd(self, rates: Sequence[Rate], *, provisional: bool | None = None) -> Fraction:
        """Exact money of what has a price; `provisional` picks one of the two parts."""
        total = Fraction(0)
        for (rate, is_provisional), units in self.units.items():
            if rates[rate].usd_per_hour is not None and provisional in (None, is_provisional):
                total += rates[rate].usd(units)
        if provisional is not True:
            total += self.loose
        if provisional is not False:
            total += self.loose_provisional
        return total

    def node_hours(self, rates: Sequence[Rate], *, priced: bool | None = None) -> Fraction:
        """Machine time in hours; `priced` picks what has, or lacks, a price."""
        total = Fraction(0)
        for (rate, _), units in self.units.items():
            if priced in (None, rates[rate].usd_per_hour is not None):
                total += Fraction(units, rates[rate].capacity * TICKS_PER_HOUR)
        if priced is not False:
            total += Fraction(self.loose_node_ticks, TICKS_PER_HOUR)
        return total

    def gpu_hours(self) -> Fraction:
        """GPU time in hours; a machine without GPUs counts as one."""
        return Fraction(sum(self.units.values()), 1000 * TICKS_PER_HOUR)


@dataclass(slots=True)
class Tally:
    """All cells of one period, and the rates that price them."""

    by: Key
    since: int | None
    until: int | None
    basis: Basis
    cells: dict[Key, Cell]
    rates: list[Rate]
    used: dict[int, int]  # rate -> units, of the whole period
    below: list[LooseMoney]  # lines below the total
    sources: dict[str, set[str]]  # where billed time is known from -> machines

    def total_usd(self) -> Fraction:
        return sum((cell.usd(self.rates) for cell in self.cells.values()), Fraction(0))

    def node_hours(self, *, priced: bool | None = None) -> Fraction:
        return sum((cell.node_hours(self.rates, priced=priced) for cell in self.cells.values()), Fraction(0))


def tally(
    account: Account,
    prices: PriceSource,
    by: Sequence[str] = ("category",),
    *,
    since: int | None = None,
    until: int | None = None,
    basis: Basis | None = None,
) -> Tally:
    """Sum up the part of the account that lies in [since, until); both are cut down to ticks.

    Raises `UsageError` for a key that does not exist.
    """
    for name in by:
        if name not in DIMENSIONS:
            raise UsageError(f"cannot split a cost report by {name!r}", next_step=f"choose of {', '.join(DIMENSIONS)}")
    chosen = bill_basis(account.bills, basis)
    rates = Rates(prices, account.bills, chosen)
    low = since - since % TICK_NS if since is not None else None
    high = until - until % TICK_NS if until is not None else None
    result = Tally(tuple(by), low, high, chosen, {}, rates.known, defaultdict(int), [], defaultdict(set))
    cells: defaultdict[Key, Cell] = defaultdict(Cell)
    functions = [DIMENSIONS[key] for key in by]
    daily = by.index("day") if "day" in by else None
    for interval in account.intervals:
        start = interval.start_unix_ns if low is None else max(interval.start_unix_ns, low)
        end = interval.end_unix_ns if high is None else min(interval.end_unix_ns, high)
        if start >= end:
            continue
        result.sources[interval.terms.source].add(interval.machine)
        key = tuple(function(interval, account.faults) for function in functions)
        for a, b, rate in rates.cut(interval, start, end):
            for day, first, last in _days(a, b) if daily is not None else (("", a, b),):
                units = units_of(interval, first, last)
                at = (*key[:daily], day, *key[daily + 1 :]) if daily is not None else key
                cells[at].units[rate, interval.provisional] += units
                result.used[rate] += units
    _add_loose(result, cells, account, loose_money(account.bills, account.billed.unplaced, chosen, low, high))
    result.cells = dict(cells)
    return result


def folded(sums: Tally, key: str) -> Tally:
    """The same sums split by one of their keys alone."""
    place = sums.by.index(key)
    cells: defaultdict[Key, Cell] = defaultdict(Cell)
    for own, cell in sums.cells.items():
        into = cells[(own[place],)]
        for at, units in cell.units.items():
            into.units[at] += units
        into.loose += cell.loose
        into.loose_provisional += cell.loose_provisional
        into.loose_node_ticks += cell.loose_node_ticks
    return replace(sums, by=(key,), cells=dict(cells))


def _days(start: int, end: int) -> Iterable[tuple[str, int, int]]:
    while start < end:
        day = start // _DAY_NS
        until = min(end, (day + 1) * _DAY_NS)
        yield str(day), start, until
        start = until


def _add_loose(result: Tally, cells: defaultdict[Key, Cell], account: Account, rows: Sequence[LooseMoney]) -> None:
    slots = {interval.machine: interval.pool for interval in account.intervals}
    weights = _weights(result, cells)
    for row in rows:
        if row.category is None:
            result.below.append(row)
            continue
        for share, spread in _shares(row, result.by, weights):
            words = {"category": row.category.value, "node": row.machine or NONE, "incident": NO_FAULT}
            words |= {"pool": slots.get(row.machine) or NONE, "cause": row.kind, "day": NONE, **spread}
            cell = cells[tuple(words.get(key, UNALLOCATED) for key in result.by)]
            if row.open:
                cell.loose_provisional += row.usd * share
            else:
                cell.loose += row.usd * share
            cell.loose_node_ticks += row.node_ticks if share == 1 else 0


def _weights(result: Tally, cells: dict[Key, Cell]) -> dict[Key, int]:
    """Billed GPU time by the keys over which shared cost is spread."""
    places = [index for index, key in enumerate(result.by) if key in _SPREAD]
    weights: defaultdict[Key, int] = defaultdict(int)
    for key, cell in cells.items():
        weights[tuple(key[place] for place in places)] += sum(cell.units.values())
    return dict(weights)


def _shares(row: LooseMoney, by: Key, weights: dict[Key, int]) -> list[tuple[Fraction, dict[str, str]]]:
    names = [key for key in by if key in _SPREAD]
    total = sum(weights.values())
    if row.category is not Category.SHARED or not names or not total:
        return [(Fraction(1), {})]
    return [(Fraction(weight, total), dict(zip(names, key, strict=True))) for key, weight in weights.items() if weight]


def incident_sums(account: Account, prices: PriceSource, *, basis: Basis | None = None) -> dict[str, Fraction]:
    """Each fault's exact lifetime price, all machines and categories together. A fault never adds money twice."""
    sums = tally(account, prices, ("incident",), basis=basis)
    return {key[0]: cell.usd(sums.rates) for key, cell in sums.cells.items() if key[0] != NO_FAULT}
