"""Ratios and times of a report: ranges for what is unknown, MTBF with its interval, MTTD, MTTR of runs and nodes."""

from __future__ import annotations

from fractions import Fraction

from gpuwatch.cost.goodput import RunTime, ettr, exposure_of, shares_of
from gpuwatch.cost.intervals import account
from gpuwatch.cost.report import make_report
from gpuwatch.model.money import Category
from gpuwatch.model.report import Figure
from gpuwatch.prices.book import PriceBook
from tests.ledgers import MINUTE, Pen, at, example_b, names

BOOK = PriceBook.bundled()


def figures(pen: Pen, now: float = 60) -> dict[str, Figure]:
    made = make_report(account(pen.lines, at(now)), BOOK, made_unix_ns=at(now))
    return {figure.name: figure for figure in made.figures}


def test_above_one_percent_unknown_every_ratio_is_a_range() -> None:
    shares = shares_of({Category.PRODUCTIVE: Fraction(90), Category.HUNG: Fraction(5), Category.UNKNOWN: Fraction(5)})
    assert shares is not None
    assert (shares.goodput.low, shares.goodput.high) == (Fraction(9, 10), Fraction(19, 20))
    assert (shares.waste.low, shares.waste.high) == (Fraction(1, 20), Fraction(1, 10))
    little = shares_of({Category.PRODUCTIVE: Fraction(99), Category.UNKNOWN: Fraction(1)})
    assert little is not None
    assert not little.goodput.is_range
    assert shares_of({}) is None


def test_several_runs_are_weighted_by_nodes() -> None:
    runs = [RunTime("a", 50, 0, 100, 1), RunTime("b", 90, 0, 100, 3)]
    found = ettr(runs)
    assert found is not None
    assert found.value == Fraction(50 + 270, 400)
    assert ettr([]) is None


def test_queueing_lowers_ettr_and_not_goodput() -> None:
    pen = Pen()
    pen.node("n", 0, until=15)
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 1, 15)
    pen.end("1", 15, "planned")
    pen.node("n", 45)
    pen.start("2", 45, ["n"])
    pen.phase("2", "init", 45, 45, resumed=1)
    pen.step("2", 2, 60)
    found = figures(pen)
    assert found["goodput"].value == 1
    assert found["ettr"].value == 0.5


def test_a_node_that_two_runs_share_is_exposed_once() -> None:
    pen = Pen()
    pen.node("n", 0)
    for run in ("a", "b"):
        pen.run = run
        pen.start("1", 0, ["n"], 4000)
    pen.fault("F", 30, 31, "n")
    pen.fault("elsewhere", 30, 31, "other")
    known = account(pen.lines, at(60))
    found = exposure_of(known.runs, known.faults)
    assert (found.node_ns, found.faults, found.elsewhere) == (60 * MINUTE, 1, 1)


def test_no_fault_gives_a_bound_and_a_fault_its_interval() -> None:
    pen = Pen()
    for name in names(4):
        pen.node(name, 0)
    pen.start("1", 0, names(4))
    found = figures(pen)["mtbf"]
    assert found.value is None
    assert found.low is not None
    assert round(found.low, 4) == round(4 / 3.6888794541, 4)
    pen.fault("F", 30, 31, names(1)[0])
    found = figures(pen)["mtbf"]
    assert found.value == 4
    assert found.low is not None
    assert found.high is not None
    assert (round(found.low, 3), round(found.high, 2)) == (round(4 / 5.571643, 3), round(4 / 0.025318, 2))


def test_a_stop_that_no_fault_explains_is_undetected() -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 1, 3)
    pen.end("1", 6)
    pen.fault("F", 30, 33, "n")
    text = figures(pen)["mttd"].text
    assert "3.0 min from onset to alarm, 1 detected, 1 not" in text


def test_a_run_that_never_came_back_is_counted_and_not_averaged() -> None:
    pen = Pen()
    pen.node("n", 0)
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 1, 3)
    pen.fault("F", 3, 4, "n")
    pen.end("1", 6, fault="F")
    found = figures(pen)["mttr_run"]
    assert found.value is None
    assert found.text == "1 stop, not made up for yet"


def test_mttr_of_a_node_is_until_it_or_its_replacement_is_in_service() -> None:
    pen = Pen()
    for name in ("a", "b", "c"):
        pen.node(name, 0)
        pen.fault(f"F-{name}", 3, 6, name)
        pen.state(name, 6, lifecycle="cordoned", fault=f"F-{name}")
    pen.state("a", 18, lifecycle="in_service")
    pen.born("b2", 9, fault="F-b")
    pen.state("b2", 24, lifecycle="in_service", health="healthy")
    found = figures(pen)["mttr_node"]
    assert found.value == (15 + 21) / 2 * 60
    assert "2 of 3 nodes" in found.text


def test_the_report_of_example_b_names_every_figure() -> None:
    pen = Pen()
    pen.lines = example_b()
    assert set(figures(pen)) == {"goodput", "waste", "unknown", "ettr", "mtbf", "mttd", "mttr_run"}
