"""Every report format over the same record: nothing is rounded again, nothing dropped, nothing missing becomes 0."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal

import pytest

import gpuwatch.reports
from gpuwatch.model.report import CostReport, Figure, PriceUsed, ReportRow
from gpuwatch.registry import leaves
from gpuwatch.reports import ReportFormat

FORMATS = leaves(gpuwatch.reports, "REPORT", ReportFormat)

REPORT = CostReport(
    by=("team", "category"),
    since_unix_ns=1_638_316_800_000_000_000,
    until_unix_ns=1_638_320_400_000_000_000,
    made_unix_ns=1_638_320_400_000_000_000,
    basis="list",
    rows=(
        ReportRow(
            keys=("a team whose name is much longer than any column should be", "productive"),
            node_hours=Decimal("1234.567891234"),
            gpu_hours=Decimal("9876.5"),
            usd=Decimal("33576.54"),
            provisional_usd=Decimal("12.00"),
            share_percent=Decimal("100.3"),
        ),
        ReportRow(keys=("blue", "idle"), node_hours=Decimal(2), unpriced_node_hours=Decimal(2)),
        ReportRow(keys=("blue", "billing_roundup"), usd=Decimal("-0.02"), detail="slivers"),
    ),
    total=ReportRow(
        keys=("total",),
        node_hours=Decimal("1236.567891234"),
        usd=Decimal("33576.52"),
        provisional_usd=Decimal("12.00"),
        unpriced_node_hours=Decimal(2),
    ),
    sum_line="The categories sum to the priced time, $33,576.52: an estimate.",
    sums_to="estimate",
    figures=(Figure(name="goodput", text="61.38 % of node-time", value=0.6138, unit="ratio"),),
    prices=(
        PriceUsed(what="X", usd_per_hour=Decimal("27.197"), kind="ondemand", as_of="2026-06-18", source="a list"),
        PriceUsed(what="Y", usd_per_hour=None, node_hours=Decimal(2)),
    ),
    below={"tax": Decimal("1.00")},
    findings=("something to look at",),
)
EMPTY = CostReport(
    by=("category",), since_unix_ns=None, until_unix_ns=0, made_unix_ns=0, empty_because="Nothing. Next: begin."
)


def test_the_formats_that_are_there() -> None:
    assert set(FORMATS) >= {"table", "csv", "json"}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("report", [REPORT, EMPTY])
def test_every_format_renders_and_ends_its_last_line(name: str, report: CostReport) -> None:
    text = FORMATS[name].render(report)
    assert text.endswith("\n")
    assert FORMATS[name].render(report) == text
    assert FORMATS[name].suffix.startswith(".")


def test_the_table_keeps_to_its_width_and_says_everything() -> None:
    text = FORMATS["table"].render(REPORT)
    assert max(map(len, text.splitlines())) <= 100
    for part in (
        "33,576.54",
        "-0.02",
        "unknown $",
        "Below the total: tax 1.00 USD",
        "$12.00 of it is provisional",
        "Goodput",
        "Y: no price known, unknown $ for 2.000 node-hours",
        "something to look at",
        "from 2021-12-01 00:00:00 to 2021-12-01 01:00:00 UTC",
    ):
        assert part in text
    assert "Nothing. Next: begin." in FORMATS["table"].render(EMPTY)


def test_csv_has_plain_numbers_and_an_empty_field_for_what_is_unknown() -> None:
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"].render(REPORT))))
    assert [row["usd"] for row in rows] == ["33576.54", "", "-0.02", "33576.52"]
    assert rows[0]["node_hours"] == "1234.567891234"
    assert rows[1]["unpriced_node_hours"] == "2"
    assert rows[3]["team"] == "total"


def test_json_keeps_every_digit() -> None:
    told = json.loads(FORMATS["json"].render(REPORT))
    assert told["rows"][0]["node_hours"] == "1234.567891234"
    assert told["rows"][2]["usd"] == "-0.02"
    assert told["prices"][1]["usd_per_hour"] is None
    assert told["figures"][0]["value"] == 0.6138
