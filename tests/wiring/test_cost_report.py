"""`gpuwatch cost-report` from the outside: periods, formats, own prices, an empty and a missing ledger."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.errors import ConfigError, GpuwatchError, StoreError, UsageError
from gpuwatch.model.ledger import LedgerLine
from gpuwatch.model.money import BillRow
from gpuwatch.store.sqlite import Store
from gpuwatch.wiring.cost_report import period, run
from tests.ledgers import Pen, at, example_b


class Sixty:
    """A clock that stands at minute 60."""

    def unix_ns(self) -> int:
        return at(60)

    def monotonic_ns(self) -> int:
        return 0


def report(lines: Sequence[LedgerLine], bills: Sequence[BillRow] = (), **words: Any) -> str:
    out = io.StringIO()
    assert run(Path("ledger.db"), out=out, clock=Sixty(), read=lambda _: (lines, bills), **words) == 0
    return out.getvalue()


def test_the_table_is_aligned_and_fits_a_terminal() -> None:
    text = report(example_b(), since="2021-12-01")
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= 100
    rows = lines[2 : lines.index("", 2)]
    assert rows[0].split() == ["category", "node-hours", "USD", "share", "provisional"]
    assert rows[2].split()[:3] == ["productive", "76.467", "2,079.66"]
    assert rows[-1].split()[:3] == ["total", "124.583", "3,388.29"]
    assert len({line.index(line.split()[2]) + len(line.split()[2]) for line in rows[2:-2]}) == 1  # one right edge
    flat = " ".join(text.split())
    assert "The categories sum to the priced time, $3,388.29: an estimate." in flat
    for word in ("Goodput 61.38 %", "Waste 36.63 %", "ETTR 61.67 %", "MTTR (run) 22.5 min", "$27.197"):
        assert word in flat


def test_json_says_the_same_and_amounts_are_texts() -> None:
    told = json.loads(report(example_b(), since="2021-12-01", by="incident", form="json"))
    assert told["total"]["usd"] == "3388.29"
    assert {row["keys"][0]: row["usd"] for row in told["rows"]} == {"F1": "1241.09", "(no fault)": "2147.20"}
    assert told["sums_to"] == "estimate"
    assert told["prices"][0]["usd_per_hour"] == "27.197"
    assert told["prices"][0]["source"]
    assert told["since_unix_ns"] == at(0)


@pytest.mark.parametrize(
    "by", ["category", "node", "run", "team", "user", "incident", "pool", "cause", "day", "team,category"]
)
def test_csv_rows_add_up_to_their_total(by: str) -> None:
    rows = list(csv.DictReader(io.StringIO(report(example_b(), by=by, form="csv"))))
    assert rows[-1][by.split(",")[0]] == "total"
    assert sum(Decimal(row["usd"]) for row in rows[:-1]) == Decimal(rows[-1]["usd"]) == Decimal("15343.64")


def test_an_empty_ledger_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "ledger.db")
    del store
    for form in ("table", "csv", "json"):
        assert run(tmp_path / "ledger.db", form=form) == 0
        said = capsys.readouterr()
        if form == "json":
            assert "Next:" in json.loads(said.out)["empty_because"]
        else:
            assert "Next:" in (said.out if form == "table" else said.err)
    assert run(tmp_path, form="table") == 0  # the aggregator's folder will do


def test_a_period_without_billed_time_names_the_one_there_is() -> None:
    text = " ".join(report(example_b(), until="2020-01-01").split())
    assert "the ledger knows 2021-11-30T20:29:00Z to 2021-12-01T01:00:00Z" in text.replace("20:28:59", "20:29:00")


def test_a_missing_ledger_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        run(tmp_path / "no.db")
    assert "--ledger" in caught.value.next_step
    assert not (tmp_path / "no.db").exists()


def test_a_real_ledger_file_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(tmp_path / "ledger.db").append(example_b())
    assert run(tmp_path / "ledger.db", until="2021-12-01T01:00", since="2021-12-01") == 0
    assert "3,388.29" in capsys.readouterr().out


def test_what_has_no_price_is_unknown_dollars() -> None:
    pen = Pen(sku="home-made")
    pen.node("n", 0, until=60)
    text = " ".join(report(pen.lines).split())
    assert "idle 1.000 unknown $" in text
    assert "unknown $ for 1.00 node-hours without a price" in text
    rows = list(csv.DictReader(io.StringIO(report(pen.lines, form="csv"))))
    assert rows[0]["usd"] == ""
    assert rows[0]["unpriced_node_hours"] == "1"


def test_own_prices_from_a_file(tmp_path: Path) -> None:
    pen = Pen(sku="home-made")
    pen.node("n", 0, until=60)
    own = tmp_path / "prices.toml"
    own.write_text('[skus.home-made]\nusd_per_hour = 1.25\nsource = "our invoice"\nas_of = "2021-01-01"\n')
    text = " ".join(report(pen.lines, prices=own).split())
    assert "idle 1.000 1.25" in text
    assert "$1.25 (override of 2021-01-01) for 1.000 node-hours; source: our invoice" in text
    own.write_text('[server]\nsecret_file = "x"\n[pools.a100]\nsku = "y"\nusd_per_hour = "2.5"\n')
    assert "2.50" in report(pen.lines, prices=own)  # an aggregator's own settings will do
    own.write_text('[sku.home-made]\nusd_per_hour = 1.25\n[pools.p]\nusd_per_hour = "much"\n')
    with pytest.raises(ConfigError) as caught:
        report(pen.lines, prices=own)
    assert "skus" in str(caught.value)
    assert "pools.p.usd_per_hour" in str(caught.value)
    with pytest.raises(ConfigError, match="--prices"):
        report(pen.lines, prices=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ({"form": "pdf"}, "csv, json, table"),
        ({"by": "colour"}, "category"),
        ({"by": "team,team"}, "two different"),
        ({"by": "team,run,node"}, "two different"),
        ({"by": ""}, "two different"),
        ({"since": "yesterday"}, "2026-11-30"),
        ({"last": "7"}, "24h"),
        ({"last": "0d"}, "24h"),
        ({"month": "2026-13"}, "2026-11"),
        ({"month": "2026-11", "last": "1d"}, "keep one"),
        ({"since": "2026-11-02", "until": "2026-11-01"}, "swap"),
        ({"basis": "gross"}, "billed"),
    ],
)
def test_words_that_do_not_fit(words: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError) as caught:
        report(example_b(), **words)
    assert part in caught.value.next_step
    assert isinstance(caught.value, GpuwatchError)


def test_periods() -> None:
    assert period(at(60), last="90m") == (at(-30), at(60))
    assert period(at(60), last="1w") == (at(60 - 7 * 24 * 60), at(60))
    assert period(at(60)) == (None, None)
    assert period(at(60), since="2021-12-01T01:00:00+01:00", until="2021-12-01T00:30:00.5Z") == (
        at(0),
        at(30) + 500_000_000,
    )
    december = period(at(60), month="2021-12")
    assert december[0] == at(0)
