"""From the lines of one kernel log to the events of a report: each told once, repeats counted.

An event's id is that of the line that told it, so that reading a log again gives the same ids.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpuwatch.faults.event import Event
from gpuwatch.faults.incidents import weight
from gpuwatch.faults.interpreter import Interpreter
from gpuwatch.model.facts.kernel_log import KernelEvent
from gpuwatch.sdk.kernel_lines import Line

TEXT_CHARACTERS = 400
SUBJECT_CHARACTERS = 120
FOLD_NS = 10 * 10**9  # repeats within one such stretch of time are one event
QUIET_NS = 60 * 10**9  # what drains nobody (a flood of corrected errors) is told once in this time, with a count
MOST_CRASHES = 32  # in this time of one Xid on one GPU that only repetition drains: 11,760 in a burst are one crash
ONE_LOSS_NS = 60 * 10**9  # a lost GPU is told in up to three ways within a moment
MOST_REMEMBERED = 1024  # GPUs that a log can name: far more than a node has, far fewer than a forger can invent

Key = tuple[object, ...]


class _Quiet(msgspec.Struct):
    since_ns: int
    told: int
    held: int = 0


class Telling:
    """Of one log."""

    def __init__(self) -> None:
        self._interpreter = Interpreter()
        self._boot = ""
        self._last: Line | None = None
        self._losses: dict[str | None, tuple[int, str, bool]] = {}  # GPU -> when, boot, told in words only
        self._quiet: dict[Key, _Quiet] = {}

    def tell(self, lines: Iterable[Line]) -> list[KernelEvent]:
        """The events of these lines. An empty list or tuple: nothing more comes, what was begun is told."""
        found: dict[Key, KernelEvent] = {}
        for line in lines:
            if line.event is not None:  # a daemon's: it is whole
                self._add(found, line.event, line, 0)
                continue
            if line.boot_id != self._boot:
                self._interpreter, self._boot = Interpreter(), line.boot_id
            self._last = line
            for number, event in enumerate(self._interpreter.hear(line.record)):
                self._add(found, event, line, number)
        if not lines and self._last is not None:
            for number, event in enumerate(self._interpreter.flush(), start=1):
                self._add(found, event, self._last, number)
        return list(found.values())

    def _add(self, found: dict[Key, KernelEvent], event: Event, line: Line, number: int) -> None:
        if event.xid == 79 and self._told_already(event, line):
            return
        repeats = line.record.repeats
        key = (line.boot_id, line.at_unix_ns // FOLD_NS, event.fold_key(), event.pid)
        known = found.get(key)
        if known is None:
            before = 0 if event.drain == "yes" or event.clears else self._held_back(event, line)
            if before is not None:
                found[key] = kernel_event(event, line, number, repeats + before)
            return
        count = known.count + repeats
        blamed = "via" in event.details and event.pci != known.pci  # a bus error that has found its device
        if weight(event) > weight(known) or blamed:
            worse = kernel_event(event, line, number, repeats)
            known = msgspec.structs.replace(worse, id=known.id, at_unix_ns=known.at_unix_ns)
        found[key] = msgspec.structs.replace(known, count=count)

    def _held_back(self, event: Event, line: Line) -> int | None:
        """How often it came since it was last told; None: hold this one back too. A storm must not push out what is
        fatal, and nobody wants to read it."""
        most = MOST_CRASHES if event.xid is not None and event.drain == "after_count" else 1
        key = (line.boot_id, event.fold_key())
        quiet = self._quiet.get(key)
        if quiet is None or not 0 <= line.at_unix_ns - quiet.since_ns < QUIET_NS:
            if len(self._quiet) > MOST_REMEMBERED:
                self._quiet.clear()
            self._quiet[key] = _Quiet(line.at_unix_ns, 1)
            return 0 if quiet is None else quiet.held
        if quiet.told < most:
            quiet.told += 1
            return 0
        quiet.held += line.record.repeats
        return None

    def _told_already(self, event: Event, line: Line) -> bool:
        """An Xid 79 and the words about the same GPU around it are one fault."""
        if len(self._losses) > MOST_REMEMBERED:
            self._losses.clear()
        before = self._losses.get(event.pci)
        self._losses[event.pci] = (line.at_unix_ns, line.boot_id, event.inferred)
        if before is None or before[1] != line.boot_id or abs(line.at_unix_ns - before[0]) > ONE_LOSS_NS:
            return False
        return event.inferred or before[2]


def kernel_event(event: Event, line: Line, number: int, count: int) -> KernelEvent:
    """As it travels."""
    mark = "" if number == 0 else f"+{number}"
    return KernelEvent(
        id=f"{line.boot_id}/{line.key}{mark}",
        at_unix_ns=line.at_unix_ns,
        kind=event.kind,
        text=line.record.message[:TEXT_CHARACTERS] if not event.inferred else event.text[:TEXT_CHARACTERS],
        xid=event.xid,
        pci=event.pci,
        pid=event.pid,
        name=event.name,
        severity=event.severity,
        action=event.action,
        drain=event.drain,
        boot_id=line.boot_id,
        count=count,
        clears=event.clears,
        inferred=event.inferred,
        sxid=event.sxid,
        subject=event.subject[:SUBJECT_CHARACTERS],
    )
