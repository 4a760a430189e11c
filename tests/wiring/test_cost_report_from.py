"""`gpuwatch cost-report --from-sacct`: the whole way from a dump to a page, and every word that does not fit."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuwatch.cli import app
from gpuwatch.errors import GpuwatchError, HistoryError, UsageError

HEADER = "JobID|JobIDRaw|User|Account|Partition|State|Submit|Start|End|ElapsedRaw|AllocTRES"


def line(
    job: str, state: str, hours: int, gpus: int, *, day: str = "2026-10-05", user: str = "ada", part: str = "h100"
) -> str:
    times = f"{day}T00:00:00|{day}T00:00:00|{day}T{hours:02d}:00:00|{hours * 3600}"
    return f"{job}|{job}|{user}|llm|{part}|{state}|{times}|cpu=8,gres/gpu={gpus},node=1"


EXAMPLE = "\n".join(
    (
        HEADER,
        line("1", "COMPLETED", 10, 8),
        line("2", "NODE_FAIL", 5, 8, user="bob", part="a100"),
        line("3", "FAILED", 1, 2),
        line("3.batch", "FAILED", 1, 2),
        "3|cut",
        "4_[1-3]|4|ada|llm|h100|PENDING|2026-10-05T00:00:00|Unknown|Unknown|0|",
    )
)


@pytest.fixture
def dump(tmp_path: Path) -> str:
    (tmp_path / "jobs.txt").write_text(EXAMPLE)
    return str(tmp_path / "jobs.txt")


def run(*words: str, stdin: str | None = None) -> str:
    said = CliRunner().invoke(app, ["cost-report", *words], input=stdin)
    if isinstance(said.exception, GpuwatchError):
        raise said.exception
    assert said.exit_code == 0, said.output
    return said.stdout


def as_json(*words: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(run(*words, "--json", "--tz", "UTC"))
    return made


PAGE = """\
GPU time by state, from 2026-10-05 00:00:00 to 2026-10-05 10:00:00 UTC (sacct)

Waste, an UPPER BOUND: 42.000 GPU-hours, at most $142.78 of jobs that failed. Give --fleet-gpus to
see what was in no job.

state      tries  GPU-hours     USD   share
COMPLETED      1     80.000  271.97  65.6 %
NODE_FAIL      1     40.000  135.98  32.8 %  failed: at most this is lost
FAILED         1      2.000    6.80   1.6 %  failed: at most this is lost
PENDING        0      0.000    0.00   0.0 %  3 never started
total          3    122.000  414.75  100.0 %

The lines sum to 122.000 GPU-hours in 3 tries of jobs (3 more never started), $414.75 at the prices
below. An estimate from sacct, not a bill.

