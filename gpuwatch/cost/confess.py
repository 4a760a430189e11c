"""What a report must say about itself: what its sum is, which prices it used, what it does not know."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from fractions import Fraction

import msgspec

from gpuwatch.cost.intervals import Account
from gpuwatch.cost.loose import BELOW_THE_TOTAL
from gpuwatch.cost.pricing import TICKS_PER_HOUR, Rate
from gpuwatch.cost.rounding import as_decimal, largest_remainder, round_half_up
from gpuwatch.cost.waste import Tally
from gpuwatch.model.ledger import TICK_NS, snap_ns
from gpuwatch.model.report import PriceUsed

_FINDINGS = {
    "orphan": "billed, but in no inventory of ours",
    "billed_while_absent": "billed although the provider no longer lists the machine",
    "billed_after_release": "billed after the machine was retired",
    "no_life_record": "billed outside the time in which the machine was seen",
    "no_step_evidence": "in a run of which no step was reported",
    "no_evidence": "of a state that nobody reported",
}


def dollars(amount: Decimal) -> str:
    """$3,388.29, and -$1.00."""
    return f"-${-amount:,.2f}" if amount < 0 else f"${amount:,.2f}"


def sum_line_of(account: Account, sums: Tally, total: Decimal) -> tuple[str, str]:
    """(bill | part_bill | mixed | estimate, the sentence). "The bill" is claimed only where the bill is the source."""
    estimated = sums.sources.get("provider", set()) | sums.sources.get("seen", set())
    billed = "bill" in sums.sources or any(cell.loose or cell.loose_provisional for cell in sums.cells.values())
    amount = dollars(total)
    if not billed:
        return "estimate", f"The categories sum to the priced time, {amount}: an estimate. {_estimated(sums)}"
    if estimated:
        bill, rest = largest_remainder(_by_source(sums), total=int(total.scaleb(2)))
        return "mixed", (
            f"The categories sum to {amount}: {dollars(as_decimal(bill))} by the bill and "
            f"{dollars(as_decimal(rest))} of priced time, an estimate. {_estimated(sums)}"
        )
    cut, stated = _bill_total(account, sums)
    if cut:
        return "part_bill", f"The categories sum to {amount}, the part of the bill that falls into this period."
    missing = sums.total_usd() - stated
    if missing:
        bill_says = dollars(as_decimal(round_half_up(stated)))
        return "mismatch", (
            f"The categories sum to {amount}, the bill to {bill_says}: they DIFFER by {float(missing):.12f}. "
            "This is a fault of gpuwatch; please report it."
        )
    return "bill", f"The categories sum to the bill, {amount} ({sums.basis.value} cost)."


def _by_source(sums: Tally) -> list[Fraction]:
    """Exact money by the bill, and estimated."""
    estimate = Fraction(0)
    for index, units in sums.used.items():
        rate = sums.rates[index]
        if rate.bill_row is None and rate.usd_per_hour is not None:
            estimate += rate.usd(units)
    return [sums.total_usd() - estimate, estimate]


def _bill_total(account: Account, sums: Tally) -> tuple[bool, Fraction]:
    """Whether the period cuts a row of the bill, and what the rows that touch it say together."""
    cut, stated = False, Fraction(0)
    for row in account.bills:
        start, end = snap_ns(row.period_start_unix_ns), snap_ns(row.period_end_unix_ns)
        low = start if sums.since is None else max(start, sums.since)
        high = end if sums.until is None else min(end, sums.until)
        if high < low or (high == low and start < end):
            continue
        amount = row.amount_usd(sums.basis)
        if row.kind not in BELOW_THE_TOTAL and amount is not None:
            stated += Fraction(amount)
            cut = cut or (low, high) != (start, end)
    return cut, stated


def _estimated(sums: Tally) -> str:
    words = []
    provider, seen = len(sums.sources.get("provider", ())), len(sums.sources.get("seen", ()))
    if provider:
        words.append(f"of {provider} machine{'s' * (provider > 1)} from the provider's start and stop records")
    if seen:
        words.append(f"of {seen} machine{'s' * (seen > 1)} from first to last seen")
    return f"No bill covers it; billed time is known {' and '.join(words)}."


def prices_of(sums: Tally) -> tuple[PriceUsed, ...]:
    """Every price that was multiplied by, with its date and source; what had none; a bill's rates as their average."""
    rows: dict[tuple[object, ...], PriceUsed] = {}
    hours: defaultdict[tuple[object, ...], Fraction] = defaultdict(Fraction)
    usd: defaultdict[tuple[object, ...], Fraction] = defaultdict(Fraction)
    for index, units in sorted(sums.used.items()):
        rate = sums.rates[index]
        row = _price_row(rate)
        usd_per_hour = None if row.kind == "bill" else row.usd_per_hour
        key: tuple[object, ...] = (row.what, row.kind, row.as_of, usd_per_hour, row.older_than_book)
        rows.setdefault(key, row)
        hours[key] += Fraction(units, rate.capacity * TICKS_PER_HOUR)
        if rate.usd_per_hour is not None:
            usd[key] += rate.usd(units)
    result = []
    for own in sorted(rows, key=lambda key: (rows[key].usd_per_hour is None, -hours[key], str(key))):
        row = msgspec.structs.replace(rows[own], node_hours=as_decimal(round_half_up(hours[own], 9), 9))
        if row.kind == "bill" and hours[own]:
            row = msgspec.structs.replace(row, usd_per_hour=as_decimal(round_half_up(usd[own] / hours[own], 6), 6))
        result.append(row)
    return tuple(result)


