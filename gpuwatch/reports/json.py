"""The whole report as one JSON object. Amounts and hours are strings, because a JSON number may lose digits."""

from __future__ import annotations

import msgspec

from gpuwatch.model.job_report import JobReport
from gpuwatch.model.report import CostReport
from gpuwatch.reports import ReportFormat

_encode = msgspec.json.Encoder(decimal_format="string").encode


def render(report: CostReport | JobReport) -> str:
    """Every field of the record, in the record's order, indented for reading."""
    return msgspec.json.format(_encode(report), indent=2).decode() + "\n"


REPORT = ReportFormat(render=render, render_jobs=render, suffix=".json")
