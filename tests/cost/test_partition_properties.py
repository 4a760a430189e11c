"""The invariants of the money, over messy ledgers."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.cost.intervals import Account, account, partition
from gpuwatch.cost.loose import BELOW_THE_TOTAL
from gpuwatch.cost.pricing import TICKS_PER_HOUR, row_hours
from gpuwatch.cost.report import incident_prices, make_report
from gpuwatch.cost.rounding import largest_remainder, round_half_up, round_nested
from gpuwatch.cost.waste import DIMENSIONS, NO_FAULT, tally
from gpuwatch.model.ledger import TICK_NS, HealthChanged, LedgerLine, LifeStarted
from gpuwatch.model.money import BillRow, Category, Interval, Price, Terms
from gpuwatch.prices.book import PriceBook
from tests.ledgers import HOUR_ZERO, MINUTE
from tests.messy import NOW, bills, evidence, ledgers, moments

BOOK = PriceBook.bundled()
keys = st.sampled_from(sorted(DIMENSIONS))


def units_by_machine(intervals: Sequence[Interval]) -> dict[str, int]:
    total: defaultdict[str, int] = defaultdict(int)
    for interval in intervals:
        total[interval.machine] += interval.units()
    return dict(total)


@settings(deadline=None)
@given(ledgers, bills)
def test_every_billed_tick_of_every_gpu_is_in_exactly_one_category(
    lines: list[LedgerLine], rows: list[BillRow]
) -> None:
    known = account(lines, NOW, bills=rows)
    edges: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for one in known.intervals:
        assert one.start_unix_ns < one.end_unix_ns
        assert one.start_unix_ns % TICK_NS == 0
        assert one.end_unix_ns % TICK_NS == 0
        assert one.gpu_thousandths > 0
        edges[one.machine] += [
            (one.start_unix_ns, one.gpu_thousandths, one.machine_gpu_thousandths),
            (one.end_unix_ns, -one.gpu_thousandths, one.machine_gpu_thousandths),
        ]
    assert set(edges) == set(known.billed.pieces)
    for machine, pieces in known.billed.pieces.items():
        billed = [(piece.start, piece.end, piece.life.capacity if piece.life else 1000) for piece in pieces]
        for (_, end, _), (start, _, _) in pairwise(billed):
            assert end <= start  # no overlap
        changes = sorted(edges[machine], key=lambda edge: edge[0])
        held = 0
        for index, (at, share, _) in enumerate(changes):
            held += share
            until = changes[index + 1][0] if index + 1 < len(changes) else at
            if at < until:  # between two boundaries: all of the machine, or, where nothing was billed, none of it
                whole = next((capacity for a, b, capacity in billed if a <= at and until <= b), 0)
                assert held == whole
        assert held == 0


@settings(deadline=None)
@given(ledgers)
def test_without_a_bill_the_life_is_what_is_billed(lines: list[LedgerLine]) -> None:
    """An oracle of its own: the machines of the opening that no other life line touches live from zero to now."""
    touched = {
        getattr(line, "machine", "")
        for line in lines[12:]
        if isinstance(line, LifeStarted) or getattr(line, "health", "") == "absent" or "LifeEnded" in str(type(line))
    }
    found = units_by_machine(partition(lines, NOW))
    for machine in {"m1", "m2", "m3"} - touched:
        assert found[machine] == (NOW - HOUR_ZERO) // TICK_NS * 8000


@settings(deadline=None)
@given(ledgers, bills, st.randoms(use_true_random=False))
def test_any_permutation_of_the_same_lines_gives_the_same_intervals(
    lines: list[LedgerLine], rows: list[BillRow], chance: random.Random
) -> None:
    usual = partition(lines, NOW, bills=rows)
    shuffled = list(lines)
    chance.shuffle(shuffled)
    assert partition(shuffled, NOW, bills=rows) == usual
    assert partition([*shuffled, *lines], NOW, bills=rows) == usual  # a line written twice counts once


@settings(deadline=None)
@given(ledgers, evidence, bills)
def test_late_evidence_never_changes_the_total(
    lines: list[LedgerLine], late: list[LedgerLine], rows: list[BillRow]
) -> None:
    gone = {line.machine for line in lines if isinstance(line, HealthChanged) and line.health == "absent"}
    late = [line for line in late if not (isinstance(line, HealthChanged) and line.machine in gone)]  # says it is back
    before, after = account(lines, NOW, bills=rows), account([*lines, *late], NOW, bills=rows)
    assert units_by_machine(after.intervals) == units_by_machine(before.intervals)
    assert tally(after, BOOK).total_usd() == tally(before, BOOK).total_usd()


@settings(deadline=None)
@given(ledgers, bills)
def test_the_money_of_the_bill_is_all_there(lines: list[LedgerLine], rows: list[BillRow]) -> None:
    known = account(lines, NOW, bills=rows)
    sums = tally(known, NoPrice())
    charged = sum((Fraction(row.cost_usd) for row in rows if row.kind not in BELOW_THE_TOTAL), Fraction(0))
    assert sums.total_usd() == charged
    assert sum((row.usd for row in sums.below), Fraction(0)) == sum(
        (Fraction(row.cost_usd) for row in rows if row.kind in BELOW_THE_TOTAL), Fraction(0)
    )


class NoPrice:
    """A price book that knows nothing."""

    def steps(self, terms: Terms, pool: str) -> list[tuple[int, Price]]:
        return []


class Flat:
    """One price for everything, or two, one after the other."""

    def __init__(self, usd: Fraction, later: Fraction | None = None, step_at: int = 0) -> None:
        first = Price(usd_per_hour=_decimal(usd), kind="override", as_of="", source="test")
        self.rows = [(-(2**63), first)]
        if later is not None:
            self.rows.append(
                (step_at - step_at % TICK_NS, msgspec.structs.replace(first, usd_per_hour=_decimal(later)))
            )

    def steps(self, terms: Terms, pool: str) -> list[tuple[int, Price]]:
        return self.rows


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


@settings(deadline=None)
@given(ledgers, bills, keys, keys)
def test_printed_parts_add_up_to_the_printed_total(
    lines: list[LedgerLine], rows: list[BillRow], first: str, second: str
) -> None:
    known = account(lines, NOW, bills=rows)
    totals = set()
    for by in ((first,), (first, second) if first != second else (first,)):
        made = make_report(known, BOOK, by=by, made_unix_ns=NOW)
        if made.empty_because:
            continue
        assert sum(row.usd for row in made.rows) == made.total.usd
        assert sum(made.categories_usd.values()) == made.total.usd
        assert made.total.usd == _decimal(Fraction(round_half_up(tally(known, BOOK, by).total_usd()), 100))
        assert sum(row.provisional_usd for row in made.rows) == made.total.provisional_usd
        assert made.sums_to != "mismatch"
        totals.add(made.total.usd)
    assert len(totals) <= 1


@settings(deadline=None)
@given(ledgers, bills)
def test_faults_together_cost_no_more_than_the_total(lines: list[LedgerLine], rows: list[BillRow]) -> None:
    known = account(lines, NOW, bills=rows)
    sums = tally(known, Flat(Fraction(3)), ("incident",))
    if any(row.cost_usd < 0 for row in rows):
        return
    faults = sum((cell.usd(sums.rates) for key, cell in sums.cells.items() if key[0] != NO_FAULT), Fraction(0))
    # What is billed for less than half a tick more or less stands as a whole tick; the rest is taken back below.
    over = sum((Fraction(row.cost_usd) * max(Fraction(0), _ticks_over(row)) for row in rows), Fraction(0))
    assert faults <= sums.total_usd() + over


def _ticks_over(row: BillRow) -> Fraction:
    hours = row_hours(row)
    return Fraction(row.quantity_ticks, TICKS_PER_HOUR) / hours - 1 if hours else Fraction(0)


@settings(deadline=None)
@given(ledgers, st.integers(1, 7))
def test_exact_amounts_scale_with_the_price(lines: list[LedgerLine], factor: int) -> None:
    known = account(lines, NOW)
    once, often = tally(known, Flat(Fraction(27197, 1000))), tally(known, Flat(Fraction(27197 * factor, 1000)))
    assert {key: cell.usd(once.rates) * factor for key, cell in once.cells.items()} == {
        key: cell.usd(often.rates) for key, cell in often.cells.items()
    }


@settings(deadline=None)
@given(ledgers, bills, st.lists(moments, max_size=4), keys)
def test_cutting_anywhere_gives_equal_sums(
    lines: list[LedgerLine], rows: list[BillRow], cuts: list[int], key: str
) -> None:
    known = account(lines, NOW, bills=[row for row in rows if row.period_start_unix_ns < row.period_end_unix_ns])
    whole = tally(known, BOOK, (key,))
    edges = [None, *sorted(cuts), None]
    summed: defaultdict[tuple[str, ...], Fraction] = defaultdict(Fraction)
    for since, until in pairwise(edges):
        part = tally(known, BOOK, (key,), since=since, until=until)
        for name, cell in part.cells.items():
            summed[name] += cell.usd(part.rates)
    spread = key in ("run", "team", "user")  # shared cost is spread by each period's own GPU time
    if spread:
        assert sum(summed.values(), Fraction(0)) == whole.total_usd()
    else:
        assert {name: usd for name, usd in summed.items() if usd} == {
            name: cell.usd(whole.rates) for name, cell in whole.cells.items() if cell.usd(whole.rates)
        }


@settings(deadline=None)
@given(ledgers, moments)
def test_a_price_step_cuts_where_it_lies(lines: list[LedgerLine], step_at: int) -> None:
    known = account(lines, NOW)
    stepped = tally(known, Flat(Fraction(2), Fraction(5), step_at))
    low = tally(known, Flat(Fraction(2)), until=step_at)
    high = tally(known, Flat(Fraction(5)), since=step_at)
    assert stepped.total_usd() == low.total_usd() + high.total_usd()


@settings(deadline=None)
@given(ledgers)
def test_what_has_no_price_is_counted_and_in_no_sum(lines: list[LedgerLine]) -> None:
    known = account(lines, NOW)
    sums = tally(known, NoPrice())
    assert sums.total_usd() == 0
    assert sums.node_hours(priced=False) == sums.node_hours()
    made = make_report(known, NoPrice(), made_unix_ns=NOW)
    assert made.total.unpriced_node_hours == made.total.node_hours


@settings(deadline=None)
@given(ledgers)
def test_a_category_of_a_run_is_only_of_runs_and_provisional_is_never_waste_that_is_final(
    lines: list[LedgerLine],
) -> None:
    of_runs = {Category.PRODUCTIVE, Category.SLOW, Category.LOST_WORK, Category.HUNG, Category.RECOVERY}
    for one in partition(lines, NOW):
        if one.category in of_runs:
            assert one.run is not None
            assert one.attempt is not None
        if one.category in (Category.IDLE, Category.LOST_WORK):
            assert not one.provisional
        if one.category is Category.IDLE:
            assert one.fault is None


@settings(deadline=None)
@given(ledgers)
def test_incident_prices_are_those_of_the_report(lines: list[LedgerLine]) -> None:
    made = make_report(account(lines, NOW), BOOK, by=("incident",), made_unix_ns=NOW)
    printed = {row.keys[0]: row.lifetime_usd for row in made.rows if row.keys[0] != NO_FAULT}
    assert incident_prices(lines, (), BOOK, NOW) == printed


@settings(deadline=None)
@given(ledgers, st.integers(1, 280))
def test_as_of_a_moment_nothing_later_counts(lines: list[LedgerLine], minute: int) -> None:
    moment = HOUR_ZERO + minute * MINUTE
    known: Account = account(lines, moment)
    assert known.intervals == partition([line for line in lines if line.at_unix_ns <= moment], moment)
    assert all(one.end_unix_ns <= moment for one in known.intervals)


@settings(deadline=None)
@given(st.lists(st.fractions(min_value=-9, max_value=9, max_denominator=997), max_size=12), st.integers(0, 3))
def test_largest_remainder_adds_up_and_moves_nobody_by_more_than_one(parts: list[Fraction], places: int) -> None:
    rounded = largest_remainder(parts, places)
    assert sum(rounded) == round_half_up(sum(parts, Fraction(0)), places)
    for part, minor in zip(parts, rounded, strict=True):
        assert abs(part * 10**places - minor) <= 1


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=3), st.lists(st.fractions(-9, 9, max_denominator=997), min_size=1, max_size=5), max_size=5
    )
)
def test_margins_are_sums_of_printed_cells(groups: dict[str, list[Fraction]]) -> None:
    nested = round_nested(groups)
    outer = largest_remainder([sum(parts, Fraction(0)) for parts in groups.values()])
    assert [sum(cells) for cells in nested.values()] == outer


@settings(deadline=None)
@given(ledgers, bills)
def test_account_is_pure(lines: list[LedgerLine], rows: list[BillRow]) -> None:
    assert account(lines, NOW, bills=rows).intervals == account(lines, NOW, bills=rows).intervals
