"""How long faults took to see and runs to come back: MTTD and MTTR. Pure integers, in ns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from gpuwatch.cost.faults import FaultBook
from gpuwatch.cost.history import History
from gpuwatch.cost.recovery import Window
from gpuwatch.cost.spans import length_ns
from gpuwatch.cost.timeline import RunTimeline
from gpuwatch.model.ledger import LifeStarted, snap_ns


@dataclass(slots=True, frozen=True)
class Detection:
    """Alarm less onset over the detected faults of a period, and how many were not."""

    delays_ns: tuple[int, ...]  # sorted
    undetected: int

    @property
    def mean_ns(self) -> Fraction | None:
        return Fraction(sum(self.delays_ns), len(self.delays_ns)) if self.delays_ns else None

    def quantile_ns(self, percent: int) -> int | None:
        """Nearest rank."""
        if not self.delays_ns:
            return None
        return self.delays_ns[max(-(-len(self.delays_ns) * percent // 100), 1) - 1]


def detection_of(
    faults: FaultBook, runs: Mapping[str, RunTimeline], since: int | None = None, until: int | None = None
) -> Detection:
    """A stop of a run that no fault explains counts as undetected."""
    delays = sorted(
        max(fault.detected - fault.onset, 0) for fault in faults.by_id.values() if _inside(fault.onset, since, until)
    )
    undetected = sum(
        1
        for timeline in runs.values()
        for window in timeline.windows
        if _inside(window.start, since, until) and window.fault_at(window.end) not in faults.by_id
    )
    return Detection(tuple(delays), undetected)


@dataclass(slots=True, frozen=True)
class Comeback:
    """One stop of a run, from onset until its highest step was finished again. The parts add up, with no gap."""

    run: str
    fault: str
    detect_ns: int
    decide_ns: int
    wait_ns: int
    start_ns: int
    redo_ns: int

    @property
    def total_ns(self) -> int:
        return self.detect_ns + self.decide_ns + self.wait_ns + self.start_ns + self.redo_ns


@dataclass(slots=True, frozen=True)
class Comebacks:
    """All stops of a period that are explained by a fault; those never brought back are counted, not averaged."""

    done: tuple[Comeback, ...]
    never: int

    @property
    def mean_ns(self) -> Fraction | None:
        return Fraction(sum(back.total_ns for back in self.done), len(self.done)) if self.done else None


def comebacks_of(
    runs: Iterable[RunTimeline],
    faults: FaultBook,
    first_actions: Mapping[str, Sequence[int]],
    since: int | None = None,
    until: int | None = None,
) -> Comebacks:
    """MTTR (run) = detect + decide + wait + start + redo, for each recovery window that opened in the period."""
    done: list[Comeback] = []
    never = 0
    for timeline in runs:
        for window in timeline.windows:
            fault = faults.by_id.get(window.fault_at(window.end) or "")
            if fault is None or not _inside(window.start, since, until):
                continue
            again = _finished_again(timeline, window)
            if window.closer is None or again is None:
                never += 1
                continue
            launch = timeline.deeds[window.closer].part.start
            actions = first_actions.get(fault.id, ())
            alarm = max(fault.detected, fault.onset)
            place = bisect_left(actions, alarm)
            decided = actions[place] if place < len(actions) else window.start
            points = [fault.onset]
            for point in (alarm, decided, launch, window.end, again):
                points.append(min(max(point, points[-1]), again))
            parts = [after - before for before, after in pairwise(points)]
            done.append(Comeback(timeline.run, fault.id, *parts))
    return Comebacks(tuple(done), never)


def node_comebacks_of(
    history: History, faults: FaultBook, since: int | None = None, until: int | None = None
) -> tuple[list[int], int]:
    """MTTR (node): onset until the node, or its replacement, is in service; and how many are not yet.

    Only of faults for which the node was taken out of service or replaced.
    """
    replaced: dict[str, list[str]] = {}
    for machine, own in history.machines.items():
        for line in own.life:
            if isinstance(line, LifeStarted) and line.fault is not None:
                replaced.setdefault(line.fault, []).append(machine)
    took: list[int] = []
    waiting = 0
    for fault in faults.by_id.values():
        if fault.machine is None or not _inside(fault.onset, since, until):
            continue
        out = _changes(history, fault.machine, fault.onset)
        first_out = next((at for at, word in out if word != "in_service"), None)
        if first_out is None and fault.id not in replaced:
            continue
        back = [at for at, word in out if word == "in_service" and first_out is not None and at > first_out]
        for machine in replaced.get(fault.id, ()):
            back += [at for at, word in _changes(history, machine, fault.onset) if word == "in_service"]
        if back:
            took.append(min(back) - fault.onset)
        else:
            waiting += 1
    return took, waiting


def _changes(history: History, machine: str, since: int) -> list[tuple[int, str]]:
    own = history.machines.get(machine)
    lines = own.lifecycle if own is not None else []
    return [(snap_ns(line.at_unix_ns), line.lifecycle) for line in lines if line.at_unix_ns >= since]


def _finished_again(timeline: RunTimeline, window: Window) -> int | None:
    """When the highest step that was finished before the stop was finished again."""
    if window.closer is None:
        return None
    highest = max((block.last for deed in timeline.deeds[: window.closer] for block in deed.blocks), default=None)
    for deed in timeline.deeds[window.closer :]:
        for block in deed.blocks:
            if highest is None or block.last >= highest:
                return _end_of(block.spans, block.count if highest is None else highest - block.first + 1, block.count)
    return None


def _end_of(spans: Sequence[tuple[int, int]], executed: int, count: int) -> int | None:
    """When so many of the block's evenly spread executions were finished; None if the block took no time."""
    left = length_ns(spans) * max(executed, 1) // count
    for start, end in spans:
        if left <= end - start:
            return start + left
        left -= end - start
    return None


def _inside(at: int, since: int | None, until: int | None) -> bool:
    return (since is None or since <= at) and (until is None or at < until)
