"""Rows for a spreadsheet, and a last one `total`. Decimal points, no thousands marks; empty is unknown."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

from gpuwatch.model.job_report import JobReport
from gpuwatch.model.report import CostReport, ReportRow
from gpuwatch.reports import ReportFormat

COLUMNS = (
    "node_hours",
    "gpu_hours",
    "usd",
    "provisional_usd",
    "unpriced_node_hours",
    "lifetime_usd",
    "share_percent",
    "detail",
)


def render(report: CostReport) -> str:
    """Header, rows, total. The amounts of the rows add up to the total's."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*report.by, *COLUMNS])
    for row in report.rows:
        writer.writerow([*row.keys, *_cells(row)])
    total = ["total", *("" for _ in report.by[1:])]
    writer.writerow([*total, *_cells(report.total)])
    return out.getvalue()


JOB_COLUMNS = (
    "tries",
    "gpu_seconds",
    "gpu_hours",
    "usd",
    "unpriced_gpu_seconds",
    "share_percent",
    "detail",
    "never_started",
)


def render_jobs(report: JobReport) -> str:
    """Header, lines, total, and the idle capacity where the fleet's size is known. An amount without price is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*report.by, *JOB_COLUMNS])
    for row in (*report.rows, report.total, *((report.idle,) if report.idle is not None else ())):
        keys = [*row.keys, *("" for _ in report.by[len(row.keys) :])]
        amounts = [_plain(row.gpu_hours), _plain(row.usd)]
        share = _plain(row.share_percent)
        rest = [row.unpriced_gpu_seconds, share, row.detail, row.never_started]
        writer.writerow([*keys, row.tries, row.gpu_seconds, *amounts, *rest])
    return out.getvalue()


def _cells(row: ReportRow) -> list[str]:
    # What has no price has no amount: if all of a row's time is without one, its usd is empty, not 0.
    no_price = bool(row.unpriced_node_hours) and row.unpriced_node_hours == row.node_hours and not row.usd
    return [
        _plain(row.node_hours),
        _plain(row.gpu_hours),
        "" if no_price else _plain(row.usd),
        "" if no_price else _plain(row.provisional_usd),
        _plain(row.unpriced_node_hours),
        _plain(row.lifetime_usd),
        _plain(row.share_percent),
        row.detail,
    ]


def _plain(value: Decimal | None) -> str:
    return "" if value is None else f"{value:f}"


REPORT = ReportFormat(render=render, render_jobs=render_jobs, suffix=".csv")
