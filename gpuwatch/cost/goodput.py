"""Ratios of node-time and of money in a period.

Goodput and ETTR bound neither each other: nodes given back while queueing lower ETTR, spares lower goodput.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from gpuwatch.cost.faults import FaultBook
from gpuwatch.cost.spans import Span, clip, length_ns, united
from gpuwatch.cost.timeline import RunTimeline
from gpuwatch.model.money import Category, group_of

KEPT = frozenset({Category.PRODUCTIVE, Category.SLOW})
RANGE_ABOVE = Fraction(1, 100)  # above this unknown share every ratio is a range
HOUR_NS = 3600 * 10**9


@dataclass(slots=True, frozen=True)
class Ratio:
    """A share, and between what it lies if some of the time is not known: all of it waste, all of it productive."""

    value: Fraction
    low: Fraction
    high: Fraction

    @property
    def is_range(self) -> bool:
        return self.low != self.high


@dataclass(slots=True, frozen=True)
class Shares:
    """Of all that was billed: productive, wasted (loss and unusable), and not known."""

    goodput: Ratio
    waste: Ratio
    unknown: Fraction


def shares_of(by_category: Mapping[Category, Fraction]) -> Shares | None:
    """Ratios of amounts by category (node-time or money); None if nothing, or nothing positive, was billed."""
    billed = sum(by_category.values(), Fraction(0))
    if billed <= 0:
        return None
    productive = by_category.get(Category.PRODUCTIVE, Fraction(0)) / billed
    wasted = sum(
        (amount for category, amount in by_category.items() if group_of(category) in ("loss", "unusable")), Fraction(0)
    )
    waste = wasted / billed
    unknown = by_category.get(Category.UNKNOWN, Fraction(0)) / billed
    open_share = unknown if unknown > RANGE_ABOVE else Fraction(0)
    return Shares(
        goodput=Ratio(productive, productive, productive + open_share),
        waste=Ratio(waste, waste, waste + open_share),
        unknown=unknown,
    )


@dataclass(slots=True, frozen=True)
class RunTime:
    """One run's wall clock within a period, and how much of it lies in executions that were kept."""

    run: str
    kept_ns: int
    unknown_ns: int
    wall_ns: int
    nodes: int


def run_time(timeline: RunTimeline, now: int, since: int | None = None, until: int | None = None) -> RunTime:
    """From first launch to the end (or now), queueing in."""
    end = timeline.closing.at if timeline.closing.at is not None else now
    low = timeline.launched if since is None else max(timeline.launched, since)
    high = end if until is None else min(end, until)
    kept = unknown = 0
    nodes = 0
    for deed, segments in zip(timeline.deeds, timeline.segments, strict=True):
        if deed.part.start < high and low < deed.part.end:
            nodes = len(deed.part.members)
        for segment in segments:
            inside = min(segment.end, high) - max(segment.start, low)
            if inside > 0 and segment.category in KEPT:
                kept += inside
            elif inside > 0 and segment.category is Category.UNKNOWN:
                unknown += inside
    return RunTime(timeline.run, kept, unknown, max(high - low, 0), nodes)


def ettr(runs: Iterable[RunTime]) -> Ratio | None:
    """Kept wall clock / wall clock, over several runs both sums weighted by nodes. None: no run in the period."""
    kept = unknown = wall = 0
    for run in runs:
        kept += run.kept_ns * run.nodes
        unknown += run.unknown_ns * run.nodes
        wall += run.wall_ns * run.nodes
    if not wall:
        return None
    value = Fraction(kept, wall)
    open_share = Fraction(unknown, wall)
    return Ratio(value, value, value + (open_share if open_share > RANGE_ABOVE else 0))


@dataclass(slots=True, frozen=True)
class Exposure:
    """Node-time of members of live attempts, and the faults that hit it."""

    node_ns: int
    faults: int
    elsewhere: int  # faults of nodes that no run used


def exposure_of(
    runs: Mapping[str, RunTimeline], faults: FaultBook, since: int | None = None, until: int | None = None
) -> Exposure:
    """For MTBF: a node that several runs share counts once."""
    used: dict[str, list[Span]] = {}
    for timeline in runs.values():
        for deed in timeline.deeds:
            for member in deed.part.members:
                used.setdefault(member.machine, []).append((member.start, member.end))
    node_ns = 0
    for machine, spans in used.items():
        used[machine] = united(spans)
        low = since if since is not None else min((a for a, _ in spans), default=0)
        high = until if until is not None else max((b for _, b in spans), default=0)
        node_ns += length_ns(clip(used[machine], low, high))
    inside = elsewhere = 0
    for fault in faults.by_id.values():
        if (since is not None and fault.onset < since) or (until is not None and fault.onset >= until):
            continue
        in_use = any(a <= fault.onset <= b for a, b in used.get(fault.machine or "", ()))
        if fault.run is not None or in_use:
            inside += 1
        else:
            elsewhere += 1
    return Exposure(node_ns, inside, elsewhere)
