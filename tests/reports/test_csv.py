"""CSV: plain numbers, an empty field for what is unknown."""

from __future__ import annotations

import csv
import io

from gpuwatch.reports.csv import REPORT
from tests.report_records import COST, JOBS


def test_csv_has_plain_numbers_and_an_empty_field_for_what_is_unknown() -> None:
    rows = list(csv.DictReader(io.StringIO(REPORT.render(COST))))
    assert [row["usd"] for row in rows] == ["33576.54", "", "-0.02", "33576.52"]
    assert rows[0]["node_hours"] == "1234.567891234"
    assert rows[1]["unpriced_node_hours"] == "2"
    assert rows[3]["team"] == "total"


def test_csv_leaves_an_unknown_amount_empty() -> None:
    render = REPORT.render_jobs
    assert render is not None
    rows = list(csv.DictReader(render(JOBS).splitlines()))
    assert [(row["account"][:5], row["usd"]) for row in rows] == [
        ("aaaaa", "4938268.00"),
        ("old", ""),
        ("total", "4938268.00"),
        ("idle", ""),
    ]
    assert rows[0]["gpu_seconds"] == str(1_234_567 * 3600)
