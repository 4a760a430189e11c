"""GPU time of jobs and its money: the published clusters, bounds, unknown prices, lines that add up.

`acme_cluster_summary.csv` is InternLM/AcmeTrace @6d6ac9c, data/cluster_summary.csv, CC BY 4.0: the GPU-seconds by final
state of Acme (Seren, Kalos), Philly and Helios.
"""

from __future__ import annotations

import csv
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gpuwatch.cost.job_history import Rate, Rates, hours_of, make_job_report, month_cuts
from gpuwatch.model.job_history import JobGroup, JobHistory, JobSum, Rejected
from gpuwatch.model.job_report import GpuPrice, JobReport

NOW = 1_796_000_000
DAY = 86_400
GROUPS: tuple[JobGroup, ...] = (
    "completed",
    "failed",
    "cancelled",
    "preempted",
    "requeued",
    "running",
    "pending",
    "other",
)


def rate(usd: str, from_unix_s: int = 0) -> Rate:
    price = GpuPrice(what=f"at {usd}", usd_per_gpu_hour=usd)
    return Rate(from_unix_s=from_unix_s, usd_per_gpu_hour=Fraction(usd), price=price)


def one(
    state: str, group: JobGroup, gpu_seconds: int, *, tries: int = 1, begins: int = 0, keys: tuple[str, ...] = ()
) -> JobSum:
    return JobSum(begins_unix_s=begins, state=state, group=group, keys=keys, tries=tries, gpu_seconds=gpu_seconds)


def report(
    *sums: JobSum,
    rates: Rates | None = None,
    by: tuple[str, ...] = ("state",),
    keys: tuple[str, ...] = (),
    fleet_gpus: int | None = None,
    history: JobHistory | None = None,
    begins: int | None = 0,
    ends: int | None = DAY,
    since: int | None = None,
    until: int | None = None,
) -> JobReport:
    own = history or JobHistory(source="sacct", sums=sums, rows=len(sums), begins_unix_s=begins, ends_unix_s=ends)
    return make_job_report(
        own,
        rates or {},
        by=by,
        keys=keys,
        made_unix_s=NOW,
        fleet_gpus=fleet_gpus,
        since_unix_s=since,
        until_unix_s=until,
    )


# Worked out apart from this code: GPU-seconds / 3600 to three places, times 32.77 / 8 to two, each on its own.
PUBLISHED = {
    "Seren": {
        "complete": ("1266831.283", "5189257.64"),
        "cancel": ("3965162.364", "16242296.33"),
        "fail": ("743179.850", "3044250.46"),
        "total": ("5975173.496", "24475804.43"),
    },
    "Kalos": {
        "complete": ("463245.874", "1897570.91"),
        "cancel": ("899778.351", "3685717.07"),
        "fail": ("118414.681", "485056.14"),
        "total": ("1481438.906", "6068344.12"),
    },
    "Philly": {
        "complete": ("613937.893", "2514843.09"),
        "cancel": ("562590.571", "2304511.63"),
        "fail": ("738670.850", "3025780.47"),
        "total": ("1915199.314", "7845135.19"),
    },
    "Helios": {
        "complete": ("11109526.756", "45507398.97"),
        "cancel": ("8531974.757", "34949101.60"),
        "fail": ("2024537.417", "8293011.40"),
        "total": ("21666038.930", "88749511.97"),
    },
}


