"""Every report format over the same records: it renders, ends its last line, and gives the same text twice."""

from __future__ import annotations

import pytest

import gpuwatch.reports
from gpuwatch.model.report import CostReport
from gpuwatch.registry import leaves
from gpuwatch.reports import ReportFormat
from tests.report_records import COST, JOBS, NO_COST

FORMATS = leaves(gpuwatch.reports, "REPORT", ReportFormat)


def test_the_formats_that_are_there() -> None:
    assert set(FORMATS) >= {"table", "csv", "json"}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("report", [COST, NO_COST])
def test_every_format_renders_and_ends_its_last_line(name: str, report: CostReport) -> None:
    text = FORMATS[name].render(report)
    assert text.endswith("\n")
    assert FORMATS[name].render(report) == text
    assert FORMATS[name].suffix.startswith(".")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_a_job_report(name: str) -> None:
    render = FORMATS[name].render_jobs
    assert render is not None
    text = render(JOBS)
    assert text.endswith("\n")
    assert "FAILED" in text
