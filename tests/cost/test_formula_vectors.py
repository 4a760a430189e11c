"""Every row of the formula vectors: exact where its unit says so, else within the stated tolerance."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from gpuwatch.cost import formulas
from gpuwatch.cost.goodput import RunTime, ettr, shares_of
from gpuwatch.cost.intervals import partition
from gpuwatch.cost.pricing import TICKS_PER_HOUR, usd_of_ticks
from gpuwatch.cost.quota import Free, decide
from gpuwatch.cost.repair_times import Comeback, Detection
from gpuwatch.cost.rounding import as_decimal, largest_remainder, round_half_up, round_nested
from gpuwatch.cost.shares import scaled
from gpuwatch.cost.step_time import StepTime, is_slow, lower_median
from gpuwatch.model.ledger import TICK_NS, snap_ns
from gpuwatch.model.money import Category
from gpuwatch.prices.book import PriceBook
from tests.ledgers import HOUR_ZERO, Pen

Inputs = dict[str, str]
ROWS = list(csv.DictReader((Path(__file__).parent / "formula_vectors.csv").read_text().splitlines()))
SECOND = 10**9


def _job_mttf(i: Inputs) -> float:
    return formulas.job_mttf_hours(float(i["r_per_1000_node_days"]), int(i["gpus"]), int(i["gpus_per_node"]))


def _seen_mttf(i: Inputs) -> float:
    return formulas.seen_mttf_hours(float(i["days"]), int(i["units"]), int(i["failures"]))


def _rate(i: Inputs) -> float:
    return formulas.rate_per_1000_node_days(float(i["days"]), int(i["nodes"]), int(i["failures"]))


def _ettr_inputs(i: Inputs) -> tuple[int, float, float, float, float]:
    return int(i["nodes"]), float(i["r_per_1000_node_days"]), float(i["u0_min"]), float(i["dt_min"]), float(i["w_min"])


def _google(i: Inputs) -> float:
    return formulas.google_runtime_goodput(*(float(i[name]) for name in ("interval", "t_ch", "t_re", "t_rm")))


def _ettr_run(i: Inputs) -> float:
    kept, wall = int(i["kept_min"]), int(i["wall_min"])
    found = ettr([RunTime(run="r", kept_ns=kept, unknown_ns=0, wall_ns=wall, nodes=124)])
    assert found is not None
    return float(found.value)


def _goodput(i: Inputs) -> float:
    productive, billed = Fraction(i["productive"]), Fraction(i["billed"])
    shares = shares_of({Category.PRODUCTIVE: productive, Category.SPARE: billed - productive})
    assert shares is not None
    return float(shares.goodput.value)


def _waste(i: Inputs) -> float:
    waste, billed = Fraction(i["loss_and_unusable"]), Fraction(i["billed"])
    shares = shares_of({Category.HUNG: waste / 2, Category.DEAD: waste / 2, Category.SPARE: billed - waste})
    assert shares is not None
    return float(shares.waste.value)


def _mttd(i: Inputs) -> float:
    mean = Detection(tuple(int(d) * SECOND for d in i["delays_s"].split("|")), int(i["undetected"])).mean_ns
    assert mean is not None
    return float(mean) / SECOND


def _mttr(i: Inputs) -> float:
    parts = [round(float(i[f"{name}_min"]) * 60 * SECOND) for name in ("detect", "decide", "wait", "start", "redo")]
    return Comeback("r", "f", *parts).total_ns / (60 * SECOND)


def _slow_excess(i: Inputs) -> str:
    ideal, step = round(Decimal(i["ideal_s"]) * SECOND), round(Decimal(i["step_s"]) * SECOND)
    excess = (step - ideal) * int(i["steps"]) if is_slow(step, 1, ideal) else 0
    return f"{Decimal(excess) / SECOND:.2f}"


def _open_cut(i: Inputs) -> str:
    """The same cut, through a whole ledger: 115 steps of the ideal length first, then one that never ends."""
    ideal = int(i["ideal_s"])
    last = 115 * ideal
    stop = (last + int(i["end_s"])) / 60
    pen = Pen()
    pen.node("n", 0, until=stop)
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.saved("1", 115, last / 60)
    pen.steps("1", 1, 115, 0, ideal / 60)
    pen.end("1", stop, "exit0" if i["end"] == "exit0" else "planned" if i["end"] == "planned" else "unplanned")
    parts = []
    for interval in partition(pen.lines, HOUR_ZERO + (last + 7200) * SECOND):
        start = max(interval.start_unix_ns, HOUR_ZERO + last * SECOND)
        if interval.end_unix_ns - start > TICK_NS:
            parts.append(f"{interval.category}:{round((interval.end_unix_ns - start) / SECOND)}")
    return "|".join(parts)


def _overtaken(i: Inputs) -> str:
    """Through a ledger: an attempt that resumes at a step loses all executions from it on."""
    steps = [int(step) for step in i["steps"].split("|")]
    resume = int(i["resume_at"])
    pen = Pen()
    pen.node("n", 0, until=60)
    pen.hold(["n"], 0)
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.saved("1", resume - 1, 0.5)
    pen.steps("1", steps[0], len(steps), 0, 3)
    pen.end("1", 3 * len(steps), "unplanned")
    pen.start("2", 30, ["n"])
    pen.phase("2", "init", 30, 33, resumed=resume - 1)
    pen.step("2", resume, 36)
    lost = [
        step
        for step in steps
        for interval in partition(pen.lines, HOUR_ZERO + 3600 * SECOND)
        if interval.category is Category.LOST_WORK
        and interval.start_unix_ns <= HOUR_ZERO + (3 * (step - steps[0]) + 1) * 60 * SECOND < interval.end_unix_ns
    ]
    return "|".join(str(step) for step in lost)


def _usd_of_ticks(i: Inputs) -> str:
    usd = usd_of_ticks(int(i["ticks"]), int(i["gpu_thousandths"]), int(i["gpus"]), Fraction(i["usd_per_hour"]))
    return str(Decimal(usd.numerator) / Decimal(usd.denominator))


def _usd_of_minutes(i: Inputs) -> str:
    usd = Fraction(i["node_minutes"]) / 60 * Fraction(i["usd_per_hour"])
    return str(as_decimal(round_half_up(usd)))


def _round_total(i: Inputs) -> str:
    places = int(i["minor_units"])
    return str(as_decimal(round_half_up(Fraction(i["amount"]), places), places))


def _largest_remainder(i: Inputs) -> str:
    places = int(i["minor_units"])
    parts = largest_remainder([Fraction(part) for part in i["parts"].split("|")], places)
    return "|".join(str(as_decimal(part, places)) for part in parts)


def _two_keys(i: Inputs) -> str:
    places = int(i["minor_units"])
    groups = {key: [Fraction(part) for part in text.split("|")] for key, text in i.items() if key != "minor_units"}
    rounded = round_nested(groups, places)
    return "; ".join(f"{key}:{'|'.join(str(as_decimal(p, places)) for p in parts)}" for key, parts in rounded.items())


def _spare_quota(i: Inputs) -> str:
    free = [Free(0, 3600, name, 1000) for name in i["free_healthy"].split("|")]
    found = decide(free, [(0, int(i["quota"]))], 1000)
    spare = sorted(free[part.free_index].machine for part in found if part.spare)
    idle = sorted(free[part.free_index].machine for part in found if not part.spare)
    return f"spare:{'|'.join(spare)}; idle:{'|'.join(idle)}"


def _price_on(i: Inputs) -> str:
    book = PriceBook.bundled()
    price = book.price_on(i["provider"], i["region"], i["sku"], i["kind"], date.fromisoformat(i["day"]))
    assert price is not None
    assert price.older_than_book == (i.get("note") == "older than the price book")
    return str(price.usd_per_hour)


def _sacct(i: Inputs) -> str:
    pairs = [pair.split("x") for pair in i["gpus_x_seconds"].split("|")]
    units = sum(int(gpus) * 1000 * (int(seconds) * SECOND // TICK_NS) for gpus, seconds in pairs)
    return str(Fraction(units, 1000 * TICKS_PER_HOUR))


def _skew(i: Inputs) -> str:
    usd = Fraction(i["skew_s"]) / 3600 * int(i["nodes"]) * Fraction(i["usd_per_hour"])
    return str(as_decimal(round_half_up(usd)))


COMPUTE: dict[str, Callable[[Inputs], float | str]] = {
    "job_mttf": _job_mttf,
    "seen_mttf": _seen_mttf,
    "rate_per_1000_node_days": _rate,
    "poisson_ci95_low": lambda i: formulas.poisson_interval(int(i["count"]))[0],
    "poisson_ci95_high": lambda i: formulas.poisson_interval(int(i["count"]))[1],
    "ettr_meta": lambda i: formulas.ettr_expected_first_order(*_ettr_inputs(i)),
    "ettr_exact": lambda i: formulas.ettr_expected_exact(*_ettr_inputs(i)),
    "young_interval": lambda i: formulas.young_interval_min(float(i["w_min"]), float(i["mttf_min"])),
    "daly_interval": lambda i: formulas.daly_interval_min(float(i["w_min"]), float(i["mttf_min"])),
    "loss_per_failure_exact": lambda i: formulas.loss_per_failure_min(float(i["mttf_min"]), float(i["interval_min"])),
    "loss_per_failure_half": lambda i: formulas.loss_per_failure_half_min(float(i["interval_min"])),
    "google_runtime_goodput": _google,
    "ettr_run": _ettr_run,
    "goodput_node_time": _goodput,
    "waste_node_time": _waste,
    "mtbf": lambda i: formulas.mtbf_hours(float(i["exposure_node_hours"]), int(i["faults"])),
    "mtbf_lower_bound_no_fault": lambda i: formulas.mtbf_lower_bound_hours(float(i["exposure_node_hours"])),
    "mttd": _mttd,
    "mttr_run": _mttr,
    "lower_median": lambda i: str(lower_median([int(v) for v in i["values"].split("|")])),
    "slow_excess": _slow_excess,
    "open_execution_cut": _open_cut,
    "overtaken": _overtaken,
    "snap_ns": lambda i: str(snap_ns(int(i["t_ns"]))),
    "ticks": lambda i: str((snap_ns(int(i["end_ns"])) - snap_ns(int(i["start_ns"]))) // TICK_NS),
    "hours_of_ticks": lambda i: str(Decimal(int(i["ticks"])) / TICKS_PER_HOUR),
    "usd_of_ticks": _usd_of_ticks,
    "usd_of_node_minutes": _usd_of_minutes,
    "round_total": _round_total,
    "largest_remainder": _largest_remainder,
    "largest_remainder_two_keys": _two_keys,
    "spare_quota": _spare_quota,
    "scale_shares": lambda i: "|".join(
        str(share) for share in scaled([int(s) for s in i["gpu_thousandths"].split("|")], 1000)
    ),
    "skew_bound": _skew,
    "price_on": _price_on,
    "sacct_gpu_hours": _sacct,
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['formula']}-{row['inputs'][:40]}")
def test_formula_vector(row: dict[str, str]) -> None:
    inputs = dict(pair.split("=", 1) for pair in row["inputs"].split("; "))
    inputs.pop("what", None)
    got = COMPUTE[row["formula"]](inputs)
    if row["unit"].startswith("exact"):
        try:
            assert Decimal(str(got)) == Decimal(row["value"])
        except ArithmeticError:
            assert str(got) == row["value"]
    elif row["formula"].startswith("poisson"):
        assert abs(float(got) - float(row["value"])) <= 1e-6
    else:
        assert math.isclose(float(got), float(row["value"]), rel_tol=1e-9)


def test_every_formula_of_the_table_is_here_and_no_other() -> None:
    assert set(COMPUTE) == {row["formula"] for row in ROWS}


def test_the_ideal_of_the_vector_is_the_learned_one() -> None:
    times = StepTime()
    times.begin_attempt("x", None)
    for length in [999] * 10 + [104] * 50 + [106] * 50:
        times.executed(length, 1)
    assert times.ideal_ns() == 104
