"""What a run's time was, second by second, for every node that is in use by it.

Segments of one part cover [start, end) of the part without gap or overlap. They hold for each of its members.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from gpuwatch.cost.attempts import GIVE_UP_NS, Closing, Part, closing_of, parts_of
from gpuwatch.cost.executions import Block, Deeds, deeds_of
from gpuwatch.cost.faults import FaultBook
from gpuwatch.cost.history import RunHistory
from gpuwatch.cost.lost import Fate, fates_of, safe_step
from gpuwatch.cost.recovery import Claim, Window, claims_of, windows_of
from gpuwatch.cost.spans import Span, clip, length_ns, take, united, without
from gpuwatch.cost.step_time import StepTime, UsualLength, is_slow
from gpuwatch.model.ledger import TICK_NS, snap_ns
from gpuwatch.model.money import Category

REPORT_LAG_NS = 60 * 10**9  # the ledger is at most so far behind the gang; then it says that the evidence is lost

_PHASES = {"init": Category.STARTUP, "checkpoint": Category.CHECKPOINT, "evaluate": Category.EVALUATION}


class Segment(NamedTuple):
    """One stretch of a part's time in one category."""

    start: int
    end: int
    category: Category
    fault: str | None = None
    cause: str = ""
    provisional: bool = False


@dataclass(slots=True)
class RunTimeline:
    """Everything the partition and the ratios need of one run."""

    run: str
    team: str | None
    user: str | None
    deeds: list[Deeds]
    closing: Closing
    windows: list[Window]
    segments: list[list[Segment]]  # one list a part
    claims: list[tuple[Claim, Window]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def launched(self) -> int:
        return self.deeds[0].part.start


def timeline_of(
    run: str, history: RunHistory, faults: FaultBook, now: int, give_up_ns: int = GIVE_UP_NS
) -> RunTimeline | None:
    """One run's timeline; None if no attempt of it was ever recorded. `now` is snapped."""
    parts = parts_of(run, history, now)
    if not parts:
        return None
    closing = closing_of(parts, history, now, give_up_ns)
    times, usual = StepTime(), UsualLength()
    deeds = []
    for part in parts:
        before = [save for save in history.saves if snap_ns(save.at_unix_ns) <= part.start]
        deeds.append(deeds_of(part, times, usual, before))
    for deed in deeds:
        _find_fault(deed, faults)
    windows = windows_of(deeds, closing, now)
    safe = safe_step(deeds, history.saves)
    fates = fates_of(deeds, windows, safe, closing)
    result = RunTimeline(
        run=run,
        team=next((line.team for line in reversed(history.started) if line.team is not None), None),
        user=next((line.user for line in reversed(history.started) if line.user is not None), None),
        deeds=deeds,
        closing=closing,
        windows=windows,
        segments=[
            _segments(deed, fates, faults, [w for w in windows if w.start < deed.part.end and deed.part.start < w.end])
            for deed in deeds
        ],
    )
    result.claims = [(claim, window) for window in windows for claim in claims_of(deeds, window)]
    if not history.saves and closing.at is not None and closing.how != "exit0" and any(d.blocks for d in deeds):
        result.findings.append(
            f"run {run} closed ({closing.how}) and never reported a checkpoint: its tail stays as it is"
        )
    return result


def _find_fault(deed: Deeds, faults: FaultBook) -> None:
    part = deed.part
    if part.fault is not None or part.ended not in ("unplanned", "live"):
        return
    members = [member.machine for member in part.members]
    part.fault = faults.of_stop(
        part.run, members, since=part.start, progress=deed.last_evidence, until=part.end, over=part.ended != "live"
    )


def _segments(deed: Deeds, fates: dict[int, Fate], faults: FaultBook, windows: Sequence[Window]) -> list[Segment]:
    """Recovery first, then what is unknown, then what the steps and phases show."""
    part = deed.part
    if part.start >= part.end:
        return []
    shown: list[Segment] = []
    if part.has_evidence:
        shown += [Segment(a, b, Category.STARTUP) for a, b in deed.startup]
        shown += [segment for block in deed.blocks for segment in _block(block, fates[id(block)], part, faults)]
        shown += _phases(deed)
        shown += _under_way(deed)
    whole = [(part.start, part.end)]
    recovering = united(span for window in windows for span in clip(whole, window.start, window.end))
    blind_from = part.start if not part.has_evidence else deed.blind_from
    unknown = without(clip(whole, blind_from, part.end), recovering) if blind_from is not None else []
    result = [
        Segment(a, b, Category.RECOVERY, window.fault_at(a), "", window.open)
        for window in windows
        for span in clip(whole, window.start, window.end)
        for a, b in window.between_stops(*span)
    ]
    result += [Segment(a, b, Category.UNKNOWN, None, "no_step_evidence", part.ended == "live") for a, b in unknown]
    taken = united([*recovering, *unknown])
    for segment in shown:
        result += [segment._replace(start=a, end=b) for a, b in without([(segment.start, segment.end)], taken)]
    result.sort(key=lambda segment: segment.start)
    return _merged(result)


def _merged(segments: Iterable[Segment]) -> list[Segment]:
    result: list[Segment] = []
    for segment in segments:
        if segment.start >= segment.end:
            continue
        if result and result[-1].end == segment.start and result[-1][2:] == segment[2:]:
            result[-1] = result[-1]._replace(end=segment.end)
        else:
            result.append(segment)
    return result


def _block(block: Block, fate: Fate, part: Part, faults: FaultBook) -> list[Segment]:
    """Finished executions: lost ones whole; kept ones up to the ideal, the excess of slow ones is `slow`."""
    total = length_ns(block.spans)
    result: list[Segment] = []
    left = block.spans
    edges = sorted({block.first, block.last + 1, *(edge for edge in fate.edges if block.first < edge <= block.last)})
    for first, after in pairwise(edges):
        until = total * (after - block.first) // block.count
        done = total - length_ns(left)
        mine, left = take(left, until - until % TICK_NS - done if after <= block.last else total)
        lost = fate.lost(first)
        if lost is not None:
            result += [Segment(a, b, Category.LOST_WORK, lost.fault, lost.cause) for a, b in mine]
        else:
            result += _kept(block, first, after, mine, fate.provisional(first), part, faults)
    return result


def _kept(
    block: Block, first: int, after: int, spans: list[Span], provisional: bool, part: Part, faults: FaultBook
) -> list[Segment]:
    result: list[Segment] = []
    total, step = length_ns(block.spans), block.first
    left = spans
    for count, ideal in block.ideals:
        mine = max(0, min(step + count, after) - max(step, first))
        step += count
        if not mine:
            continue
        share = length_ns(left) if step >= after else total * mine // block.count // TICK_NS * TICK_NS
        chunk, left = take(left, share)
        if ideal is None or not is_slow(total, block.count, ideal):
            result += [Segment(a, b, Category.PRODUCTIVE, provisional=provisional) for a, b in chunk]
            continue
        good, slow = take(chunk, mine * ideal // TICK_NS * TICK_NS)
        result += [Segment(a, b, Category.PRODUCTIVE, provisional=provisional) for a, b in good]
        for a, b in slow:
            result.append(Segment(a, b, Category.SLOW, faults.straggler(part.run, a), "", provisional))
    return result


def _phases(deed: Deeds) -> list[Segment]:
    """A phase is its own category; one under way at an unplanned end, or now, at most for its usual length."""
    part = deed.part
    result: list[Segment] = []
    for phase in deed.phases:
        category = _PHASES[phase.kind]
        if not phase.open or part.ended in ("planned", "exit0"):
            result.append(Segment(phase.start, phase.end, category))
            continue
        until = min(snap_ns(phase.start + phase.usual_ns), phase.end)
        live = part.ended == "live"
        if live and _may_go_on(part, until, phase.end):
            until = phase.end
        result.append(Segment(phase.start, until, category, None, "", live))
        result.append(Segment(until, phase.end, Category.HUNG, part.fault, part.cause, live))
    return [segment for segment in result if segment.start < segment.end]


def _may_go_on(part: Part, since: int, now: int) -> bool:
    """Nothing has been heard since the ideal time passed, and no fault says that it stands still.

    A hang takes a fresh report without progress. While the next one may only be on its way it is none.
    """
    return part.fault is None and now - since <= REPORT_LAG_NS


def _under_way(deed: Deeds) -> list[Segment]:
    """The execution that was not finished: work up to the ideal time, then a hang, or teardown of a planned end."""
    part = deed.part
    if part.ended == "exit0":
        return [Segment(a, b, Category.STARTUP, None, "teardown") for a, b in [*deed.unfinished, *deed.open_spans]]
    work, beyond = take(deed.open_spans, deed.cut_ns // TICK_NS * TICK_NS)
    work = [*deed.unfinished, *work]
    if part.ended == "live":
        if beyond and _may_go_on(part, beyond[0][0], part.end):
            work, beyond = [*work, *beyond], []
        result = [Segment(a, b, Category.PRODUCTIVE, None, "", True) for a, b in work]
        return result + [Segment(a, b, Category.HUNG, part.fault, part.cause, True) for a, b in beyond]
    result = [Segment(a, b, Category.LOST_WORK, part.fault, part.cause) for a, b in work]
    if part.ended == "planned":
        return result + [Segment(a, b, Category.STARTUP, None, "teardown") for a, b in beyond]
    return result + [Segment(a, b, Category.HUNG, part.fault, part.cause) for a, b in beyond]
