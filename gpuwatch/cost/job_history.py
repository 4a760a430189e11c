"""JOB HISTORY -> MONEY. GPU time of jobs by how they ended, priced; failed time is an upper bound of loss.

Exact: whole GPU-seconds, one multiplication by the price of the stretch, one rounding a report; lines add up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

from gpuwatch.cost.job_words import counted, dollars, empty, findings_of, said, waste_of, worth
from gpuwatch.cost.rounding import as_decimal, largest_remainder, round_half_up, round_nested
from gpuwatch.model.job_history import JobHistory, JobSum
from gpuwatch.model.job_report import GpuPrice, JobReport, JobRow

SPLITS = ("state", "group", "user", "account", "partition", "month")
GROUPS = ("completed", "failed", "cancelled", "preempted", "requeued", "running", "pending", "other")
_GROUP_WORDS = {"failed": "failed: at most this is lost", "cancelled": "cancelled: what is lost is not known"}
_DAY_S = 86_400
_GAP_S = 3600  # a fleet that is used has jobs that begin and end more often


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What one GPU costs an hour, from a moment on."""

    from_unix_s: int
    usd_per_gpu_hour: Fraction
    price: GpuPrice


Rates = Mapping[str, Sequence[Rate]]  # by partition; "" is for every partition that is not named


@dataclass
class _Line:
    """One line while it is added up."""

    tries: int = 0
    never_started: int = 0
    gpu_seconds: int = 0
    unpriced: int = 0
    usd: Fraction = field(default_factory=Fraction)

    def add(self, one: JobSum, rate: Rate | None) -> None:
        self.tries += one.tries - one.never_started
        self.never_started += one.never_started
        self.gpu_seconds += one.gpu_seconds
        if rate is None:
            self.unpriced += one.gpu_seconds
        else:
            self.usd += one.gpu_seconds * rate.usd_per_gpu_hour / 3600


def make_job_report(
    history: JobHistory,
    rates: Rates,
    *,
    by: Sequence[str],
    keys: Sequence[str],
    made_unix_s: int,
    since_unix_s: int | None = None,
    until_unix_s: int | None = None,
    fleet_gpus: int | None = None,
) -> JobReport:
    """`keys` are those that the history kept apart; its stretches must be cut at every month (if split by month) and
    at every change of a rate."""
    lines: defaultdict[tuple[str, ...], _Line] = defaultdict(_Line)
    groups: defaultdict[str, _Line] = defaultdict(_Line)
    total, used = _Line(), dict[GpuPrice, int]()
    states: dict[str, str] = {}
    for one in history.sums:
        rate = _rate(rates, one, keys)
        if rate is not None and one.gpu_seconds:
            used[rate.price] = used.get(rate.price, 0) + one.gpu_seconds
        states[one.state] = one.group
        for line in (lines[tuple(_key(name, one, keys) for name in by)], groups[one.group], total):
            line.add(one, rate)
    rounded = _rounded(lines, lambda key: states[key[0]] if tuple(by) == ("state",) else key[0])
    order = sorted(lines, key=_order(by, lines))
    whole = total.gpu_seconds
    rows = tuple(
        _row(key, lines[key], rounded[key], whole, detail=_detail(key, by, states)) for key in order
    )  # fmt: skip
    there = sorted(groups)
    parts = dict(zip(there, largest_remainder([groups[name].usd for name in there]), strict=True))
    grouped = {
        name: _row((name,), groups[name], parts[name], whole, detail=_GROUP_WORDS.get(name, ""))
        for name in GROUPS
        if name in groups
    }
    since = history.begins_unix_s if since_unix_s is None else since_unix_s
    until = history.ends_unix_s if until_unix_s is None else min(until_unix_s, made_unix_s)
    findings = findings_of(history, bool(total.unpriced), bool(rates))
    idle, sentences = None, list(said(grouped))
    if fleet_gpus is not None and since is not None and until is not None and until > since:
        idle, words = _idle(history, rates, fleet_gpus, since, until, made_unix_s)
        sentences += words
        if since_unix_s is None:
            findings.append(
                "The idle time counts from the first start of a job in the dump, and a dump also holds jobs that began "
                "before its own period: give the period with --month, or --since and --until."
            )
    waste, waste_line = waste_of(grouped, idle)
    return JobReport(
        by=tuple(by),
        source=history.source,
        since_unix_ns=None if since is None else since * 10**9,
        until_unix_ns=None if until is None else until * 10**9,
        made_unix_ns=made_unix_s * 10**9,
        rows=rows,
        total=_row(("total",), total, round_half_up(total.usd), whole),
        sum_line=_sum_line(total, history),
        groups=grouped,
        lost_at_most=grouped.get("failed"),
        waste_at_most=waste,
        waste_line=waste_line,
        idle=idle,
        fleet_gpus=fleet_gpus,
        said=tuple(sentences),
        prices=tuple(used),
        findings=tuple(findings),
        rows_read=history.rows,
        rows_broken=history.broken_count,
        empty_because="" if rows else empty(history),
    )


