"""Attempts of a run, each with its members and how it ended.

An attempt ends at the latest when the run's next one starts. An init phase that opens in mid-attempt splits it: both
parts carry the same attempt id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from gpuwatch.cost.history import AttemptLine, RunHistory
from gpuwatch.model.ledger import AttemptEnded, AttemptStarted, PhaseBegan, PhaseEnded, RunClosed, StepEnded, snap_ns

Ended = Literal["exit0", "planned", "unplanned", "live"]
GIVE_UP_NS = 7 * 24 * 3600 * 1_000_000_000
_LONGEST_STEP_S = 7 * 24 * 3600.0  # a longer or endless expected step says nothing


@dataclass(slots=True)
class MemberSpan:
    """A machine with a rank in this part, from joining to leaving."""

    machine: str
    gpu_thousandths: int
    start: int
    end: int


@dataclass(slots=True, kw_only=True)
class Part:
    """One attempt, or what lies between two restarts inside one."""

    run: str
    attempt: str
    start: int
    end: int
    ended: Ended
    cause: str = ""
    fault: str | None = None
    members: list[MemberSpan] = field(default_factory=list)
    lines: list[AttemptLine] = field(default_factory=list)
    world_size: int | None = None
    tokens_per_step: int | None = None
    expected_ns: int | None = None

    @property
    def has_evidence(self) -> bool:
        """Some rank reported a step or a phase."""
        return any(isinstance(line, StepEnded | PhaseBegan | PhaseEnded) for line in self.lines)

    @property
    def scale(self) -> tuple[int, int | None, int | None]:
        """What must stay the same for step times to be comparable: node count, world size, tokens per step."""
        return len(self.members), self.world_size, self.tokens_per_step


@dataclass(slots=True)
class Closing:
    """When and how a run closed; `at` is None while it is open."""

    at: int | None
    how: str = ""  # exit0 | declared | given_up


def parts_of(run: str, history: RunHistory, now: int) -> list[Part]:
    """The run's attempts in order of start, split at restarts inside them. `now` is snapped."""
    by_id: dict[str, list[AttemptStarted]] = {}
    for line in history.started:
        by_id.setdefault(line.attempt, []).append(line)
    order = sorted((snap_ns(lines[0].at_unix_ns), attempt) for attempt, lines in by_id.items())
    declared = next((line for line in history.closed), None)
    parts: list[Part] = []
    for index, (start, attempt) in enumerate(order):
        limit = order[index + 1][0] if index + 1 < len(order) else None
        ends = [line for line in history.ended if line.attempt == attempt]
        end, ended, cause, fault = _end(start, ends, limit, declared, now)
        first = by_id[attempt]
        whole = Part(run=run, attempt=attempt, start=start, end=end, ended=ended, cause=cause, fault=fault)
        whole.lines = history.steps.get(attempt, [])
        whole.members = _members(first, history, attempt, start, end)
        whole.world_size = next((line.world_size for line in reversed(first) if line.world_size is not None), None)
        whole.tokens_per_step = next(
            (s.tokens_per_step for s in reversed(first) if s.tokens_per_step is not None), None
        )
        stated = (line.expected_step_s for line in reversed(first) if line.expected_step_s is not None)
        expected_s = next((seconds for seconds in stated if 0 < seconds < _LONGEST_STEP_S), None)
        whole.expected_ns = snap_ns(round(expected_s * 1e9)) if expected_s is not None else None
        parts += _split(whole)
    return parts


def _end(
    start: int, ends: Sequence[AttemptEnded], limit: int | None, closed: RunClosed | None, now: int
) -> tuple[int, Ended, str, str | None]:
    last = ends[-1] if ends else None
    if last is not None:
        end = max(snap_ns(last.at_unix_ns), start)
        fault = next((line.fault for line in reversed(ends) if line.fault is not None), None)
        # A stop ordered because of a fault is no planned one: the fault caused it, the order only carried it out.
        ended: Ended = "unplanned" if last.ended == "planned" and fault is not None else last.ended
        if limit is not None and limit < end:
            return limit, ended, last.cause, fault
        return end, ended, last.cause, fault
    if limit is not None:
        return limit, "unplanned", "superseded", None
    if closed is not None and snap_ns(closed.at_unix_ns) >= start:
        how: dict[str, Ended] = {"exit0": "exit0", "declared": "planned", "given_up": "unplanned"}
        return snap_ns(closed.at_unix_ns), how[closed.how], closed.how, None
    return now, "live", "", None


def _members(
    lines: Sequence[AttemptStarted], history: RunHistory, attempt: str, start: int, end: int
) -> list[MemberSpan]:
    left = {line.machine: snap_ns(line.at_unix_ns) for line in reversed(history.left) if line.attempt == attempt}
    spans: dict[str, MemberSpan] = {}
    for line in lines:
        at = max(snap_ns(line.at_unix_ns), start)
        for member in line.members:
            known = spans.get(member.machine)
            if known is not None:
                known.gpu_thousandths = member.gpu_thousandths
            else:
                until = min(end, max(left.get(member.machine, end), at))
                spans[member.machine] = MemberSpan(member.machine, member.gpu_thousandths, min(at, end), until)
    return [spans[machine] for machine in sorted(spans)]


def _split(whole: Part) -> list[Part]:
    cuts: list[int] = []
    seen = False
    for line in whole.lines:
        at = snap_ns(line.at_unix_ns)
        if isinstance(line, PhaseBegan) and line.phase == "init":
            if seen and whole.start < at < whole.end:
                cuts.append(at)
            seen = False
        elif isinstance(line, StepEnded | PhaseBegan | PhaseEnded):
            seen = True
    if not cuts:
        return [whole]
    parts: list[Part] = []
    edges = [whole.start, *cuts, whole.end]
    for index, (start, end) in enumerate(pairwise(edges)):
        last = index == len(cuts)
        part = Part(
            run=whole.run,
            attempt=whole.attempt,
            start=start,
            end=end,
            ended=whole.ended if last else "unplanned",
            cause=whole.cause if last else "restart_in_place",
            fault=whole.fault if last else None,
            world_size=whole.world_size,
            tokens_per_step=whole.tokens_per_step,
            expected_ns=whole.expected_ns,
        )
        part.members = [
            MemberSpan(m.machine, m.gpu_thousandths, max(m.start, start), min(m.end, end))
            for m in whole.members
            if max(m.start, start) < min(m.end, end)
        ]
        part.lines = [line for line in whole.lines if _belongs(line, start, end, first=index == 0, last=last)]
        parts.append(part)
    return parts


def _belongs(line: AttemptLine, start: int, end: int, *, first: bool, last: bool) -> bool:
    at = snap_ns(line.at_unix_ns)
    if isinstance(line, PhaseBegan):  # what opens at the cut belongs to the part after it
        return (first or at >= start) and (last or at < end)
    return (first or at > start) and (last or at <= end)


def closing_of(parts: Sequence[Part], history: RunHistory, now: int, give_up_ns: int = GIVE_UP_NS) -> Closing:
    """When the run closed: exit 0 of its last attempt, a declaration, or a long silence after its last attempt."""
    if not parts:
        return Closing(None)
    last = parts[-1]
    declared = [line for line in history.closed if snap_ns(line.at_unix_ns) >= last.start]
    if last.ended == "exit0":
        return Closing(last.end, "exit0")
    if declared:
        return Closing(max(snap_ns(declared[0].at_unix_ns), last.end), declared[0].how)
    if last.ended != "live" and now - last.end >= give_up_ns:
        return Closing(last.end + give_up_ns - give_up_ns % 3600, "given_up")
    return Closing(None)