Failed: 42.000 GPU-hours, at most $142.78: an UPPER BOUND of what failures cost. A job that saves
and then fails loses only what came after its last save; a job history does not know when it saved.
"""


def test_the_worked_example_as_a_page(dump: str) -> None:
    page = run("--from-sacct", dump, "--tz", "UTC", "--sku", "ND96asr_v4", "--region", "eastus")
    told = [" ".join(line.split()) for line in page.splitlines()]
    for expected in PAGE.splitlines():
        assert " ".join(expected.split()) in told
    assert "azure eastus ND96asr_v4, $27.197 for 8 GPUs: $3.399625" in " ".join(told)
    assert "line 6: it has 2 fields, the header 11" in " ".join(told)


def test_how_many_never_started_is_never_cut_off(tmp_path: Path) -> None:
    waited = "2|2|ada|llm|h100|CANCELLED by 0|2026-10-05T00:00:00|None|2026-10-06T00:00:00|0|"
    rows = [HEADER, line("1", "CANCELLED by 7", 9, 8000, user="a" * 30), waited.replace("ada", "a" * 30)]
    (tmp_path / "jobs.txt").write_text("\n".join(rows))
    page = run("--from-sacct", str(tmp_path / "jobs.txt"), "--tz", "UTC", "--by", "user,state")
    assert "  1 never started\n" in page
    assert max(map(len, page.splitlines())) <= 100


def test_standard_input_and_an_equals_sign(dump: str) -> None:
    assert run("--from-sacct", "-", "--tz", "UTC", stdin=EXAMPLE) == run(f"--from-sacct={dump}", "--tz", "UTC")


def test_without_a_price_dollars_are_unknown(dump: str) -> None:
    page = run("--from-sacct", dump)
    assert "unknown $" in page
    assert "$0" not in page
    assert as_json("--from-sacct", dump)["total"]["usd"] is None


def test_prices_by_partition(dump: str) -> None:
    prices = ("--usd-per-gpu-hour", "h100=4", "--sku", "a100=ND96asr_v4", "--region", "eastus")
    made = as_json("--from-sacct", dump, "--by", "partition,state", *prices)
    assert {tuple(row["keys"]): row["usd"] for row in made["rows"]} == {
        ("h100", "COMPLETED"): "320.00",
        ("h100", "FAILED"): "8.00",
        ("h100", "PENDING"): "0.00",
        ("a100", "NODE_FAIL"): "135.99",
    }
    assert made["total"]["usd"] == "463.99"


def test_ones_own_price_of_a_machine(dump: str, tmp_path: Path) -> None:
    own = tmp_path / "prices.toml"
    own.write_text('[skus.ND96asr_v4]\nusd_per_hour = "8.00"\nsource = "our contract"\n')
    made = as_json("--from-sacct", dump, "--sku", "ND96asr_v4", "--region", "eastus", "--prices", str(own))
    assert made["total"]["usd"] == "122.00"
    assert made["prices"][0]["source"] == "our contract"


def test_csv_is_rows_and_the_rest_goes_to_stderr(dump: str) -> None:
    said = CliRunner().invoke(
        app, ["cost-report", "--from-sacct", dump, "--tz", "UTC", "--format", "csv", "--by", "user"]
    )
    rows = list(csv.DictReader(said.stdout.splitlines()))
    assert [(row["user"], row["gpu_hours"], row["usd"]) for row in rows] == [
        ("ada", "82.000", ""),
        ("bob", "40.000", ""),
        ("total", "122.000", ""),
    ]
    assert "UPPER BOUND" in said.stderr


def test_periods_months_and_the_fleet(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    over = line("2", "COMPLETED", 1, 8).replace("2026-10-05T01:00:00|3600", "2026-11-05T00:00:00|2678400")
    file.write_text("\n".join((HEADER, line("1", "COMPLETED", 10, 8, day="2026-09-30"), over)))
    months = {row["keys"][0]: row["gpu_hours"] for row in as_json("--from-sacct", str(file), "--by", "month")["rows"]}
    assert months == {"2026-09": "80.000", "2026-10": f"{8 * 27 * 24}.000", "2026-11": f"{8 * 4 * 24}.000"}
    made = as_json("--from-sacct", str(file), "--month", "2026-09", "--fleet-gpus", "16", "--usd-per-gpu-hour", "2")
    assert (made["total"]["gpu_hours"], made["idle"]["gpu_hours"]) == ("80.000", f"{16 * 720 - 80}.000")
    assert made["idle"]["usd"] == f"{2 * (16 * 720 - 80)}.00"
    assert "lie outside the period" in run("--from-sacct", str(file), "--month", "2026-01")


CLUSTERS = Path(__file__).parent.parent / "cost" / "acme_cluster_summary.csv"  # its source: test_job_history.py


@pytest.mark.parametrize(
    ("cluster", "hours", "failed_usd"),
    [
        ("Seren", ("1266831.283", "3965162.364", "743179.850", "5975173.496"), "3044250.46"),
        ("Kalos", ("463245.874", "899778.351", "118414.681", "1481438.906"), "485056.14"),
        ("Philly", ("613937.893", "562590.571", "738670.850", "1915199.314"), "3025780.47"),
        ("Helios", ("11109526.756", "8531974.757", "2024537.417", "21666038.930"), "8293011.40"),
    ],
)
def test_the_published_clusters_as_a_dump(
    tmp_path: Path, cluster: str, hours: tuple[str, ...], failed_usd: str
) -> None:
    """Their GPU-seconds by final state, as rows of jobs that hold exactly as much."""
    summary = next(row for row in csv.DictReader(CLUSTERS.read_text().splitlines()) if row["id"] == cluster)
    out = io.StringIO()
    out.write("State|Start|End|JobID|JobIDRaw|Submit|ElapsedRaw|AllocTRES\n")
    job, hour_s = 0, 3600
    for name, state in (("complete", "COMPLETED"), ("cancel", "CANCELLED by 7"), ("fail", "FAILED")):
        left = int(float(summary[f"{name}_gpu_time"]))
        for gpus, held_s in ((200_000, hour_s), (1024, hour_s), (7, hour_s), (1, hour_s), (1, 1)):
            count, left = divmod(left, gpus * held_s) if held_s > 1 else (left > 0, 0)
            whole = held_s if held_s > 1 else int(float(summary[f"{name}_gpu_time"])) % hour_s
            for _ in range(count):
                job += 1
                end = f"2026-10-05T{whole // hour_s:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
                out.write(
                    f"{state}|2026-10-05T00:00:00|{end}|{job}|{job}|2026-10-04T00:00:00|{whole}|gres/gpu={gpus}\n"
                )
    file = tmp_path / "jobs.txt"
    file.write_text(out.getvalue())
    made = as_json("--from-sacct", str(file), "--usd-per-gpu-hour", "4.09625", "--by", "group")
    rows = {row["keys"][0]: row["gpu_hours"] for row in made["rows"]}
    assert (rows["completed"], rows["cancelled"], rows["failed"], made["total"]["gpu_hours"]) == hours
    assert made["lost_at_most"]["usd"] == failed_usd


@pytest.mark.parametrize(
    ("words", "kind", "what"),
    [
        (("--from-sacct", "/nowhere/jobs.txt"), HistoryError, "cannot be read"),
        (("--from-sacct", "/"), HistoryError, "cannot be read"),
        (("--from-sacct",), UsageError, "needs a file"),
        (("--from-qacct", "FILE"), UsageError, "no --from-qacct"),
        (("--from-sacct", "FILE", "--from-sacct", "FILE"), UsageError, "one history"),
        (("--from-sacct", "FILE", "--by", "team"), UsageError, "cannot be split by team"),
        (("--from-sacct", "FILE", "--by", "user,state,month"), UsageError, "cannot split"),
        (("--from-sacct", "FILE", "--format", "yaml"), UsageError, "no format"),
        (("--from-sacct", "FILE", "--tz", "Mars/Olympus"), UsageError, "is not known"),
        (("--from-sacct", "FILE", "--usd-per-gpu-hour", "cheap"), UsageError, "is no price"),
        (("--from-sacct", "FILE", "--usd-per-gpu-hour", "-1"), UsageError, "is no price"),
        (
            ("--from-sacct", "FILE", "--usd-per-gpu-hour", "1", "--sku", "ND96asr_v4", "--region", "eastus"),
            UsageError,
            "two prices",
        ),
        (("--from-sacct", "FILE", "--sku", "ND96asr_v4"), UsageError, "in 3 places"),
        (("--from-sacct", "FILE", "--sku", "ND96asr_v5"), UsageError, "no machine type"),
        (("--from-sacct", "FILE", "--sku", "ND96asr_v4", "--region", "mars"), UsageError, "elsewhere only"),
        (("--from-sacct", "FILE", "--region", "eastus"), UsageError, "name no machine"),
        (("--from-sacct", "FILE", "--since", "2099-01-01"), UsageError, "in the future"),
        (("--fleet-gpus", "8"), UsageError, "belongs to a history from elsewhere"),
    ],
)
def test_words_that_do_not_fit(dump: str, words: tuple[str, ...], kind: type[GpuwatchError], what: str) -> None:
    with pytest.raises(kind, match=what) as caught:
        run(*(dump if word == "FILE" else word for word in words))
    assert caught.value.next_step


def test_a_dump_cannot_steer_the_terminal(dump: str) -> None:
    page = run(
        "--from-sacct", "-", "--by", "user", stdin=EXAMPLE.replace("ada", "\x1b[2Jada\x07").replace("3|cut", "\x1b[31m")
    )
    assert "?[2Jada?" in page
    assert "\x1b" not in page


def test_a_price_is_never_rounded_away(dump: str) -> None:
    made = as_json("--from-sacct", dump, "--usd-per-gpu-hour", "0.0001")
    assert Decimal(made["total"]["usd"]) == Decimal("0.01")


@pytest.mark.parametrize("watched", [True, False])
def test_who_waits_at_a_terminal_sees_it_go_on_and_nobody_else_gets_a_bar(watched: bool) -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gpuwatch", "cost-report", "--from-sacct", "-", "--tz", "UTC"],
            input=EXAMPLE.encode(),
            stdout=subprocess.PIPE,
            stderr=theirs if watched else subprocess.PIPE,
            env=os.environ | {"TERM": "xterm"},
            check=True,
            timeout=60,
        )
        os.set_blocking(ours, False)
        seen = os.read(ours, 1 << 16) if watched else done.stderr
    finally:
        os.close(ours)
        os.close(theirs)
    assert (b" rows " in seen) is watched
    assert done.stdout.startswith(b"GPU time by state")