def month_cuts() -> tuple[int, ...]:
    """The begin of every month from 1990 to 2099, UTC, in unix seconds."""
    return tuple(
        (date(year, month, 1) - date(1970, 1, 1)).days * _DAY_S for year in range(1990, 2100) for month in range(1, 13)
    )


def hours_of(gpu_seconds: int) -> Decimal:
    """To three places, half up."""
    scaled = round_half_up(Fraction(gpu_seconds, 3600), 3)
    return as_decimal(scaled, 3)


def _rate(rates: Rates, one: JobSum, keys: Sequence[str]) -> Rate | None:
    own = rates.get(one.keys[keys.index("partition")]) if "partition" in keys else None
    steps = own or rates.get("", ())
    at = bisect_right([rate.from_unix_s for rate in steps], one.begins_unix_s)
    return steps[at - 1] if at else None


def _key(name: str, one: JobSum, keys: Sequence[str]) -> str:
    if name == "state":
        return one.state
    if name == "group":
        return one.group
    if name == "month":
        day = date(1970, 1, 1) + timedelta(days=one.begins_unix_s // _DAY_S)
        return f"{day:%Y-%m}" if one.begins_unix_s else "unknown"
    return one.keys[keys.index(name)] or "none"


def _rounded(
    lines: Mapping[tuple[str, ...], _Line], outer_of: Callable[[tuple[str, ...]], str]
) -> dict[tuple[str, ...], int]:
    """Cents of each line: the outer key first (a state's is its group, so that states add up to groups too)."""
    nested: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    for key in sorted(lines, key=lambda key: (outer_of(key), key)):
        nested[outer_of(key)].append(key)
    cents = round_nested({outer: [lines[key].usd for key in own] for outer, own in nested.items()})
    return {key: cent for outer, own in nested.items() for key, cent in zip(own, cents[outer], strict=True)}


def _order(
    by: Sequence[str], lines: Mapping[tuple[str, ...], _Line]
) -> Callable[[tuple[str, ...]], tuple[tuple[int, str], ...]]:
    """Months in order of time, everything else by GPU time, the largest first; lines of one first key together."""
    outer: defaultdict[str, int] = defaultdict(int)
    for key, line in lines.items():
        outer[key[0]] += line.gpu_seconds

    def place(key: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
        sizes = (outer[key[0]], lines[key].gpu_seconds)
        return tuple(
            (0 if name == "month" else -size, part) for name, part, size in zip(by, key, sizes, strict=False)
        )  # fmt: skip

    return place


def _row(keys: tuple[str, ...], line: _Line, cents: int, whole: int, detail: str = "") -> JobRow:
    priced = line.gpu_seconds > line.unpriced or not line.gpu_seconds
    share = None
    if whole:
        share = (Decimal(100 * line.gpu_seconds) / whole).quantize(Decimal("0.1"), ROUND_HALF_UP)
    return JobRow(
        keys=keys,
        detail=detail,
        tries=line.tries,
        gpu_seconds=line.gpu_seconds,
        gpu_hours=hours_of(line.gpu_seconds),
        usd=as_decimal(cents) if priced else None,
        unpriced_gpu_seconds=line.unpriced,
        share_percent=share,
        never_started=line.never_started,
    )


def _detail(key: tuple[str, ...], by: Sequence[str], states: Mapping[str, str]) -> str:
    if by[-1] == "group":
        return _GROUP_WORDS.get(key[-1], "")
    if by[-1] != "state":
        return ""
    group = states[key[-1]]
    if group == "other":
        return "not a state that we know"
    return _GROUP_WORDS.get(group, "" if group == key[-1].lower() else group)


def _sum_line(total: _Line, history: JobHistory) -> str:
    text = (
        f"The lines sum to {hours_of(total.gpu_seconds):,} GPU-hours in {counted(total.tries, 'try', 'tries')} of jobs"
    )
    if total.never_started:
        text += f" ({total.never_started:,} more never started)"
    if total.unpriced == total.gpu_seconds:
        return f"{text}; nothing has a price."
    text += f", {dollars(as_decimal(round_half_up(total.usd)))} at the prices below"
    if total.unpriced:
        text += f"; {hours_of(total.unpriced):,} GPU-hours of them have no price and are in no amount"
    return f"{text}. An estimate from {history.source}, not a bill."


def _idle(
    history: JobHistory, rates: Rates, fleet_gpus: int, since: int, until: int, made_unix_s: int
) -> tuple[JobRow, list[str]]:
    """What a fleet of this size was paid for and no job held."""
    capacity = fleet_gpus * (until - since)
    held = sum(one.gpu_seconds for one in history.sums)
    idle = capacity - held
    words = f"Idle: {fleet_gpus:,} GPUs for {(until - since) / 3600:,.1f} hours are {hours_of(capacity):,} GPU-hours"
    if idle < 0:
        return JobRow(keys=("idle",), detail="the fleet is smaller than what jobs held"), [
            f"{words}, but jobs held {hours_of(held):,}: --fleet-gpus is too small, or slices of GPUs count as GPUs. "
            "No idle time is shown."
        ]
    steps = rates.get("", ()) or (next(iter(rates.values())) if len(rates) == 1 else ())
    one_price = {rate.usd_per_gpu_hour for rate in steps}
    usd = None
    if len(one_price) == 1:
        usd = as_decimal(round_half_up(idle * one_price.pop() / 3600))
    share = (Decimal(100 * idle) / capacity).quantize(Decimal("0.1"), ROUND_HALF_UP)
    row = JobRow(
        keys=("idle",),
        detail="in no job; drained and broken nodes are in it",
        gpu_seconds=idle,
        gpu_hours=hours_of(idle),
        usd=usd,
        unpriced_gpu_seconds=0 if usd is not None else idle,
        share_percent=share,
    )
    text = f"{words}; jobs held {hours_of(held):,}, so {worth(row)} ({share} % of the fleet) were in no job."
    first, last = history.begins_unix_s, history.ends_unix_s
    end = "now" if until == made_unix_s else "the period's end"  # a period that still runs, and a dump of this morning
    for gap_s, words in (
        ((since if first is None else first) - since, "starts {} after the period's begin"),
        (until - (until if last is None else last), f"ends {{}} before {end}"),
    ):
        if gap_s > _GAP_S:
            gap = words.format(f"{gap_s / _DAY_S:,.1f} days" if gap_s > 2 * _DAY_S else f"{gap_s / 3600:,.1f} hours")
            text += f" What the dump holds {gap}, all of which counts as idle: if jobs are missing there, less was."
    if history.unknown_gpus_count:
        text += " Jobs whose GPUs are not known held some of it."
    return row, [text + " Nodes that were drained or broken are in it: a job history does not know them."]
