"""Makes the cost report: sums of a period, rounded once so that everything printed adds up, with its confessions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction

import msgspec

from gpuwatch.cost.confess import findings_of, prices_of, sum_line_of
from gpuwatch.cost.figures import figures_of
from gpuwatch.cost.intervals import Account, account
from gpuwatch.cost.pricing import PriceSource, Rate, bill_basis
from gpuwatch.cost.rounding import as_decimal, largest_remainder, round_half_up, round_nested
from gpuwatch.cost.waste import NO_FAULT, Cell, Key, Tally, folded, tally
from gpuwatch.model.ledger import LedgerLine
from gpuwatch.model.money import Basis, BillRow, Category
from gpuwatch.model.report import CostReport, ReportRow

_ORDER = {category.value: rank for rank, category in enumerate(Category)}
_EPOCH = date(1970, 1, 1)


def make_report(
    known: Account,
    prices: PriceSource,
    *,
    by: Sequence[str] = ("category",),
    since: int | None = None,
    until: int | None = None,
    basis: Basis | None = None,
    made_unix_ns: int,
) -> CostReport:
    """What the period [since, until) cost, split by one or two keys. Raises `UsageError` for keys that do not exist."""
    end = min(until, known.now) if until is not None else known.now
    sums = tally(known, prices, by, since=since, until=until, basis=basis)
    if "category" in by:
        by_category = folded(sums, "category")
    else:
        by_category = tally(known, prices, since=since, until=until, basis=basis)
    if not sums.cells and not sums.below:
        return CostReport(
            by=tuple(by),
            since_unix_ns=since,
            until_unix_ns=end,
            made_unix_ns=made_unix_ns,
            empty_because=_why_empty(known),
        )
    rows = _rows(known, prices, sums, lifetime=tuple(by) == ("incident",))
    total = _total(sums, rows)
    sums_to, sum_line = sum_line_of(known, sums, total.usd)
    return CostReport(
        by=tuple(by),
        since_unix_ns=since,
        until_unix_ns=end,
        made_unix_ns=made_unix_ns,
        basis=sums.basis.value if "bill" in sums.sources else _priced_basis(sums),
        rows=rows,
        total=total,
        sum_line=sum_line,
        sums_to=sums_to,
        categories_usd=_categories(by_category),
        figures=figures_of(known, by_category),
        prices=prices_of(sums),
        below=_below(sums),
        findings=findings_of(known, sums),
    )


def _canonical(key: Key, by: Key) -> tuple[tuple[int, bytes], ...]:
    """Ties of rounding: categories in the order of their table, everything else by its bytes."""
    return tuple(
        (_ORDER[word], b"") if name == "category" else (0, word.encode()) for word, name in zip(key, by, strict=True)
    )


def _rows(known: Account, prices: PriceSource, sums: Tally, *, lifetime: bool) -> tuple[ReportRow, ...]:
    cells = dict(sorted(sums.cells.items(), key=lambda item: _canonical(item[0], sums.by)))
    exact = {key: cell.usd(sums.rates) for key, cell in cells.items()}
    total = round_half_up(sum(exact.values(), Fraction(0)))
    groups: dict[str, list[Key]] = {}
    for key in cells:
        groups.setdefault(key[0], []).append(key)
    printed = round_nested({first: [exact[key] for key in keys] for first, keys in groups.items()}, total=total)
    node_hours = _hours_of([cell.node_hours(sums.rates) for cell in cells.values()])
    gpu_hours = _hours_of([cell.gpu_hours() for cell in cells.values()])
    unpriced = _hours_of([cell.node_hours(sums.rates, priced=False) for cell in cells.values()])
    times = dict(zip(cells, zip(node_hours, gpu_hours, unpriced, strict=True), strict=True))
    whole_life = _lifetimes(known, prices, sums.basis) if lifetime else {}
    rows: list[tuple[tuple[object, ...], ReportRow]] = []
    for first, keys in groups.items():
        group_cents = sum(printed[first])
        for key, cents in zip(keys, printed[first], strict=True):
            row = _row(known, sums, key, cells[key], cents, total, times[key])
            if lifetime:
                fault = key[sums.by.index("incident")]
                row = _with_incident(known, row, fault, whole_life.get(fault))
            order = (*_printed_order(first, sums.by[0], group_cents), *_printed_order(key[-1], sums.by[-1], cents))
            rows.append((order, row))
    rows.sort(key=lambda item: item[0])
    return tuple(row for _, row in rows)


def _printed_order(word: str, name: str, cents: int) -> tuple[object, ...]:
    """Days by date, everything else the dearest first, then by name."""
    if name == "day":
        return 0, word.zfill(9) if word.isdigit() else word
    return -cents, f"{_ORDER[word]:02d}" if name == "category" else word


def _row(
    known: Account, sums: Tally, key: Key, cell: Cell, cents: int, total: int, times: tuple[Decimal, Decimal, Decimal]
) -> ReportRow:
    rates = sums.rates
    open_now = cell.usd(rates, provisional=True)
    provisional = largest_remainder([cell.usd(rates, provisional=False), open_now], total=cents)[1] if open_now else 0
    node_hours, gpu_hours, unpriced = times
    return ReportRow(
        keys=tuple(_word(word, name) for word, name in zip(key, sums.by, strict=True)),
        detail=_detail(known, key, sums.by),
        node_hours=node_hours,
        gpu_hours=gpu_hours,
        usd=as_decimal(cents),
        provisional_usd=as_decimal(provisional),
        unpriced_node_hours=unpriced,
        share_percent=hours(Fraction(100 * cents, total), 1) if total else None,
    )


def _hours_of(values: Sequence[Fraction]) -> list[Decimal]:
    """Hours of all rows: nine places are whole ticks, and what a share of a node leaves over is dealt out."""
    return [_tidy(as_decimal(ticks, 9)) for ticks in largest_remainder(values, 9)]


def _tidy(value: Decimal) -> Decimal:
    return value.normalize() + Decimal(0)


def hours(value: Fraction, places: int = 9) -> Decimal:
    """A time (or a percentage) as a decimal, half up; nine places of an hour are whole ticks."""
    return _tidy(as_decimal(round_half_up(value, places), places))


def _word(word: str, name: str) -> str:
    return (_EPOCH + timedelta(days=int(word))).isoformat() if name == "day" and word.isdigit() else word


def _detail(known: Account, key: Key, by: Key) -> str:
    if "node" not in by:
        return ""
    machine = key[by.index("node")]
    own = known.history.machines.get(machine)
    slots = {line.slot for line in own.life if hasattr(line, "slot")} if own is not None else set()
    return ", ".join(sorted(slots - {machine, ""}))


def _with_incident(known: Account, row: ReportRow, fault: str, lifetime_cents: int | None) -> ReportRow:
    own = known.faults.by_id.get(fault)
    words: list[str] = []
    if own is not None:
        words = [own.machine or "nobody blamed"]
        if not fault.startswith(own.kind):
            words.insert(0, own.kind)
        if own.cause and not own.cause.startswith(own.kind):
            words.append(own.cause)
    lifetime = as_decimal(lifetime_cents) if lifetime_cents is not None and fault != NO_FAULT else None
    return msgspec.structs.replace(row, detail=", ".join(words), lifetime_usd=lifetime)


def _lifetimes(known: Account, prices: PriceSource, basis: Basis) -> dict[str, int]:
    """Each incident over its whole life, in cents."""
    sums = tally(known, prices, ("incident",), basis=basis)
    keys = sorted(sums.cells, key=lambda key: key[0].encode())
    cents = largest_remainder([sums.cells[key].usd(sums.rates) for key in keys])
    return {key[0]: amount for key, amount in zip(keys, cents, strict=True)}


def incident_prices(
    lines: Sequence[LedgerLine], bills: Sequence[BillRow], prices: PriceSource, now_unix_ns: int
) -> dict[str, Decimal]:
    """Each fault's price over its whole life so far, in dollars and cents, as the report by incident prints it.

    Only what has a price counts: a fault on machines without one is there with 0.00. A whole partition each time; the
    caller asks again when the ledger has grown.
    """
    known = account(lines, now_unix_ns, bills=bills)
    found = _lifetimes(known, prices, bill_basis(bills, None))
    return {fault: as_decimal(cents) for fault, cents in found.items() if fault != NO_FAULT}


def _categories(sums: Tally) -> dict[str, Decimal]:
    keys = sorted(sums.cells, key=lambda key: _ORDER[key[0]])
    cents = largest_remainder([sums.cells[key].usd(sums.rates) for key in keys])
    return {key[0]: as_decimal(amount) for key, amount in zip(keys, cents, strict=True)}


def _total(sums: Tally, rows: Sequence[ReportRow]) -> ReportRow:
    gpu = sum((cell.gpu_hours() for cell in sums.cells.values()), Fraction(0))
    return ReportRow(
        keys=("total",),
        node_hours=hours(sums.node_hours()),
        gpu_hours=hours(gpu),
        usd=sum((row.usd for row in rows), Decimal("0.00")),
        provisional_usd=sum((row.provisional_usd for row in rows), Decimal("0.00")),
        unpriced_node_hours=hours(sums.node_hours(priced=False)),
    )


def _below(sums: Tally) -> dict[str, Decimal]:
    amounts: dict[str, Fraction] = {}
    for row in sums.below:
        amounts[row.kind] = amounts.get(row.kind, Fraction(0)) + row.usd
    kinds = sorted(amounts)
    cents = largest_remainder([amounts[kind] for kind in kinds])
    return {kind: as_decimal(amount) for kind, amount in zip(kinds, cents, strict=True)}


def _priced_basis(sums: Tally) -> str:
    """Without a bill: what the price book's rows are."""
    kinds = {rate_kind(rate) for index, rate in enumerate(sums.rates) if sums.used.get(index)}
    return "contracted" if kinds == {"override"} else "list" if "override" not in kinds else "list and own prices"


def rate_kind(rate: Rate) -> str:
    """Kind of the price behind a rate; empty where there is none."""
    return rate.price.kind if rate.price is not None else ""


def _why_empty(known: Account) -> str:
    starts = [interval.start_unix_ns for interval in known.intervals]
    if not starts:
        return (
            "The ledger holds no billed time yet. "
            "Next: start an aggregator and an agent on each node (`gpuwatch demo` shows both), "
            "or name another file with --ledger."
        )
    first, last = min(starts), max(interval.end_unix_ns for interval in known.intervals)
    return (
        f"No machine was billed in this period; the ledger knows {iso(first)} to {iso(last)}. "
        "Next: choose a --since and --until inside it."
    )


def iso(unix_ns: int) -> str:
    """A moment in UTC, to the second."""
    days, rest = divmod(unix_ns // 10**9, 24 * 3600)
    day = _EPOCH + timedelta(days=days)
    return f"{day.isoformat()}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}Z"
