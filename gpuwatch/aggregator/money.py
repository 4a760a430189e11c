"""What everything cost up to now, worked out from the ledger beside the brain, never inside a tick.

The whole partition is worked out anew each time, so it is done only while somebody looks, at most every few seconds,
and never takes more than a small share of one core; what is shown says as of when it is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import msgspec

from gpuwatch.clock import Clock
from gpuwatch.cost.intervals import Account, account
from gpuwatch.cost.pricing import PriceSource, Rates, bill_basis
from gpuwatch.cost.report import make_report
from gpuwatch.cost.rounding import as_decimal, round_half_up
from gpuwatch.errors import GpuwatchError
from gpuwatch.model.ledger import LedgerLine
from gpuwatch.model.money import Category, Interval, group_of
from gpuwatch.store.sqlite import Store

LOG = logging.getLogger("gpuwatch.money")
EVERY_S = 2.0
SHARE = 0.1  # of the time, at most, is spent on this
LOOKED_S = 120.0  # nobody asked for so long: nobody is looking
NO_FAULT = "(no fault)"
WASTE = ("loss", "unusable")
NOTHING_YET = "No time has been billed yet; it begins with the first machine that reports or that the cloud lists."


class CategoryMoney(msgspec.Struct, frozen=True, kw_only=True):
    """One category since the beginning of the ledger, and what it burns now."""

    category: str
    group: str
    usd: Decimal
    node_hours: Decimal
    unpriced_node_hours: Decimal  # part of them: "unknown $", in no sum
    usd_per_hour_now: Decimal


class PoolMoney(msgspec.Struct, frozen=True, kw_only=True):
    """One category of one pool."""

    pool: str
    category: str
    usd: Decimal
    usd_per_hour_now: Decimal


class IncidentMoney(msgspec.Struct, frozen=True, kw_only=True):
    """One fault's price so far: all machines, by category. A fault on machines without a price has none."""

    usd: Decimal
    by_category: dict[str, Decimal]
    usd_per_hour_now: Decimal


