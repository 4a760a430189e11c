"""Where billed time comes from: bill, then the provider's records, then sightings."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest

from gpuwatch.cost.intervals import account, partition
from gpuwatch.cost.report import make_report
from gpuwatch.cost.waste import tally
from gpuwatch.model.ledger import LifeEnded, LifeStarted
from gpuwatch.model.money import Basis, BillRow, Interval
from gpuwatch.prices.book import PriceBook
from tests.ledgers import Pen, at

BOOK = PriceBook.bundled()


def row(machine: str, begin: float, end: float, hours: str, usd: str) -> BillRow:
    return BillRow(
        machine=machine,
        period_start_unix_ns=at(begin),
        period_end_unix_ns=at(end),
        quantity_ticks=int(Decimal(hours) * 10**9),
        cost_usd=Decimal(usd),
    )


def words(intervals: list[Interval]) -> list[tuple[str, str, str, float, float]]:
    return [
        (
            one.category.value,
            one.cause,
            one.terms.source,
            (one.start_unix_ns - at(0)) / (at(1) - at(0)),
            (one.end_unix_ns - at(0)) / (at(1) - at(0)),
        )
        for one in intervals
    ]


def test_the_providers_stop_replaces_a_sighting() -> None:
    pen = Pen(source="seen")
    pen.node("n", 0)
    pen.gone("n", 30, "seen")
    assert words(partition(pen.lines, at(60))) == [("idle", "", "seen", 0, 30)]
    pen.gone("n", 36, "provider")
    assert words(partition(pen.lines, at(60)))[-1][-1] == 36
    pen.gone("n", 45, "seen")  # after the provider's word a sighting says nothing
    assert words(partition(pen.lines, at(60)))[-1][-1] == 36


def test_a_later_sighting_does_not_restart_the_providers_life() -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.add(LifeStarted(at_unix_ns=at(9), machine="n", slot="n", pool="", gpu_count=0, source="seen"))
    found = partition(pen.lines, at(60))
    assert words(found) == [("idle", "", "provider", 0, 60)]
    assert found[0].terms.sku == "ND96asr_v4"


def test_stopped_and_started_again_is_two_lives() -> None:
    pen = Pen()
    pen.node("n", 0, until=15)
    pen.born("n", 45)
    assert words(partition(pen.lines, at(60))) == [
        ("idle", "", "provider", 0, 15),
        ("idle", "", "provider", 45, 60),
    ]


def test_other_terms_from_now_on_cut_the_life_and_leave_no_gap() -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.born("n", 30, price_kind="reserved")
    found = partition(pen.lines, at(60))
    assert words(found) == [("idle", "", "provider", 0, 30), ("idle", "", "provider", 30, 60)]
    assert [one.terms.price_kind for one in found] == ["ondemand", "reserved"]


def test_an_end_of_a_machine_that_never_began_is_nothing() -> None:
    assert partition([LifeEnded(at_unix_ns=at(3), machine="n")], at(60)) == []


def test_the_quantity_is_laid_on_the_life_from_the_start() -> None:
    pen = Pen(source="seen")
    pen.node("n", 12, until=30)
    found = partition(pen.lines, at(60), bills=[row("n", 0, 60, "0.7", "7")])
    assert words(found) == [  # 18 min of life, then 24 of the 42 billed: before it was seen, then after
        ("unknown", "no_life_record", "bill", 0, 12),
        ("idle", "", "bill", 12, 30),
        ("unknown", "no_life_record", "bill", 30, 42),
    ]


def test_a_rest_of_a_life_that_the_provider_told_is_roundup() -> None:
    pen = Pen()
    pen.node("n", 12, until=30)
    found = partition(pen.lines, at(60), bills=[row("n", 0, 60, "0.5", "7")])
    assert words(found) == [("idle", "", "bill", 12, 30), ("billing_roundup", "granularity", "bill", 30, 42)]


def test_a_quantity_longer_than_its_period_is_roundup_without_a_place() -> None:
    pen = Pen()
    pen.node("n", 0, until=60)
    known = account(pen.lines, at(60), bills=[row("n", 0, 60, "1.5", "15")])
    assert [(time.bill_row, time.ticks) for time in known.billed.unplaced] == [(0, 500_000_000)]
    sums = tally(known, BOOK)
    assert sums.cells[("billing_roundup",)].usd(sums.rates) == 5
    assert sums.node_hours() == Fraction(3, 2)
    assert sums.total_usd() == 15


def test_where_no_bill_covers_the_time_it_is_priced_and_said_to_be() -> None:
    pen = Pen()
    pen.node("n", 0, until=120)
    known = account(pen.lines, at(120), bills=[row("n", 0, 60, "1", "10")])
    made = make_report(known, BOOK, made_unix_ns=at(120))
    assert made.sums_to == "mixed"
    assert made.sum_line == (
        "The categories sum to $37.20: $10.00 by the bill and $27.20 of priced time, an estimate. No bill covers it; "
        "billed time is known of 1 machine from the provider's start and stop records."
    )
    assert made.total.usd == Decimal("37.20")


def test_sum_equals_the_bill_is_claimed_only_of_the_whole_bill() -> None:
    pen = Pen()
    pen.node("n", 0, until=60)
    known = account(pen.lines, at(60), bills=[row("n", 0, 60, "1", "10")])
    assert (
        make_report(known, BOOK, made_unix_ns=at(60)).sum_line
        == "The categories sum to the bill, $10.00 (billed cost)."
    )
    assert make_report(known, BOOK, since=at(0), until=at(30), made_unix_ns=at(60)).sums_to == "part_bill"
    assert make_report(account(pen.lines, at(60)), BOOK, made_unix_ns=at(60)).sums_to == "estimate"


@pytest.mark.parametrize("basis", list(Basis))
def test_each_basis_conserves_by_itself(basis: Basis) -> None:
    pen = Pen()
    pen.node("n", 0, until=45)
    first = msgspec.structs.replace(
        row("n", 0, 60, "1", "10"),
        list_usd=Decimal("27.197"),
        contracted_usd=Decimal("12.3"),
        effective_usd=Decimal("9.87"),
    )
    sums = tally(account(pen.lines, at(60), bills=[first]), BOOK, basis=basis)
    amount = first.amount_usd(basis)
    assert amount is not None
    assert sums.total_usd() == Fraction(amount)


def test_an_amount_that_the_bill_does_not_state_is_unknown_not_zero() -> None:
    pen = Pen()
    pen.node("n", 0, until=60)
    sums = tally(account(pen.lines, at(60), bills=[row("n", 0, 60, "1", "10")]), BOOK, basis=Basis.LIST)
    assert sums.total_usd() == 0
    assert sums.node_hours(priced=False) == 1


def test_shared_rows_are_spread_by_billed_gpu_time_and_a_row_still_open_is_provisional() -> None:
    pen = Pen()
    for name in ("a", "b"):
        pen.node(name, 0, until=60)
    for run, team, machine, share in (("r1", "red", "a", 8000), ("r2", "blue", "b", 4000)):
        pen.run = run
        pen.start("1", 0, [machine], share, team=team)
        pen.phase("1", "init", 0, 0, resumed=0)
        pen.step("1", 1, 60)
    shared = msgspec.structs.replace(row("", 0, 60, "0", "16"), kind="shared", open=True)
    rows = [row("a", 0, 60, "1", "10"), row("b", 0, 60, "1", "10"), shared]
    made = make_report(account(pen.lines, at(60), bills=rows), BOOK, by=("team",), made_unix_ns=at(60))
    assert {line.keys[0]: (str(line.usd), str(line.provisional_usd)) for line in made.rows} == {
        "red": ("18.00", "18.00"),  # its run is still open and has saved nothing
        "blue": ("9.00", "9.00"),
        "(unallocated)": ("9.00", "4.00"),
    }
    by_category = make_report(account(pen.lines, at(60), bills=rows), BOOK, made_unix_ns=at(60))
    assert by_category.categories_usd["shared"] == Decimal("16.00")
    assert by_category.sums_to == "bill"


def test_two_rows_of_one_period_lie_one_after_the_other() -> None:
    pen = Pen()
    pen.node("n", 0, until=60)
    found = partition(pen.lines, at(60), bills=[row("n", 0, 60, "0.4", "4"), row("n", 0, 60, "0.6", "12")])
    assert [(one.terms.bill_row, one.start_unix_ns, one.end_unix_ns) for one in found] == [
        (0, at(0), at(24)),
        (1, at(24), at(60)),
    ]


def test_life_beyond_a_row_that_is_still_open_is_no_ghost_but_priced() -> None:
    pen = Pen()
    pen.node("n", 0)
    first = row("n", 0, 60, "0.5", "5")
    closed = account(pen.lines, at(60), bills=[first])
    assert len(closed.billed.ghosts) == 1
    known = account(pen.lines, at(60), bills=[msgspec.structs.replace(first, open=True)])
    assert known.billed.ghosts == []
    assert words(known.intervals) == [("idle", "", "bill", 0, 30), ("idle", "", "provider", 30, 60)]
