"""JSON: every digit kept, null for what is unknown."""

from __future__ import annotations

import json

from gpuwatch.reports.json import REPORT
from tests.report_records import COST, JOBS


def test_json_keeps_every_digit() -> None:
    told = json.loads(REPORT.render(COST))
    assert told["rows"][0]["node_hours"] == "1234.567891234"
    assert told["rows"][2]["usd"] == "-0.02"
    assert told["prices"][1]["usd_per_hour"] is None
    assert told["figures"][0]["value"] == 0.6138


def test_json_has_null_for_unknown_and_texts_for_amounts() -> None:
    render = REPORT.render_jobs
    assert render is not None
    made = json.loads(render(JOBS))
    assert (made["rows"][1]["usd"], made["rows"][0]["usd"]) == (None, "4938268.00")
