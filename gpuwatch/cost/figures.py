"""The ratios and times of a report as figures with words: goodput, ETTR, waste, MTBF, MTTD, MTTR."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from gpuwatch.cost.formulas import mtbf_lower_bound_hours, poisson_interval
from gpuwatch.cost.goodput import HOUR_NS, Ratio, Shares, ettr, exposure_of, run_time, shares_of
from gpuwatch.cost.intervals import Account
from gpuwatch.cost.repair_times import comebacks_of, detection_of, node_comebacks_of
from gpuwatch.cost.waste import Tally
from gpuwatch.model.money import Category
from gpuwatch.model.report import Figure


def figures_of(account: Account, by_category: Tally) -> tuple[Figure, ...]:
    """All figures of the tally's period; `by_category` is split by category alone."""
    rates = by_category.rates
    time = {Category(key[0]): cell.node_hours(rates) for key, cell in by_category.cells.items()}
    money = {Category(key[0]): cell.usd(rates) for key, cell in by_category.cells.items()}
    figures: list[Figure] = []
    in_time, in_money = shares_of(time), shares_of(money)
    if in_time is not None:
        figures += _shares(in_time, in_money)
    figures += _runs(account, by_category)
    figures += _faults(account, by_category)
    return tuple(figures)


def _shares(time: Shares, money: Shares | None) -> list[Figure]:
    def words(in_time: Ratio, in_money: Ratio | None, what: str) -> str:
        text = f"{_percent(in_time)} of node-time"
        return f"{text}, {_percent(in_money)} of money ({what})" if in_money is not None else f"{text} ({what})"

    goodput = words(time.goodput, money.goodput if money else None, "productive / billed")
    waste = words(time.waste, money.waste if money else None, "loss and unusable / billed")
    unknown = f"{_of_hundred(time.unknown)} of node-time"
    if time.goodput.is_range:
        unknown += ": every ratio is a range, all of it waste to all of it productive"
    return [
        _ratio("goodput", time.goodput, goodput),
        _ratio("waste", time.waste, waste),
        Figure(name="unknown", text=unknown, value=float(time.unknown), unit="ratio"),
    ]


def _ratio(name: str, ratio: Ratio, text: str) -> Figure:
    return Figure(
        name=name, text=text, value=float(ratio.value), low=float(ratio.low), high=float(ratio.high), unit="ratio"
    )


def _percent(ratio: Ratio) -> str:
    if ratio.is_range:
        return f"{_of_hundred(ratio.low)} to {_of_hundred(ratio.high)}"
    return _of_hundred(ratio.value)


def _of_hundred(value: Fraction) -> str:
    return f"{float(100 * value):.2f} %"


def _runs(account: Account, sums: Tally) -> list[Figure]:
    times = [run_time(timeline, account.now, sums.since, sums.until) for timeline in account.runs.values()]
    times = [time for time in times if time.wall_ns]
    overall = ettr(times)
    if overall is None:
        return []
    what = "kept steps / wall clock from launch, queueing in"
    if len(times) > 1:
        what += f"; {len(times)} runs weighted by nodes"
    return [_ratio("ettr", overall, f"{_percent(overall)} ({what})")]


def _faults(account: Account, sums: Tally) -> list[Figure]:
    figures: list[Figure] = []
    exposure = exposure_of(account.runs, account.faults, sums.since, sums.until)
    hours = exposure.node_ns / HOUR_NS
    beside = f"; {exposure.elsewhere} more on nodes that no run used" if exposure.elsewhere else ""
    if hours and exposure.faults:
        low, high = poisson_interval(exposure.faults)
        count = f"{exposure.faults} fault{'s' * (exposure.faults > 1)} in {_node_time(hours)} of use{beside}"
        text = f"{_node_time(hours / exposure.faults)} a fault: {count} "
        text += f"(95 %: {_node_time(hours / high)} to {_node_time(hours / low)})"
        figures.append(
            Figure(
                name="mtbf",
                text=text,
                value=hours / exposure.faults,
                low=hours / high,
                high=hours / low,
                unit="hours",
            )
        )
    elif hours:
        bound = mtbf_lower_bound_hours(hours)
        text = f"> {_node_time(bound)}: no fault in {_node_time(hours)} of use{beside}"
        figures.append(Figure(name="mtbf", text=text, low=bound, unit="hours"))
    seen = detection_of(account.faults, account.runs, sums.since, sums.until)
    mean, median, late = seen.mean_ns, seen.quantile_ns(50), seen.quantile_ns(95)
    if mean is not None and median is not None and late is not None:
        text = f"{_span(float(mean))} from onset to alarm, {len(seen.delays_ns)} detected, {seen.undetected} not "
        text += f"(median {_span(median)}, p95 {_span(late)}, max {_span(seen.delays_ns[-1])})"
        figures.append(Figure(name="mttd", text=text, value=float(mean) / 1e9, unit="seconds"))
    figures += _mttr(account, sums)
    took, waiting = node_comebacks_of(account.history, account.faults, sums.since, sums.until)
    if took:
        mean_ns = sum(took) / len(took)
        text = f"{_span(mean_ns)} from onset until the node or its replacement is in service, "
        text += f"{len(took)} of {len(took) + waiting} nodes"
        figures.append(Figure(name="mttr_node", text=text, value=mean_ns / 1e9, unit="seconds"))
    return figures


def _mttr(account: Account, sums: Tally) -> list[Figure]:
    back = comebacks_of(account.runs.values(), account.faults, account.history.first_actions, sums.since, sums.until)
    mean = back.mean_ns
    if mean is None:
        if back.never:
            stops = f"{back.never} stop{'s' * (back.never > 1)}"
            return [Figure(name="mttr_run", text=f"{stops}, not made up for yet", unit="seconds")]
        return []
    count = len(back.done)
    parts: Mapping[str, int] = {
        "detect": sum(one.detect_ns for one in back.done),
        "decide": sum(one.decide_ns for one in back.done),
        "wait": sum(one.wait_ns for one in back.done),
        "start": sum(one.start_ns for one in back.done),
        "redo": sum(one.redo_ns for one in back.done),
    }
    sentence = " + ".join(f"{name} {_span(total / count)}" for name, total in parts.items())
    text = f"{_span(float(mean))} from onset to the highest step again, "
    text += f"{count} of {count + back.never} stops = {sentence}"
    return [Figure(name="mttr_run", text=text, value=float(mean) / 1e9, unit="seconds")]


def _node_time(hours: float) -> str:
    return f"{hours:,.1f} node-hours" if hours >= 10 else f"{hours * 60:,.1f} node-minutes"


def _span(ns: float) -> str:
    seconds = ns / 1e9
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
