"""Recovery windows: from an unplanned end to the start of the first execution of the attempt that starts one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuwatch.cost.attempts import Closing
from gpuwatch.cost.executions import Deeds
from gpuwatch.cost.spans import Span


@dataclass(slots=True)
class Window:
    """One recovery of one run. `parts`: indices of its opener and of the attempts that lie inside."""

    start: int
    end: int
    open: bool  # nothing has ended it yet
    parts: list[int]
    stops: list[tuple[int, str | None]]  # from this moment on the recovery carries this fault
    closer: int | None = None  # index of the attempt that ended it

    def fault_at(self, at: int) -> str | None:
        """The latest stop's own fault, else the earlier one's."""
        fault: str | None = None
        for since, own in self.stops:
            if since <= at and own is not None:
                fault = own
        return fault

    def between_stops(self, start: int, end: int) -> list[Span]:
        """[start, end) cut where another stop follows, because its fault may be another one."""
        edges = [start, *(since for since, _ in self.stops if start < since < end), end]
        return list(pairwise(edges))


@dataclass(slots=True)
class Claim:
    """A machine is in use for a recovery during [start, end), if it is held by the run and not cordoned then."""

    machine: str
    start: int
    end: int
    attempt: str  # the one that ended


def windows_of(deeds: Sequence[Deeds], closing: Closing, now: int) -> list[Window]:
    """All windows of one run, in order, without overlap."""
    windows: list[Window] = []
    index = 0
    while index < len(deeds):
        part = deeds[index].part
        if part.ended != "unplanned":
            index += 1
            continue
        window = Window(part.end, now, True, [index], [(part.end, part.fault)])
        index += 1
        while index < len(deeds):
            later = deeds[index]
            starts = later.part.start if not later.part.has_evidence else later.first_execution
            if starts is not None:
                window.end, window.open, window.closer = max(starts, window.start), False, index
                break
            window.parts.append(index)
            if later.part.ended != "live":
                window.stops.append((later.part.end, later.part.fault))
            index += 1
        if window.open and closing.at is not None:
            window.end, window.open = max(closing.at, window.start), False
        windows.append(window)
    return windows


def claims_of(deeds: Sequence[Deeds], window: Window) -> list[Claim]:
    """Who is in use between attempts: members of the one that ended last, and those assigned a rank in the next."""
    claims: list[Claim] = []
    chain = [*window.parts, *([window.closer] if window.closer is not None else [])]
    for position, index in enumerate(window.parts):
        part = deeds[index].part
        inside_next = position + 1 < len(window.parts)
        until = min(deeds[window.parts[position + 1]].part.end, window.end) if inside_next else window.end
        claims += [Claim(m.machine, part.end, until, part.attempt) for m in part.members if m.end >= part.end]
    for earlier, later in pairwise(chain):
        previous, part = deeds[earlier].part, deeds[later].part
        since = previous.end if earlier == window.parts[0] else previous.start
        for start, end in window.between_stops(since, min(part.start, window.end)):
            claims += [Claim(m.machine, start, end, previous.attempt) for m in part.members if m.start <= part.start]
    return [claim for claim in claims if claim.start < claim.end]
