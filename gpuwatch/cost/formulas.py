"""Formulas of the literature, each with its source. Floats: they inform, they never add up to money."""

from __future__ import annotations

import math


def job_mttf_hours(failures_per_1000_node_days: float, gpus: int, gpus_per_node: int = 8) -> float:
    """Projected mean time to failure of a job of this size: 24000 / (r x nodes) hours.

    Source: Meta, Revisiting Reliability in Large-Scale ML Research Clusters (arXiv 2410.21680). It assumes independent
    nodes and one failure kind; that paper's own measured values are three to four times worse.
    """
    return 24_000 / (failures_per_1000_node_days * gpus / gpus_per_node)


def seen_mttf_hours(days: float, units: int, failures: int) -> float:
    """Exposure divided by failures, in hours a unit; one unit: the job itself."""
    return days * 24 * units / failures


def rate_per_1000_node_days(days: float, nodes: int, failures: int) -> float:
    """Failures per 1000 node-days: how Meta and others state it."""
    return failures * 1000 / (days * nodes)


def poisson_interval(count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact (Garwood) interval of the expected count behind an observed one.

    The lower end has P(X >= count) = alpha/2, the upper P(X <= count) = alpha/2. 0 observed: 0 to 3.689 at 95 %.
    """
    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else _solve(lambda mean: _at_most(count - 1, mean) - (1 - tail), 0.0, float(count))
    high = _solve(lambda mean: _at_most(count, mean) - tail, float(count), 2 * count + 10 * math.sqrt(count + 1) + 20)
    return low, high


def _at_most(count: int, mean: float) -> float:
    """P(X <= count) of a Poisson variable, each term from its logarithm, so that large means do not underflow."""
    if mean <= 0:
        return 1.0
    logarithm = math.log(mean)
    return math.fsum(math.exp(k * logarithm - mean - math.lgamma(k + 1)) for k in range(count + 1))


def _solve(falling: object, low: float, high: float) -> float:
    assert callable(falling)
    for _ in range(200):
        middle = (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
        if high - low <= 1e-12 * max(high, 1.0):
            break
    return (low + high) / 2


NO_FAULT_COUNT = -math.log(0.025)
"""Upper 97.5 % limit of the count where none was seen: 3.69. MTBF is then more than exposure / this."""


def mtbf_hours(exposure_node_hours: float, faults: int) -> float:
    """Node-time of members of live attempts / faults (faults, not signals)."""
    return exposure_node_hours / faults


def mtbf_lower_bound_hours(exposure_node_hours: float) -> float:
    """What can be said after no fault at all."""
    return exposure_node_hours / NO_FAULT_COUNT


def young_interval_min(save_min: float, mttf_min: float) -> float:
    """Best time between checkpoints, first order: sqrt(2 w M). Young, CACM 17(9), 1974."""
    return math.sqrt(2 * save_min * mttf_min)


def daly_interval_min(save_min: float, mttf_min: float) -> float:
    """Best time between checkpoints, higher order. Daly, FGCS 22(3), 2006, eq. 37."""
    ratio = save_min / (2 * mttf_min)
    return math.sqrt(2 * save_min * mttf_min) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_min


def ettr_expected_first_order(
    nodes: int, failures_per_1000_node_days: float, restart_min: float, interval_min: float, save_min: float
) -> float:
    """(1 - N r (u0 + d/2)) / (1 + w/d): Meta (arXiv 2410.21680)."""
    per_min = nodes * failures_per_1000_node_days / 1000 / 1440
    return (1 - per_min * (restart_min + interval_min / 2)) / (1 + save_min / interval_min)


def ettr_expected_exact(
    nodes: int, failures_per_1000_node_days: float, restart_min: float, interval_min: float, save_min: float
) -> float:
    """d / (e^(l u0) (e^(l (d + w)) - 1) / l): exact for a Poisson process that also runs during restart. Daly 2006."""
    rate = nodes * failures_per_1000_node_days / 1000 / 1440
    return interval_min * rate / (math.exp(rate * restart_min) * math.expm1(rate * (interval_min + save_min)))


def loss_per_failure_min(mttf_min: float, interval_min: float) -> float:
    """Expected work lost at a failure, of an exponential failure inside an interval: M - d / (e^(d/M) - 1)."""
    return mttf_min - interval_min / math.expm1(interval_min / mttf_min)


def loss_per_failure_half_min(interval_min: float) -> float:
    """The same to first order: half the interval."""
    return interval_min / 2


def google_runtime_goodput(interval: float, work_since_save: float, rescheduling: float, resuming: float) -> float:
    """(interval - t_ch) / (interval + t_re + t_rm). Google Cloud, Goodput metric of ML productivity (2024)."""
    return (interval - work_since_save) / (interval + rescheduling + resuming)
