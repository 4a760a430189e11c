"""The table: narrow, whole, and plain about what it does not know."""

from __future__ import annotations

from gpuwatch.reports.table import REPORT
from tests.report_records import COST, JOBS, NO_COST, NO_JOBS


def test_the_table_keeps_to_its_width_and_says_everything() -> None:
    text = REPORT.render(COST)
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
    assert "Nothing. Next: begin." in REPORT.render(NO_COST)


def test_the_table_says_unknown_and_keeps_to_its_width() -> None:
    render = REPORT.render_jobs
    assert render is not None
    text = render(JOBS)
    old = next(line for line in text.splitlines() if line.startswith("old"))
    assert "unknown $" in old
    assert "0.00" not in old.replace("2.000", "")
    assert "UPPER BOUND" in text
    assert "all GPUs: $4.00 (given)" in text
    assert max(map(len, text.splitlines())) <= 100


def test_nothing_to_report_is_said() -> None:
    render = REPORT.render_jobs
    assert render is not None
    assert "no jobs" in render(NO_JOBS)
