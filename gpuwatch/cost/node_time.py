"""One machine's billed time, every tick of every GPU in one category: the first match wins.

Facts of the node's own life first, then what the run shows, then intentions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuwatch.cost.attempts import MemberSpan, Part
from gpuwatch.cost.bills import Piece
from gpuwatch.cost.condition import BROKEN, OUT_OF_SERVICE, health_of, served_from, windows_announced
from gpuwatch.cost.faults import FaultBook
from gpuwatch.cost.history import MachineHistory
from gpuwatch.cost.lives import Life
from gpuwatch.cost.recovery import Claim, Window
from gpuwatch.cost.shares import scaled
from gpuwatch.cost.timeline import Segment
from gpuwatch.model.ledger import NodeHeld, snap_ns
from gpuwatch.model.money import Category


class Label(NamedTuple):
    """Everything about a stretch of time but its place on the clock and its share of the machine."""

    category: Category
    run: str | None = None
    attempt: str | None = None
    fault: str | None = None
    cause: str = ""
    provisional: bool = False


class Stretch(NamedTuple):
    """A share of the machine in one category for a while. `label` None: healthy and free (the quota decides)."""

    start: int
    end: int
    gpu_thousandths: int
    piece: Piece
    label: Label | None


@dataclass(slots=True)
class Usage:
    """What the runs say about one machine."""

    members: list[tuple[MemberSpan, Part, Sequence[Segment], Sequence[int]]] = field(default_factory=list)
    claims: list[tuple[Claim, Window, str]] = field(default_factory=list)  # with the run
    closed: dict[str, int] = field(default_factory=dict)  # run -> when it closed; a hold ends there


def stretches_of(
    machine: str,
    history: MachineHistory,
    lives: Sequence[Life],
    pieces: Sequence[Piece],
    usage: Usage,
    faults: FaultBook,
) -> list[Stretch]:
    """All stretches of one machine, in order of time."""
    sweep = _Sweep(machine, history, lives, usage, faults)
    result: list[Stretch] = []
    for piece in pieces:
        life = piece.life
        if piece.forced is not None or life is None:
            capacity = life.capacity if life is not None else 1000
            label = Label(piece.forced or Category.UNKNOWN, cause=piece.cause)
            result.append(Stretch(piece.start, piece.end, capacity, piece, label))
        else:
            result += sweep.classify(piece, life)
    return result


class _Sweep:
    """Walks the machine's events once; pieces must come in order of time."""

    def __init__(
        self, machine: str, history: MachineHistory, lives: Sequence[Life], usage: Usage, faults: FaultBook
    ) -> None:
        self.machine = machine
        self.faults = faults
        self.served = dict(zip((life.start for life in lives), served_from(lives, history), strict=True))
        self.lifecycle: str | None = None
        self.health: str | None = None
        self.lifecycle_fault: str | None = None
        self.health_fault: str | None = None
        self.repairing = False
        self.in_window = False
        self.ok_since = 0
        self.sick_since: int | None = None
        self.members: dict[int, tuple[MemberSpan, Part, Sequence[Segment]]] = {}
        self.claims: dict[int, tuple[Claim, Window, str]] = {}
        self.holds: dict[str, int | None] = {}
        self.shares: dict[str, int] = {}  # the run's latest share here as a member
        self.events: list[tuple[int, int, int, tuple[object, ...]]] = []
        self._collect(history, usage)
        for life in lives:
            self._add(self.served[life.start], 0, ("cut",))
        self.events.sort(key=lambda event: event[:3])
        self.next = 0

    def _add(self, at: int, order: int, event: tuple[object, ...]) -> None:
        self.events.append((at, order, len(self.events), event))

    def _collect(self, history: MachineHistory, usage: Usage) -> None:
        for line in history.lifecycle:
            self._add(snap_ns(line.at_unix_ns), 1, ("lifecycle", line.lifecycle, line.fault))
        for since in health_of(history, [(span, ends) for span, _, _, ends in usage.members]):
            self._add(since.at, 1, ("health", since.health, since.fault))
        for step in history.repairs:
            self._add(snap_ns(step.at_unix_ns), 2, ("repair",))
        for start, end in windows_announced(history):
            self._add(start, 1, ("window", True))
            self._add(end, 0, ("window", False))
        for index, (span, part, segments, _) in enumerate(usage.members):
            if span.start < span.end:
                self._add(span.start, 1, ("join", index, span, part, segments))
                self._add(span.end, 0, ("leave", index))
        for index, (claim, window, run) in enumerate(usage.claims):
            self._add(claim.start, 1, ("claim", index, claim, window, run))
            self._add(claim.end, 0, ("unclaim", index))
        for hold in history.holds:
            at = snap_ns(hold.at_unix_ns)
            if not isinstance(hold, NodeHeld):
                self._add(at, 0, ("let_go", hold.run))
            elif at < usage.closed.get(hold.run, at + 1):
                self._add(at, 1, ("held", hold.run, hold.gpu_thousandths))
                if hold.run in usage.closed:
                    self._add(usage.closed[hold.run], 0, ("let_go", hold.run))

    def _apply(self, at: int, event: tuple[object, ...]) -> None:
        match event:
            case ("lifecycle", str(word), fault):
                self.lifecycle = word
                self.lifecycle_fault = None if word == "in_service" else _text(fault) or self.lifecycle_fault
                if word == "in_service":
                    self.repairing = False
                elif word in ("repairing", "validating"):
                    self.repairing = True
            case ("health", str(word), fault):
                self.health = word
                self.health_fault = None if word == "healthy" else _text(fault) or self.health_fault
            case ("repair",):
                self.repairing = self.repairing or self.lifecycle in OUT_OF_SERVICE
            case ("window", bool(on)):
                self.in_window = on
            case ("join", int(index), MemberSpan() as span, Part() as part, segments):
                self.members[index] = (span, part, segments)  # type: ignore[assignment]
                self.shares[part.run] = span.gpu_thousandths
            case ("leave", int(index)):
                self.members.pop(index, None)
            case ("claim", int(index), Claim() as claim, Window() as window, str(run)):
                self.claims[index] = (claim, window, run)
            case ("unclaim", int(index)):
                self.claims.pop(index, None)
            case ("held", str(run), share):
                self.holds[run] = share if isinstance(share, int) else None
            case ("let_go", str(run)):
                self.holds.pop(run, None)
            case _:
                pass
        sound = self.health == "healthy" and self.lifecycle in ("in_service", None)
        if sound and self.sick_since is not None:
            self.ok_since, self.sick_since = at, None
        elif not sound and self.sick_since is None:
            self.sick_since = at

    def classify(self, piece: Piece, life: Life) -> list[Stretch]:
        """The stretches of one piece of a life."""
        result: list[Stretch] = []
        cursor = piece.start
        while cursor < piece.end:
            while self.next < len(self.events) and self.events[self.next][0] <= cursor:
                self._apply(self.events[self.next][0], self.events[self.next][3])
                self.next += 1
            upcoming = self.events[self.next][0] if self.next < len(self.events) else piece.end
            until = min(upcoming, piece.end)
            for start, end, share, label in self._shares(cursor, until, life):
                result.append(Stretch(start, end, share, piece, label))
            cursor = until
        return result

    def _shares(self, start: int, end: int, life: Life) -> Iterable[tuple[int, int, int, Label | None]]:
        """Deal the machine's GPUs to the runs that use it, then to those that hold it; the rest is free."""
        capacity = life.capacity
        using = {part.run: (self._cap(span.gpu_thousandths, life), index) for index, (span, part, _) in self._live()}
        cordoned = self.lifecycle in OUT_OF_SERVICE
        waiting: dict[str, tuple[int, int]] = {}
        for index in sorted(self.claims):
            run = self.claims[index][2]
            if run not in using and run in self.holds and not cordoned:
                waiting.setdefault(run, (self._held_share(run, life), index))
        users = sorted({**using, **waiting}.items())
        shares = scaled([share for _, (share, _) in users], capacity)
        rest = capacity - sum(shares)
        for (run, (_, index)), share in zip(users, shares, strict=True):
            if share and run in using:
                yield from self._in_attempt(start, end, share, index, life)
            elif share:
                claim, window, _ = self.claims[index]
                label = self._own(start, end, life, run, claim.attempt, in_attempt=False)
                if label is None:
                    fault = window.fault_at(start)
                    label = Label(Category.RECOVERY, run, claim.attempt, fault, "", window.open)
                yield start, end, share, label
        used = {run: share for (run, _), share in zip(users, shares, strict=True)}
        holders = [(run, max(self._held_share(run, life) - used.get(run, 0), 0)) for run in sorted(self.holds)]
        held = scaled([share for _, share in holders], rest)
        for (run, _), share in zip(holders, held, strict=True):
            if share:
                yield start, end, share, self._not_in_use(start, end, life, run)
        if rest - sum(held):
            yield start, end, rest - sum(held), self._not_in_use(start, end, life, None)

    def _live(self) -> list[tuple[int, tuple[MemberSpan, Part, Sequence[Segment]]]]:
        return sorted(self.members.items())

    def _cap(self, thousandths: int, life: Life) -> int:
        return life.capacity if life.gpu_count == 0 else min(thousandths, life.capacity)

    def _held_share(self, run: str, life: Life) -> int:
        share = self.holds[run]
        if share is None:
            share = self.shares.get(run, life.capacity)
        return self._cap(share, life)

    def _own(
        self, start: int, end: int, life: Life, run: str | None, attempt: str | None, *, in_attempt: bool
    ) -> Label | None:
        """Order 1 to 3: what the node's own life says. None: it says nothing against its use."""
        if start < self.served[life.start]:
            return Label(Category.PROVISIONING, run, attempt, life.fault)
        if self.in_window and self.health in ("dead", "absent"):
            return Label(Category.MAINTENANCE, run, attempt)
        if self.health == "absent":
            return Label(Category.UNKNOWN, run, attempt, None, "billed_while_absent")
        if self.health in BROKEN and (in_attempt or self.lifecycle in ("in_service", None)):
            fault = self.health_fault or self.lifecycle_fault or self._known_fault(end)
            return Label(Category.DEAD, run, attempt, fault, self.health or "")
        return None

    def _in_attempt(
        self, start: int, end: int, share: int, index: int, life: Life
    ) -> Iterable[tuple[int, int, int, Label]]:
        _, part, segments = self.members[index]
        own = self._own(start, end, life, part.run, part.attempt, in_attempt=True)
        if own is not None:
            yield start, end, share, own
            return
        first = max(bisect_right(segments, start, key=lambda segment: segment.start) - 1, 0)
        for segment in segments[first:]:
            if segment.start >= end:
                break
            a, b = max(segment.start, start), min(segment.end, end)
            if a < b:
                yield a, b, share, Label(segment.category, part.run, part.attempt, *segment[3:])

    def _not_in_use(self, start: int, end: int, life: Life, run: str | None) -> Label | None:
        """The table of node states. None: healthy and free."""
        if start < self.served[life.start]:
            return Label(Category.PROVISIONING, run, None, life.fault)
        if self.in_window:
            return Label(Category.MAINTENANCE, run)
        own = self._own(start, end, life, run, None, in_attempt=False)
        if own is not None:
            return own
        fault = self.lifecycle_fault or self.health_fault
        if self.lifecycle in ("repairing", "validating", "quarantined") or (
            self.lifecycle in OUT_OF_SERVICE and self.repairing
        ):
            return Label(Category.QUARANTINE, run, None, fault or self._known_fault(end))
        if self.lifecycle in OUT_OF_SERVICE:
            cause = "billed_after_release" if self.lifecycle == "retired" else ""
            return Label(Category.DRAINING, run, None, fault or self._known_fault(end), cause)
        if self.health in ("joining", "suspect", "degraded"):
            return Label(Category.QUARANTINE, run, None, fault or self._known_fault(end), self.health)
        if self.health != "healthy" or self.lifecycle is None:
            return Label(Category.UNKNOWN, run, None, None, "no_evidence")
        return Label(Category.SPARE, run) if run is not None else None

    def _known_fault(self, until: int) -> str | None:
        since = self.sick_since if self.sick_since is not None else self.ok_since
        return self.faults.of_machine(self.machine, self.ok_since, until, open_at=since)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
