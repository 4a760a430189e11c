"""The worked examples, every line to the cent, from ledgers written line by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest

from gpuwatch.cost.bill_of_materials import HOURS_A_MONTH, BomLine, priced
from gpuwatch.cost.intervals import account
from gpuwatch.cost.report import incident_prices, make_report
from gpuwatch.model.ledger import LedgerLine
from gpuwatch.model.report import CostReport
from gpuwatch.prices.book import PriceBook
from tests.ledgers import at, example_a, example_b, example_c, five_of_a_hundred

BOOK = PriceBook.bundled()
SHARED = {
    "productive": "2079.66",
    "checkpoint": "56.21",
    "recovery": "393.45",
    "dead": "2.27",
    "draining": "4.53",
    "spare": "11.33",
}
EXAMPLES: dict[str, tuple[Callable[[], list[LedgerLine]], dict[str, str], str]] = {
    "A": (example_a, SHARED | {"lost_work": "562.07", "hung": "278.77"}, "3388.29"),
    "B": (example_b, SHARED | {"lost_work": "659.64", "hung": "181.20"}, "3388.29"),
    "C": (
        example_c,
        {"productive": "1967.25", "checkpoint": "37.47", "evaluation": "674.48", "startup": "18.74"},
        "2697.94",
    ),
}
NODE_MINUTES = {
    "A": {"productive": "4588", "lost_work": "1240", "hung": "615", "recovery": "868", "spare": "25"},
    "B": {"productive": "4588", "lost_work": "1455.25", "hung": "399.75", "recovery": "868", "draining": "10"},
    "C": {"productive": "4340", "evaluation": "1488", "startup": "41.333333"},
}


def report(lines: Sequence[LedgerLine], *by: str) -> CostReport:
    known = account(lines, at(60))
    return make_report(known, BOOK, by=by or ("category",), since=at(0), until=at(60), made_unix_ns=at(60))


def figure(made: CostReport, name: str) -> float:
    found = next(figure for figure in made.figures if figure.name == name)
    assert found.value is not None
    return found.value


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_line_of_the_example_to_the_cent(example: str) -> None:
    ledger, expected, total = EXAMPLES[example]
    made = report(ledger())
    assert {row.keys[0]: str(row.usd) for row in made.rows} == expected
    assert str(made.total.usd) == total
    assert {word: str(usd) for word, usd in made.categories_usd.items()} == expected


@pytest.mark.parametrize("example", EXAMPLES)
def test_node_minutes_of_the_example(example: str) -> None:
    made = report(EXAMPLES[example][0]())
    minutes = {row.keys[0]: row.node_hours * 60 for row in made.rows}
    for category, expected in NODE_MINUTES[example].items():
        # A's steps take 1 ms, not 0: the open one is 123 ms of lost work; boundaries are snapped to 3.6 µs
        assert abs(minutes[category] - Decimal(expected)) < Decimal("0.0021"), category


@pytest.mark.parametrize("example", ["A", "B"])
def test_the_fault_costs_183_times_the_dead_node(example: str) -> None:
    lines = EXAMPLES[example][0]()
    assert incident_prices(lines, (), BOOK, at(60)) == {"F1": Decimal("1241.09")}
    by_node = {row.keys: row.usd for row in report(lines, "node", "incident").rows}
    alone = by_node["node-017", "F1"]
    rows = [row for row in report(lines, "node", "category").rows if row.keys[0] == "node-017"]
    assert sum(row.usd for row in rows if row.keys[1] in ("dead", "draining")) == Decimal("6.80")
    assert Decimal("1241.09") / Decimal("6.80") == pytest.approx(Decimal("182.5"), abs=Decimal("0.1"))
    assert alone > Decimal("6.80")  # its own lost work carries the fault too


@pytest.mark.parametrize(
    ("example", "goodput", "ettr", "waste"),
    [("A", "61.38", "61.67", "36.63"), ("B", "61.38", "61.67", "36.63"), ("C", "72.92", "72.92", "0.00")],
)
def test_ratios_of_the_example(example: str, goodput: str, ettr: str, waste: str) -> None:
    made = report(EXAMPLES[example][0]())
    assert f"{100 * figure(made, 'goodput'):.2f}" == goodput
    assert f"{100 * figure(made, 'ettr'):.2f}" == ettr
    assert f"{100 * figure(made, 'waste'):.2f}" == waste
    assert figure(made, "unknown") == 0


def test_the_run_of_b_is_back_after_22_and_a_half_minutes() -> None:
    made = report(example_b())
    assert round(figure(made, "mttr_run") / 60, 4) == 22.5
    text = next(figure.text for figure in made.figures if figure.name == "mttr_run")
    for part in ("detect 5.0 min", "decide 0.0 s", "wait 4.0 min", "start 3.0 min", "redo 10.5 min"):
        assert part in text


def test_the_launch_time_changes_no_line_of_a() -> None:
    lines = example_a()
    usual = report(lines).categories_usd
    for minute in (25, 27, 31):
        moved = [
            msgspec.structs.replace(line, at_unix_ns=at(minute)) if line.at_unix_ns == at(29) else line
            for line in lines
        ]
        assert report(moved).categories_usd == usual


def test_printed_part_of_the_incident_stands_beside_its_lifetime() -> None:
    known = account(example_b(), at(60))
    made = make_report(known, BOOK, by=("incident",), since=at(20), until=at(30), made_unix_ns=at(60))
    row = next(row for row in made.rows if row.keys == ("F1",))
    assert row.lifetime_usd == Decimal("1241.09")
    assert row.usd < row.lifetime_usd
    assert row.detail == "node_dead, node-017, unreachable"


def test_five_dead_of_a_hundred_cost_2311_75_an_event() -> None:
    lines = five_of_a_hundred()
    assert incident_prices(lines, (), BOOK, at(61)) == {"F5": Decimal("2311.75")}
    made = make_report(account(lines, at(61)), BOOK, by=("incident", "category"), made_unix_ns=at(61))
    rows = {row.keys[1]: str(row.usd) for row in made.rows if row.keys[0] == "F5"}
    assert rows == {
        "lost_work": "679.93",
        "hung": "215.31",
        "recovery": "1359.85",
        "dead": "11.33",
        "draining": "45.33",
    }


def _bom(what: str, quantity: str, unit_usd: str, hours: int = 1) -> BomLine:
    return BomLine(what=what, quantity=Decimal(quantity), unit_usd=Decimal(unit_usd), hours=Decimal(hours))


def test_bill_of_materials_to_the_cent() -> None:
    common = [
        _bom("ND96asr_v4", "124", "27.197", HOURS_A_MONTH),
        _bom("D16s_v5", "2", "0.768", HOURS_A_MONTH),
        _bom("Azure Firewall Standard", "1", "1.25", HOURS_A_MONTH),
        _bom("NAT gateway", "1", "0.045", HOURS_A_MONTH),
        _bom("Azure NetApp Files Premium", "348160", "0.000403", HOURS_A_MONTH),
    ]
    amounts, total = priced([*common, _bom("Blob, hot", "3220", "0.018")])
    expected = ["2461872.44", "1121.28", "912.50", "32.85", "102425.19", "57.96"]
    assert [str(amount) for amount in amounts] == expected
    assert str(total) == "2566422.22"
    assert str(priced([*common, _bom("firewall traffic", "4872.5", "0.016")])[1]) == "2566442.22"
    assert str(priced([*common, _bom("Blob, flat", "3150", "0.0184")])[1]) == "2566422.22"


@pytest.mark.parametrize(
    ("quantity", "usd", "hours", "expected"),
    [
        ("124", "27.197", "730", "2461872.44"),
        ("124", "32.77", "730", "2966340.40"),
        ("124", "27.197", "720", "2428148.16"),
        ("124", "27.197", "744", "2509086.43"),
        ("128", "27.197", "730", "2541287.68"),
        ("129", "27.197", "730", "2561141.49"),
        ("124", "22.032", "730", "1994336.64"),
        ("124", "32.7726", "730", "2966575.75"),
        ("124", "32.77", "1336.56", "5431084.83"),  # 55.69 days
        ("142", "32.77", "1336.56", "6219468.11"),
        ("124", "32.77", "819.12", "3328477.74"),  # 34.13 days
        ("100", "27.197", "1", "2719.70"),
        ("5", "27.197", "1", "135.99"),
        ("100", "32.77", "10", "32770.00"),
    ],
)
def test_arithmetic_of_the_seed(quantity: str, usd: str, hours: str, expected: str) -> None:
    line = BomLine(what="VM", quantity=Decimal(quantity), unit_usd=Decimal(usd), hours=Decimal(hours))
    assert str(priced([line])[1]) == expected


def test_the_two_totals_of_the_article_differ_by_fifty_dollars() -> None:
    month, total = Fraction("2566422.22"), Fraction("6416105.55")
    assert total - month * Fraction("2.5") == 50
    assert Fraction("2566442.22") * Fraction("2.5") == total
