"""The twenty edge cases of the money, each as a small ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import msgspec
import pytest

from gpuwatch.cost.intervals import account, partition
from gpuwatch.cost.lives import BillingRule
from gpuwatch.cost.report import make_report
from gpuwatch.cost.rounding import as_decimal, largest_remainder, round_half_up
from gpuwatch.cost.waste import tally
from gpuwatch.model.ledger import TICK_NS, EvidenceBack, EvidenceLost, FaultBlamed, LedgerLine, MemberLeft
from gpuwatch.model.money import Basis, BillRow, Interval, Price, Terms
from gpuwatch.prices.book import PriceBook
from gpuwatch.prices.overrides import DatedPrice, PriceOverride, PriceSettings
from gpuwatch.wiring.cost_report import period
from tests.ledgers import MINUTE, Pen, at, names

BOOK = PriceBook.bundled()


def minutes(intervals: Sequence[Interval], machine: str | None = None, **only: object) -> dict[str, float]:
    """Node-minutes by category."""
    total: Counter[str] = Counter()
    for one in intervals:
        if machine in (None, one.machine) and all(getattr(one, name) == value for name, value in only.items()):
            share = Fraction(one.gpu_thousandths, one.machine_gpu_thousandths)
            total[one.category.value] += (one.end_unix_ns - one.start_unix_ns) * share  # type: ignore[assignment]
    return {category: round(float(ns) / MINUTE, 3) for category, ns in total.items()}


def gang(count: int = 4, until: float = 60, *, ideal: bool = True) -> tuple[Pen, list[str]]:
    """A run that steps each minute; with `ideal` it has shown its step time before the first hour."""
    pen = Pen()
    nodes = names(count)
    begin = -120 if ideal else 0
    for name in nodes:
        pen.node(name, begin, until=until)
    pen.hold(nodes, begin)
    pen.start("1", begin, nodes)
    pen.phase("1", "init", begin, begin, resumed=0)
    if ideal:
        pen.steps("1", 1, 120, begin, 1)
        pen.saved("1", 120, 0)
    return pen, nodes


def hour(lines: Sequence[LedgerLine], now: float = 60) -> list[Interval]:
    """The intervals, cut to what lies after minute 0."""
    return [
        msgspec.structs.replace(one, start_unix_ns=max(one.start_unix_ns, at(0)))
        for one in partition(lines, at(now))
        if one.end_unix_ns > at(0)
    ]


def test_01_hung_and_draining() -> None:
    pen, nodes = gang()
    pen.fault("F", 0, 5, run="train", kind="run_stalled")
    pen.state(nodes[0], 5, lifecycle="draining", fault="F")
    pen.end("1", 10, fault="F")
    found = minutes(hour(pen.lines, 20), nodes[0])
    assert found == {"lost_work": 1.0, "hung": 9.0, "draining": 10.0}


def test_02_dead_and_hung() -> None:
    pen, nodes = gang()
    pen.fault("F", 0.5, 5, run="train", kind="run_stalled")
    pen.end("1", 10, fault="F")
    unknown = hour(pen.lines, 20)
    assert minutes(unknown)["hung"] == 4 * 9
    assert {one.blame for one in unknown if one.fault} == {None}
    pen.add(FaultBlamed(at_unix_ns=at(12), fault="F", machine=nodes[1], because="its rank stands out"))
    blamed = hour(pen.lines, 20)
    assert {one.blame for one in blamed if one.fault} == {nodes[1]}
    assert minutes(blamed) == minutes(unknown)
    pen.state(nodes[1], 0.5, health="dead", fault="F")
    dead = hour(pen.lines, 20)
    assert minutes(dead, nodes[1])["dead"] == 19.5
    assert minutes(dead, fault="F")["hung"] == 3 * 9


def test_03_restart_before_a_save() -> None:
    pen, nodes = gang()
    pen.steps("1", 121, 10, 0, 1)
    pen.end("1", 10, fault="F1")
    pen.start("2", 12, nodes)
    pen.phase("2", "init", 12, 13, resumed=120)
    pen.steps("2", 121, 11, 13, 1)
    pen.end("2", 24, fault="F2")
    pen.start("3", 26, nodes)
    pen.phase("3", "init", 26, 27, resumed=120)
    pen.steps("3", 121, 33, 27, 1)
    found = hour(pen.lines)
    assert minutes(found, attempt="1") == {"lost_work": 40.0, "recovery": 8.0}
    assert minutes(found, attempt="2") == {"recovery": 12.0, "lost_work": 44.0}
    lost = {(one.attempt, one.fault): 0.0 for one in found if one.category.value == "lost_work"}
    assert set(lost) == {("1", "F1"), ("2", "F2")}
    assert minutes(found, attempt="3")["productive"] == 33 * 4


def test_04_lost_work_is_known_late() -> None:
    pen, nodes = gang()
    pen.steps("1", 121, 10, 0, 1)
    pen.end("1", 10, fault="F1")
    waiting = hour(pen.lines, 20)
    assert minutes(waiting, category="productive", provisional=True) == {"productive": 40.0}
    pen.start("2", 20, nodes)
    pen.phase("2", "init", 20, 21, resumed=125)
    resumed = hour(pen.lines, 22)
    assert minutes(resumed, attempt="1")["lost_work"] == 4 * 5
    pen.steps("2", 126, 10, 21, 1)
    kept = [*pen.lines]
    pen.end("2", 31, "exit0")
    assert minutes(hour(pen.lines, 40), attempt="2")["productive"] == 40.0
    assert not any(one.provisional for one in hour(pen.lines, 40))
    pen.lines = kept
    pen.end("2", 31, "planned")
    pen.close(32, "given_up")
    given_up = hour(pen.lines, 40)
    assert minutes(given_up, category="lost_work", cause="given_up") == {"lost_work": 40.0}  # after step 125
    assert minutes(given_up, attempt="1")["productive"] == 20.0
    assert account(pen.lines, at(40)).runs["train"].closing.how == "given_up"


def test_05_rollback_for_numerical_reasons() -> None:
    pen, nodes = gang()
    pen.steps("1", 121, 10, 0, 1)
    pen.end("1", 10, "planned", cause="numerical")
    pen.start("2", 12, nodes)
    pen.phase("2", "init", 12, 13, resumed=125)
    pen.step("2", 126, 14)
    found = hour(pen.lines, 14)
    assert minutes(found, category="lost_work", cause="numerical", fault=None) == {"lost_work": 20.0}


def test_06_blast_radius() -> None:
    pen, nodes = gang(124)
    pen.fault("F", 0, 5, nodes[16])
    pen.state(nodes[16], 0, health="dead", fault="F")
    pen.end("1", 5, fault="F")
    found = minutes(hour(pen.lines, 8), fault="F")
    assert found == {"dead": 8.0, "lost_work": 123.0, "hung": 123.0 * 4, "recovery": 123.0 * 3}


def test_07_elastic_runs_keep_stepping_without_the_lost_node() -> None:
    pen, nodes = gang()
    pen.add(MemberLeft(at_unix_ns=at(2), run="train", attempt="1", machine=nodes[3]))
    pen.state(nodes[3], 2, health="dead", fault="F")
    pen.steps("1", 121, 20, 0, 1)
    found = hour(pen.lines, 20)
    assert minutes(found, nodes[0]) == {"productive": 20.0}
    assert minutes(found, nodes[3]) == {"productive": 2.0, "dead": 18.0}


def test_08_two_runs_on_a_node() -> None:
    pen = Pen()
    pen.node("n", 0, until=60)
    for run, share in (("a", 4000), ("b", 2500)):
        pen.run = run
        pen.start("1", 0, ["n"], share)
        pen.phase("1", "init", 0, 10, resumed=0)
        pen.step("1", 1, 60)
    found = partition(pen.lines, at(60))
    assert minutes(found, run="a") == {"startup": 5.0, "productive": 25.0}
    assert minutes(found, run="b") == {"startup": 3.125, "productive": 15.625}
    assert minutes(found, run=None) == {"idle": 11.25}
    pen.run = "c"
    pen.start("1", 0, ["n"], 5500)  # now 12 of 8 GPUs: scaled to the machine
    shares = {one.run: one.gpu_thousandths for one in partition(pen.lines, at(60))}
    assert shares == {"a": 2667, "b": 1667, "c": 3666}


def test_09_straggler_then_hang() -> None:
    pen, nodes = gang()
    pen.fault("S", 0, 3, nodes[2], run="train", kind="straggler")
    for i in range(10):
        pen.step("1", 121 + i, 1.2 * (i + 1))
    pen.fault("H", 13, 15, run="train", kind="run_stalled")
    pen.end("1", 20, fault="H")
    found = hour(pen.lines, 20)
    assert minutes(found, nodes[0]) == {"productive": 10.0, "slow": 2.0, "lost_work": 1.0, "hung": 7.0}
    assert minutes(found, fault="S") == {"slow": 8.0}
    assert minutes(found, fault="H") == {"lost_work": 4.0, "hung": 28.0}


def test_10_partial_hours_cut_when_reporting_add_up() -> None:
    pen, _ = gang()
    pen.steps("1", 121, 7, 0.123, 7.77)
    known = account(pen.lines, at(60))
    whole = tally(known, BOOK).total_usd()
    edges = [None, *(at(m) for m in range(-60, 60, 60)), None]
    parts = [tally(known, BOOK, since=a, until=b).total_usd() for a, b in pairwise(edges)]
    assert sum(parts, Fraction(0)) == whole
    assert tally(known, BOOK, ("day",)).total_usd() == whole


def test_11_granularity_is_billing_roundup_negative_slivers_too() -> None:
    pen = Pen()
    pen.node("n", 0, until=35)
    rules = {"azure": BillingRule(granularity_s=3600)}
    assert minutes(partition(pen.lines, at(90), billing_rules=rules)) == {"idle": 35.0, "billing_roundup": 25.0}
    rules = {"azure": BillingRule(granularity_s=60, minimum_s=50 * 60)}
    assert minutes(partition(pen.lines, at(90), billing_rules=rules))["billing_roundup"] == 15.0
    row = bill("n", 0, 60, hours="1", usd="27.20")
    assert minutes(partition(pen.lines, at(90), bills=[row])) == {"idle": 35.0, "billing_roundup": 25.0}
    for printed, sign in (("0.58333333333", 1), ("0.58333333299", -1)):
        row = msgspec.structs.replace(
            bill("n", 0, 60, hours="0.583333333", usd="15.86"), quantity_hours=Decimal(printed)
        )
        sums = tally(account(pen.lines, at(90), bills=[row]), BOOK)
        sliver = sums.cells[("billing_roundup",)].usd(sums.rates)
        assert sliver * sign > 0
        assert sums.total_usd() == Fraction("15.86")


def bill(machine: str, begin: float, end: float, *, hours: str, usd: str, **more: object) -> BillRow:
    row = BillRow(
        machine=machine,
        period_start_unix_ns=at(begin),
        period_end_unix_ns=at(end),
        quantity_ticks=int(Decimal(hours) * 10**9),
        cost_usd=Decimal(usd),
    )
    return msgspec.structs.replace(row, **more)


def test_12_spot_is_priced_by_time_and_eviction_is_unplanned() -> None:
    pen = Pen(price_kind="spot", sku="own-spot")
    pen.node("n", 24 * 60 - 30, until=24 * 60 + 30)
    pen.hold(["n"], 24 * 60 - 30)
    pen.start("1", 24 * 60 - 30, ["n"])
    pen.phase("1", "init", 24 * 60 - 30, 24 * 60 - 30, resumed=0)
    pen.step("1", 1, 24 * 60 + 20)
    pen.end("1", 24 * 60 + 30, "unplanned", cause="preemption")
    own = PriceOverride(
        usd_per_hour=Decimal(5), as_of="2021-12-02", earlier=(DatedPrice(usd_per_hour=Decimal(3), as_of="2021-12-01"),)
    )
    sums = tally(account(pen.lines, at(3000)), PriceBook.bundled(PriceSettings(skus={"own-spot": own})), ("cause",))
    assert sums.total_usd() == Fraction(5 + 3, 2)
    assert sums.cells[("preemption",)].usd(sums.rates) > 0
    row = bill("n", 0, 3000, hours="1", usd="4", list_usd=Decimal(10), effective_usd=Decimal(4))
    made = make_report(account(pen.lines, at(3000), bills=[row]), BOOK, made_unix_ns=at(3000))
    assert made.total.usd == Decimal("4.00")
    assert any("list price less effective cost of the whole bill: $6.00" in finding for finding in made.findings)


def test_13_reserved_on_the_effective_basis_with_unused_hours() -> None:
    pen = Pen()
    pen.node("n", 0, until=60)
    rows = [
        bill("n", 0, 60, hours="1", usd="0", effective_usd=Decimal("12.50")),
        bill("", 0, 60, hours="1", usd="0", kind="unused_commitment", effective_usd=Decimal("7.25")),
        bill("", 0, 60, hours="0", usd="700", kind="purchase", effective_usd=Decimal(0)),
    ]
    known = account(pen.lines, at(60), bills=rows)
    made = make_report(known, BOOK, made_unix_ns=at(60))
    assert made.basis == "effective"
    assert {row.keys[0]: str(row.usd) for row in made.rows} == {"idle": "12.50", "unused_commitment": "7.25"}
    billed = make_report(known, BOOK, basis=Basis.BILLED, made_unix_ns=at(60))
    assert billed.total.usd == Decimal("0.00")
    assert billed.below == {"purchase": Decimal("700.00")}


@pytest.mark.parametrize(("month", "hours"), [("2026-02", 672), ("2024-02", 696), ("2026-11", 720), ("2026-12", 744)])
def test_14_a_month_has_672_to_744_hours(month: str, hours: int) -> None:
    begin, end = period(at(0), month=month)
    assert begin is not None
    assert end is not None
    assert (end - begin) // (3600 * 10**9) == hours


def test_15_times_are_utc_inside_and_offsets_are_read() -> None:
    local = period(at(0), since="2021-11-07T00:00:00-04:00", until="2021-11-08T00:00:00-05:00")
    assert local[0] is not None
    assert local[1] is not None
    assert (local[1] - local[0]) // (3600 * 10**9) == 25  # the day on which the clocks went back
    assert period(at(0), since="2021-12-01") == period(at(0), since="2021-12-01T00:00:00Z") == (at(0), None)


def test_16_clock_skew_moves_money_only_between_neighbours() -> None:
    pen, _ = gang(124)
    pen.steps("1", 121, 9, 0, 1)
    pen.phase("1", "checkpoint", 9, 10)
    pen.steps("1", 130, 10, 10, 1)
    before = account(pen.lines, at(20))
    skewed = [
        msgspec.structs.replace(line, at_unix_ns=line.at_unix_ns + 10**9) if line.at_unix_ns == at(10) else line
        for line in pen.lines
    ]
    after = account(skewed, at(20))
    old, new = tally(before, BOOK), tally(after, BOOK)
    assert new.total_usd() == old.total_usd()
    moved = new.cells[("checkpoint",)].usd(new.rates) - old.cells[("checkpoint",)].usd(old.rates)
    assert as_decimal(round_half_up(moved)) == Decimal("0.94")


def test_17_late_or_missing_telemetry_is_unknown_then_restated() -> None:
    pen, _ = gang()
    pen.steps("1", 121, 10, 0, 1)
    pen.add(EvidenceLost(at_unix_ns=at(10.5), run="train", attempt="1"))
    silent = hour(pen.lines, 30)
    assert minutes(silent, category="unknown", cause="no_step_evidence") == {"unknown": 4 * 19.5}
    assert minutes(silent)["productive"] == 4 * 10.5
    pen.add(EvidenceBack(at_unix_ns=at(25), run="train", attempt="1"))  # a fresh report without progress is a hang
    assert minutes(hour(pen.lines, 30))["hung"] == 4 * 19
    pen.steps("1", 131, 18, 10, 1)  # and late records show that there was none
    late = hour(pen.lines, 30)
    assert minutes(late) == {"productive": 4 * 29.0, "hung": 4.0}
    assert sum(minutes(late).values()) == sum(minutes(silent).values())


def test_18_a_machine_that_takes_a_slot_inherits_nothing() -> None:
    pen = Pen()
    pen.born("old", 0)
    pen.state("old", 0, lifecycle="in_service", health="dead", fault="F")
    pen.gone("old", 30)
    pen.born("new", 30, slot="old", fault="F")
    pen.state("new", 40, lifecycle="in_service", health="healthy")
    found = partition(pen.lines, at(60))
    assert minutes(found, "old", fault="F") == {"dead": 30.0}
    assert minutes(found, "new", fault="F") == {"provisioning": 10.0}  # it is the broken one's replacement
    assert minutes(found, "new", fault=None) == {"idle": 20.0}
    assert {one.slot for one in found} == {"old"}
    sums = tally(account(pen.lines, at(60)), BOOK, ("node",))
    assert set(sums.cells) == {("old",), ("new",)}


def test_19_cents_of_negative_and_zero_parts() -> None:
    assert largest_remainder([Fraction("-1.009"), Fraction("-1.008")]) == [-101, -101]
    assert largest_remainder([Fraction(0), Fraction("0.004"), Fraction("0.004")]) == [0, 1, 0]


def test_20_billed_but_not_in_the_inventory_and_the_reverse() -> None:
    pen = Pen()
    pen.node("ours", 0, until=120)
    rows = [bill("stranger", 0, 60, hours="1", usd="10"), bill("ours", 0, 60, hours="0.5", usd="15")]
    known = account(pen.lines, at(120), bills=rows)
    assert minutes(known.intervals, "stranger", cause="orphan") == {"unknown": 60.0}
    assert minutes(known.intervals, "ours") == {"idle": 30.0 + 60.0}  # after the bill's period the time is priced
    assert [(g.machine, g.start_unix_ns, g.end_unix_ns) for g in known.billed.ghosts] == [("ours", at(30), at(60))]
    made = make_report(known, BOOK, until=at(60), made_unix_ns=at(120))
    assert made.sums_to == "bill"
    assert made.total.usd == Decimal("25.00")
    assert any("in no inventory of ours" in finding for finding in made.findings)
    assert any("does not charge: cost 0" in finding for finding in made.findings)


def test_money_of_a_share_is_exact() -> None:
    pen = Pen()
    pen.node("n", 0, until=60)
    pen.start("1", 0, ["n"], 1500)
    sums = tally(account(pen.lines, at(60)), FlatPrice(), ("run",))
    assert sums.cells[("train",)].usd(sums.rates) == Fraction("5.0994375")


class FlatPrice:
    def steps(self, terms: Terms, pool: str) -> list[tuple[int, Price]]:
        return [(0, Price(usd_per_hour=Decimal("27.197"), kind="override", as_of="", source="test"))]


def test_every_boundary_is_a_whole_tick() -> None:
    pen, _ = gang(1)
    pen.steps("1", 121, 7, 0.1234567, 3.3333333)
    assert all(
        one.start_unix_ns % TICK_NS == 0 and one.end_unix_ns % TICK_NS == 0 for one in partition(pen.lines, at(60))
    )