def _price_row(rate: Rate) -> PriceUsed:
    price = rate.price
    if price is not None:
        return PriceUsed(
            what=rate.label,
            usd_per_hour=price.usd_per_hour,
            kind=price.kind,
            as_of=price.as_of,
            source=price.source,
            older_than_book=price.older_than_book,
        )
    if rate.usd_per_hour is not None:
        return PriceUsed(what=rate.label, usd_per_hour=Decimal(0), kind="bill", source="the imported bill, on average")
    return PriceUsed(what=rate.label, usd_per_hour=None)


def findings_of(account: Account, sums: Tally) -> tuple[str, ...]:
    """What a person should know before trusting, or paying, this."""
    causes: defaultdict[str, int] = defaultdict(int)
    machines: defaultdict[str, set[str]] = defaultdict(set)
    for interval in account.intervals:
        low = interval.start_unix_ns if sums.since is None else max(interval.start_unix_ns, sums.since)
        high = interval.end_unix_ns if sums.until is None else min(interval.end_unix_ns, sums.until)
        if low < high and interval.cause in _FINDINGS:
            ticks = (high - low) // TICK_NS
            causes[interval.cause] += ticks * interval.gpu_thousandths // interval.machine_gpu_thousandths
            machines[interval.cause].add(interval.machine)
    result = [
        f"{_hours(causes[cause])} {text} ({_some(machines[cause])})"
        for cause, text in _FINDINGS.items()
        if causes[cause]
    ]
    ghost_ticks = 0
    ghosts: set[str] = set()
    for ghost in account.billed.ghosts:
        low = ghost.start_unix_ns if sums.since is None else max(ghost.start_unix_ns, sums.since)
        high = ghost.end_unix_ns if sums.until is None else min(ghost.end_unix_ns, sums.until)
        if low < high:
            ghost_ticks += (high - low) // TICK_NS
            ghosts.add(ghost.machine)
    if ghosts:
        text = "of life that the bill covers and does not charge: cost 0"
        result.append(f"{_hours(ghost_ticks)} {text} ({_some(ghosts)})")
    result += _price_findings(sums)
    result += _discount(account, sums)
    return tuple(result + account.findings)


def _price_findings(sums: Tally) -> list[str]:
    used = [sums.rates[index] for index, units in sums.used.items() if units]
    result = []
    if any(rate.price is not None and rate.price.older_than_book for rate in used):
        result.append("some prices are older than the price book: its earliest observation stands in for them")
    unpriced = sums.node_hours(priced=False)
    if unpriced:
        result.append(
            f"unknown $ for {float(unpriced):,.2f} node-hours without a price, outside every sum. "
            "Next: give a price with --prices, or usd_per_hour of the pool (a spot node takes your own dated prices)"
        )
    return result


def _discount(account: Account, sums: Tally) -> list[str]:
    """List less effective is shown apart, never netted."""
    rows = [row for row in account.bills if row.kind == "usage"]
    if not rows or any(row.list_usd is None or row.effective_usd is None for row in rows):
        return []
    if sums.since is not None or sums.until is not None:
        return []
    parts = [Fraction(row.list_usd or 0) - Fraction(row.effective_usd or 0) for row in rows]
    cents = sum(largest_remainder(parts))
    return [f"list price less effective cost of the whole bill: {dollars(as_decimal(cents))}, netted nowhere"]


def _hours(ticks: int) -> str:
    hours = ticks / TICKS_PER_HOUR
    return f"{hours:,.2f} node-hours" if hours >= 0.1 else f"{hours * 3600:,.2f} node-seconds"


def _some(machines: set[str]) -> str:
    names = sorted(machines)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
