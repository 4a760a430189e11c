"""Every format over the same job report: nothing missing becomes 0, nothing is dropped, the table stays narrow."""

from __future__ import annotations

import csv
import json
from decimal import Decimal

import pytest

import gpuwatch.reports
from gpuwatch.model.job_report import GpuPrice, JobReport, JobRow
from gpuwatch.registry import leaves
from gpuwatch.reports import ReportFormat

FORMATS = leaves(gpuwatch.reports, "REPORT", ReportFormat)


def line(*keys: str, hours: int, usd: str | None, unpriced: int = 0, detail: str = "") -> JobRow:
    return JobRow(
        keys=keys,
        tries=1,
        gpu_seconds=hours * 3600,
        gpu_hours=Decimal(hours).quantize(Decimal("0.001")),
        usd=None if usd is None else Decimal(usd),
        unpriced_gpu_seconds=unpriced,
        share_percent=Decimal("50.0"),
        detail=detail,
    )


REPORT = JobReport(
    by=("account", "state"),
    source="sacct",
    since_unix_ns=1_793_491_200 * 10**9,
    until_unix_ns=1_793_577_600 * 10**9,
    made_unix_ns=1_793_577_600 * 10**9,
    rows=(
        line("a" * 90, "FAILED", hours=1_234_567, usd="4938268.00", detail="failed: at most this is lost"),
        line("old", "COMPLETED", hours=2, usd=None, unpriced=7200),
    ),
    total=line("total", hours=1_234_569, usd="4938268.00", unpriced=7200),
    sum_line="The lines sum.",
    idle=line("idle", hours=5, usd=None),
    said=("Failed: an UPPER BOUND.",),
    prices=(GpuPrice(what="all GPUs", usd_per_gpu_hour="4.00", kind="given", source="the command"),),
    findings=("a finding that is longer than a line " * 5,),
)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_a_job_report(name: str) -> None:
    render = FORMATS[name].render_jobs
    assert render is not None
    text = render(REPORT)
    assert text.endswith("\n")
    assert "FAILED" in text


def test_the_table_says_unknown_and_keeps_to_its_width() -> None:
    render = FORMATS["table"].render_jobs
    assert render is not None
    text = render(REPORT)
    old = next(line for line in text.splitlines() if line.startswith("old"))
    assert "unknown $" in old
    assert "0.00" not in old.replace("2.000", "")
    assert "UPPER BOUND" in text
    assert "all GPUs: $4.00 (given)" in text
    assert max(map(len, text.splitlines())) <= 100


def test_csv_leaves_an_unknown_amount_empty() -> None:
    render = FORMATS["csv"].render_jobs
    assert render is not None
    rows = list(csv.DictReader(render(REPORT).splitlines()))
    assert [(row["account"][:5], row["usd"]) for row in rows] == [
        ("aaaaa", "4938268.00"),
        ("old", ""),
        ("total", "4938268.00"),
        ("idle", ""),
    ]
    assert rows[0]["gpu_seconds"] == str(1_234_567 * 3600)


def test_json_has_null_for_unknown_and_texts_for_amounts() -> None:
    render = FORMATS["json"].render_jobs
    assert render is not None
    made = json.loads(render(REPORT))
    assert (made["rows"][1]["usd"], made["rows"][0]["usd"]) == (None, "4938268.00")


def test_nothing_to_report_is_said() -> None:
    render = FORMATS["table"].render_jobs
    assert render is not None
    assert "no jobs" in render(
        JobReport(
            by=("state",),
            source="sacct",
            since_unix_ns=None,
            until_unix_ns=None,
            made_unix_ns=0,
            empty_because="The dump has a header and no jobs.",
        )
    )
