"""MONEY -> TEXT. One format per file, found by its file name: `--format table`. Pure: a record in, text out.

In: a `CostReport` (model/report.py), or the `JobReport` (model/job_report.py) of a history from elsewhere. Its amounts
are rounded and add up already: a format never rounds, adds or drops money, and never prints a missing amount as 0. Out:
the whole text, ending in a newline.
A leaf ends in one typed line, `REPORT = ReportFormat(...)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuwatch.model.job_report import JobReport
from gpuwatch.model.report import CostReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFormat:
    """One way to print a cost report."""

    render: Callable[[CostReport], str]
    suffix: str  # of a file that holds it, for example `.csv`
    render_jobs: Callable[[JobReport], str] | None = None  # None: it cannot hold a job history
    for_people: bool = False  # may be wrapped and aligned; programs must not read it