@pytest.mark.parametrize("cluster", PUBLISHED)
def test_the_published_clusters(cluster: str) -> None:
    text = (Path(__file__).parent / "acme_cluster_summary.csv").read_text()
    line = next(line for line in csv.DictReader(text.splitlines()) if line["id"] == cluster)
    groups: dict[str, JobGroup] = {"complete": "completed", "cancel": "cancelled", "fail": "failed"}
    # Each sum in as many parts as its jobs could have had: adding must not lose a second.
    sums = []
    for name, group in groups.items():
        seconds, parts = int(float(line[f"{name}_gpu_time"])), 1009
        sums += [one(group.upper(), group, seconds // parts, keys=(f"u{n}",)) for n in range(parts)]
        sums.append(one(group.upper(), group, seconds % parts, keys=("u0",)))
    made = report(*sums, rates={"": [rate("4.09625")]}, keys=("user",))
    rows = {row.keys[0].lower(): row for row in made.rows} | {"total": made.total}
    for name, (hours, usd) in PUBLISHED[cluster].items():
        row = rows[groups.get(name, "total")]
        assert (row.gpu_hours, row.usd) == (Decimal(hours), Decimal(usd)), name
    assert sum(row.gpu_seconds for row in made.rows) == made.total.gpu_seconds
    assert made.lost_at_most is not None
    assert made.lost_at_most.usd == Decimal(PUBLISHED[cluster]["fail"][1])
    assert made.total.share_percent == Decimal("100.0")
    share = rows["failed"].share_percent
    assert share is not None
    assert abs(share / 100 - Decimal(line["fail_rate_gpu_time"])) <= Decimal("0.001")


def test_the_worked_example_at_a_nodes_price_over_its_gpus() -> None:
    made = report(
        one("COMPLETED", "completed", 80 * 3600),
        one("NODE_FAIL", "failed", 40 * 3600),
        one("FAILED", "failed", 2 * 3600),
        one("PENDING", "pending", 0),
        rates={
            "": [
                Rate(
                    from_unix_s=0,
                    usd_per_gpu_hour=Fraction("27.197") / 8,
                    price=GpuPrice(what="x", usd_per_gpu_hour=""),
                )
            ]
        },
    )
    assert (made.total.gpu_hours, made.total.usd) == (Decimal("122.000"), Decimal("414.75"))
    assert made.lost_at_most is not None
    assert made.lost_at_most.usd == Decimal("142.78")
    assert "at most $142.78: an UPPER BOUND" in made.said[0]
    failed = sum((row.usd or Decimal(0) for row in made.rows if "failed" in row.detail), Decimal(0))
    assert failed == Decimal("142.78")  # who adds the lines up finds the same


def test_no_price_is_unknown_and_never_zero() -> None:
    made = report(one("FAILED", "failed", 3600))
    assert [row.usd for row in (*made.rows, made.total)] == [None, None]
    assert "unknown $" in made.said[0]
    assert "--usd-per-gpu-hour" in " ".join(made.findings)


def test_partitions_have_their_own_prices_and_one_without_is_unknown() -> None:
    made = report(
        one("COMPLETED", "completed", 3600, keys=("h100",)),
        one("COMPLETED", "completed", 7200, keys=("a100",)),
        one("FAILED", "failed", 3600, keys=("old",)),
        rates={"h100": [rate("4")], "a100": [rate("2")]},
        by=("partition",),
        keys=("partition",),
    )
    assert {row.keys[0]: row.usd for row in made.rows} == {"h100": 4, "a100": 4, "old": None}
    assert (made.total.usd, made.total.unpriced_gpu_seconds) == (Decimal("8.00"), 3600)
    assert "1.000 GPU-hours of them have no price" in made.sum_line


def test_the_price_of_the_stretch_counts() -> None:
    made = report(
        one("COMPLETED", "completed", 3600, begins=0),
        one("COMPLETED", "completed", 3600, begins=DAY),
        rates={"": [rate("4"), rate("3", DAY)]},
    )
    assert made.total.usd == Decimal("7.00")
    assert [price.usd_per_gpu_hour for price in made.prices] == ["4", "3"]


def test_months_stand_in_order_of_time() -> None:
    cuts = month_cuts()
    made = report(
        *(one("COMPLETED", "completed", 100 * n, begins=cuts[n]) for n in (2, 13, 1)),
        one("PENDING", "pending", 0),
        by=("month",),
    )
    assert [row.keys[0] for row in made.rows] == ["1990-02", "1990-03", "1991-02", "unknown"]


def test_idle_capacity_of_a_fleet() -> None:
    made = report(one("COMPLETED", "completed", 12 * DAY), rates={"": [rate("2")]}, fleet_gpus=16)
    assert made.idle is not None
    assert (made.idle.gpu_hours, made.idle.usd, made.idle.share_percent) == (
        Decimal(96),
        Decimal("192.00"),
        Decimal("25.0"),
    )
    assert "16 GPUs for 24.0 hours" in made.said[-1]
    assert "What the dump holds" not in made.said[-1]
    assert any("give the period" in said for said in made.findings)
    short = report(one("COMPLETED", "completed", DAY), fleet_gpus=16, since=-3 * DAY, until=4 * DAY)
    assert not any("give the period" in said for said in short.findings)
    assert "starts 3.0 days after" in short.said[-1]
    assert "ends 3.0 days before" in short.said[-1]
    running = report(one("COMPLETED", "completed", DAY), fleet_gpus=16, since=0, until=2 * NOW, ends=NOW - 7 * 3600)
    assert "What the dump holds ends 7.0 hours before now, all of which counts as idle" in running.said[-1]
    fresh = report(one("COMPLETED", "completed", DAY), fleet_gpus=16, since=0, until=2 * NOW, ends=NOW - 600)
    assert "What the dump holds" not in fresh.said[-1]
    small = report(one("COMPLETED", "completed", 12 * DAY), fleet_gpus=8)
    assert small.idle is not None
    assert small.idle.gpu_seconds == 0
    assert "too small" in small.said[-1]


def test_everything_that_is_doubtful_is_said() -> None:
    history = JobHistory(
        source="sacct",
        sums=(one("EXPEDITING", "other", 3600),),
        rows=40,
        repeated=2,
        gpuless_tries=1,
        running_tries=3,
        broken=tuple(Rejected(line=n, why="cut") for n in range(10)),
        broken_count=12,
        unknown_gpus=(Rejected(line=9, why="job 7: it ran, but the allocated TRES are empty"),),
        unknown_gpus_count=1,
        unknown_gpus_job_seconds=3600,
        notes=("Times are local.",),
    )
    text = " ".join(report(history=history).findings)
    for words in (
        "12 rows",
        "line 9: cut; and 2 more",
        "unknown number of GPUs",
        "EXPEDITING",
        "--duplicates",
        "repeated",
        "3 jobs",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("history", "because"),
    [
        (JobHistory(source="sacct"), "no jobs"),
        (JobHistory(source="sacct", outside=3), "All 3 tries lie outside"),
        (JobHistory(source="sacct", rows=2, broken_count=2, broken=(Rejected(line=2, why="cut"),)), "line 2: cut"),
        (JobHistory(source="sacct", rows=2, steps=2), "are steps"),
    ],
)
def test_nothing_to_report_says_why(history: JobHistory, because: str) -> None:
    assert because in report(history=history).empty_because


@settings(deadline=None)
@given(
    sums=st.lists(
        st.tuples(
            st.sampled_from(["A", "B", "C"]),
            st.sampled_from(GROUPS),
            st.integers(0, 10**9),
            st.sampled_from(["ada", "bob", ""]),
        ),
        max_size=30,
    ),
    usd=st.decimals(0, 100, places=6),
    by=st.sampled_from([("state",), ("group",), ("user",), ("user", "state"), ("group", "user")]),
)
def test_lines_add_up_to_the_total(
    sums: list[tuple[str, JobGroup, int, str]], usd: Decimal, by: tuple[str, ...]
) -> None:
    parts = [one(state + group, group, held, keys=(user,)) for state, group, held, user in sums]
    made = report(*parts, rates={"": [rate(str(usd))]}, by=by, keys=("user",))
    assert sum(row.gpu_seconds for row in made.rows) == made.total.gpu_seconds == sum(held for _, _, held, _ in sums)
    assert sum((row.usd or Decimal(0) for row in made.rows), Decimal(0)) == made.total.usd
    assert sum((row.usd or Decimal(0) for row in made.groups.values()), Decimal(0)) == made.total.usd
    assert sum(row.tries for row in made.rows) == made.total.tries == len(sums)


@pytest.mark.parametrize(
    ("gpu_seconds", "hours"), [(0, "0.000"), (1, "0.000"), (2, "0.001"), (3600, "1.000"), (-9, "-0.003")]
)
def test_hours_are_rounded_half_up(gpu_seconds: int, hours: str) -> None:
    assert hours_of(gpu_seconds) == Decimal(hours)


def test_tries_are_those_that_began() -> None:
    cancelled = JobSum(begins_unix_s=0, state="CANCELLED", group="cancelled", keys=(), tries=5, gpu_seconds=7200)
    made = report(structs.replace(cancelled, never_started=3), one("PENDING", "pending", 0, tries=4))
    assert (made.total.tries, made.total.never_started) == (5 - 3 + 4, 3)
    assert "6 tries of jobs (3 more never started)" in made.sum_line


@pytest.mark.parametrize(
    ("sums", "fleet", "usd", "line"),
    [
        pytest.param(
            [("FAILED", "failed", 7200)],
            None,
            "6.00",
            "2.000 GPU-hours, at most $6.00 of jobs that failed.",
            id="failed",
        ),
        pytest.param(
            [("FAILED", "failed", 7200)], 1, "72.00", "24.000 GPU-hours, at most $72.00 (2.000", id="and-idle"
        ),
        pytest.param([("COMPLETED", "completed", 3600)], 1, "69.00", "at most $69.00 in no job.", id="idle-alone"),
        pytest.param(
            [("FAILED", "failed", 7200), ("CANCELLED", "cancelled", 3600)],
            None,
            "6.00",
            "Not in it: 1.000",
            id="unjudged",
        ),
        pytest.param([("COMPLETED", "completed", 3600)], None, None, "", id="none"),
        pytest.param([("COMPLETED", "completed", 48 * 3600)], 1, None, "", id="a-fleet-that-is-too-small"),
    ],
)
def test_one_line_of_waste_that_is_an_upper_bound_and_called_so(
    sums: list[tuple[str, JobGroup, int]], fleet: int | None, usd: str | None, line: str
) -> None:
    made = report(*(one(*words) for words in sums), rates={"": [rate("3")]}, fleet_gpus=fleet)
    assert (made.waste_at_most is not None) == bool(usd)
    if usd is None:
        assert made.waste_line == ""
        return
    assert made.waste_at_most is not None
    assert (made.waste_at_most.usd, made.waste_at_most.gpu_hours) == (Decimal(usd), Decimal(usd) / 3)
    assert made.waste_line.startswith("Waste, an UPPER BOUND: ")
    assert line in made.waste_line


def test_waste_without_a_price_is_unknown_dollars() -> None:
    assert "at most 2.000 GPU-hours, unknown $ of jobs that failed" in report(one("FAILED", "failed", 7200)).waste_line