class Money(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger in money at one moment."""

    as_of_unix_ns: int
    total_usd: Decimal = Decimal("0.00")
    sum_line: str = ""
    empty_because: str = ""
    unpriced_node_hours: Decimal = Decimal(0)
    categories: tuple[CategoryMoney, ...] = ()
    pools: tuple[PoolMoney, ...] = ()
    incidents: dict[str, IncidentMoney] = {}
    incidents_usd: Decimal = Decimal("0.00")
    usd_per_hour_now: Decimal = Decimal("0.00")
    waste_usd_per_hour_now: Decimal = Decimal("0.00")  # loss and unusable
    incidents_usd_per_hour_now: Decimal = Decimal("0.00")  # of open incidents, their replacements that start too …
    incidents_waste_usd_per_hour_now: Decimal = Decimal("0.00")  # … and without these
    findings: tuple[str, ...] = ()
    error: str = ""


class MoneyDesk:
    """Keeps the latest `Money`."""

    def __init__(
        self,
        store: Store,
        prices: PriceSource,
        clock: Clock,
        alive: Callable[[], set[str]],
        evidence_age_s: Callable[[], float],
    ) -> None:
        self._store = store
        self._prices = prices
        self._clock = clock
        self._alive = alive  # machines of the fleet now
        self._evidence_age_s = evidence_age_s  # how old the word of a run that steps may be
        self._row_id = 0
        self._lines: list[LedgerLine] = []
        self._latest = Money(as_of_unix_ns=clock.unix_ns(), empty_because="it is being worked out; look again")
        self._looked_ns: int | None = None
        self._asked = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="money", daemon=True)

    def start(self) -> None:
        """Work it out again and again."""
        self._thread.start()

    def stop(self) -> None:
        """No more."""
        self._stopped.set()
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def latest(self) -> Money:
        """The last that was worked out; asking keeps it fresh."""
        self._looked_ns = self._clock.monotonic_ns()
        self._asked.set()
        return self._latest

    def refresh(self) -> Money:
        """Work it out now."""
        self._row_id, new = self._store.lines_after(self._row_id)
        self._lines += new
        now_unix_ns = self._clock.unix_ns()
        known = account(self._lines, now_unix_ns, bills=self._store.bill_rows())
        self._latest = reckon(known, self._prices, self._alive(), now_unix_ns, self._evidence_age_s())
        return self._latest

    def _work(self) -> None:
        while not self._stopped.is_set():
            if not self._looked():
                self._row_id, self._lines = 0, []  # a year's ledger is not kept in memory for nobody
                self._asked.clear()
                self._asked.wait()
                continue
            began_ns = self._clock.monotonic_ns()
            try:
                self.refresh()
            except GpuwatchError as error:
                self._fail(f"{error.what}: {error.why}")
            except Exception as error:  # a wrong sum must not stop the watch; it is said on the page
                if not self._latest.error:
                    LOG.exception("the money could not be worked out")
                self._fail(f"{type(error).__name__}: {error}")
            took_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            self._stopped.wait(max(EVERY_S - took_s, took_s / SHARE))

    def _looked(self) -> bool:
        looked_ns = self._looked_ns
        return looked_ns is not None and (self._clock.monotonic_ns() - looked_ns) / 1e9 < LOOKED_S

    def _fail(self, error: str) -> None:
        self._latest = msgspec.structs.replace(self._latest, error=error)


def reckon(known: Account, prices: PriceSource, alive: set[str], now_unix_ns: int, evidence_age_s: float) -> Money:
    """The account in money. `alive`: machines that are billed now."""
    report = make_report(known, prices, by=("category",), made_unix_ns=now_unix_ns)
    if report.empty_because:
        return Money(as_of_unix_ns=now_unix_ns, empty_because=NOTHING_YET)
    by_place, by_fault, faults_waste = _burning(known, prices, alive, int(evidence_age_s * 1e9))
    by_category: dict[str, Fraction] = {}
    for (_, category), usd in by_place.items():
        by_category[category] = by_category.get(category, Fraction(0)) + usd
    split = make_report(known, prices, by=("incident", "category"), made_unix_ns=now_unix_ns)
    incidents: dict[str, dict[str, Decimal]] = {}
    for row in split.rows:
        if row.keys[0] != NO_FAULT and (row.usd or not row.unpriced_node_hours):
            incidents.setdefault(row.keys[0], {})[row.keys[1]] = row.usd
    waste = [usd for category, usd in by_category.items() if group_of(Category(category)) in WASTE]
    return Money(
        as_of_unix_ns=known.now,
        total_usd=report.total.usd,
        sum_line=report.sum_line,
        unpriced_node_hours=report.total.unpriced_node_hours,
        categories=tuple(
            CategoryMoney(
                category=row.keys[0],
                group=group_of(Category(row.keys[0])),
                usd=row.usd,
                node_hours=row.node_hours,
                unpriced_node_hours=row.unpriced_node_hours,
                usd_per_hour_now=_cents(by_category.get(row.keys[0], Fraction(0))),
            )
            for row in report.rows
        ),
        pools=_pools(known, prices, by_place, now_unix_ns),
        incidents={
            fault: IncidentMoney(
                usd=sum(cells.values(), Decimal("0.00")),
                by_category=cells,
                usd_per_hour_now=_cents(by_fault.get(fault, Fraction(0))),
            )
            for fault, cells in incidents.items()
        },
        incidents_usd=sum((usd for cells in incidents.values() for usd in cells.values()), Decimal("0.00")),
        usd_per_hour_now=_cents(sum(by_category.values(), Fraction(0))),
        waste_usd_per_hour_now=_cents(sum(waste, Fraction(0))),
        incidents_usd_per_hour_now=_cents(sum(by_fault.values(), Fraction(0))),
        incidents_waste_usd_per_hour_now=_cents(faults_waste),
        findings=report.findings,
    )


def _pools(
    known: Account, prices: PriceSource, by_place: dict[tuple[str, str], Fraction], now_unix_ns: int
) -> tuple[PoolMoney, ...]:
    split = make_report(known, prices, by=("pool", "category"), made_unix_ns=now_unix_ns)
    return tuple(
        PoolMoney(
            pool=row.keys[0],
            category=row.keys[1],
            usd=row.usd,
            usd_per_hour_now=_cents(by_place.get((row.keys[0], row.keys[1]), Fraction(0))),
        )
        for row in split.rows
    )


def _burning(
    known: Account, prices: PriceSource, alive: set[str], evidence_age_ns: int
) -> tuple[dict[tuple[str, str], Fraction], dict[str, Fraction], Fraction]:
    """Dollars an hour by pool and category, by fault, and what of the faults' is waste: of each machine's last.

    Not of those that reach up to now: an imported bill may end a little before. And a run's newest moments are `hung`
    until its next step is reported; younger than a few reports that is no word on what is going on.
    """
    last: dict[str, list[Interval]] = {}
    for interval in known.intervals:
        own = last.get(interval.machine)
        if interval.machine not in alive:
            continue
        young = interval.end_unix_ns - interval.start_unix_ns < evidence_age_ns
        if own is not None and interval.provisional and interval.category is Category.HUNG and young:
            continue
        if own is None or interval.end_unix_ns > own[0].end_unix_ns:
            last[interval.machine] = [interval]
        elif interval.end_unix_ns == own[0].end_unix_ns:
            own.append(interval)
    rates = Rates(prices, known.bills, bill_basis(known.bills, None))
    by_place: dict[tuple[str, str], Fraction] = {}
    by_fault: dict[str, Fraction] = {}
    faults_waste = Fraction(0)
    for interval in (item for own in last.values() for item in own):
        for _, _, index in rates.cut(interval, interval.end_unix_ns - 1, interval.end_unix_ns):
            rate = rates.known[index]
            if rate.usd_per_hour is None:
                continue
            usd = rate.usd_per_hour * Fraction(interval.gpu_thousandths, interval.machine_gpu_thousandths)
            place = (interval.pool, interval.category.value)
            by_place[place] = by_place.get(place, Fraction(0)) + usd
            if interval.fault is not None:
                by_fault[interval.fault] = by_fault.get(interval.fault, Fraction(0)) + usd
                faults_waste += usd if group_of(interval.category) in WASTE else 0
    return by_place, by_fault, faults_waste


def _cents(usd: Fraction) -> Decimal:
    return as_decimal(round_half_up(usd))
