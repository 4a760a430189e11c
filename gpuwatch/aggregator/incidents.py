"""Incidents as the ledger tells them: each fault from its opening to its end, with everything that was seen and done.

Nothing here is stored: after a restart the same lines give the same incidents.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Protocol

import msgspec

from gpuwatch.model.incident import Entry, Incident
from gpuwatch.model.ledger import (
    ActionStep,
    AttemptEnded,
    FaultBlamed,
    FaultClosed,
    FaultNote,
    FaultOpened,
    HealthChanged,
    HoldNoted,
    LedgerLine,
    LifeStarted,
)

LOG = logging.getLogger("gpuwatch.incidents")
KINDS = (
    "fault_opened",
    "fault_blamed",
    "fault_closed",
    "fault_note",
    "health",
    "hold",
    "action_step",
    "attempt_ended",
    "life_started",
)
"""Kinds of lines that an incident is told by."""
MAX_ENTRIES = 200
KEPT_CLOSED = 500

_BEGIN = {
    "drain": "draining {slot}: no new work goes there",
    "end_job": "looking at the job on it",
    "empty": "waiting until the scheduler says that {slot} is empty",
    "create": "asking the cloud for one new machine",
    "join": "waiting for {machine} to report",
    "validate": "judging {machine} before any work comes to it",
    "adopt": "giving the slot to {machine}",
    "resume": "giving {slot} back to the scheduler",
    "release": "releasing {machine}: its billing ends",
    "reimage": "giving {machine} a fresh system disk",
    "sign": "making out an order to the hands of {machine}",
    "order": "ordering {machine} to mend itself",
    "ended": "waiting for the stopped attempt to end",
    "undo_resume": "giving {slot} back to the scheduler",
    "undo_create": "releasing the new machine {machine}: it cannot be used",
    "undo_repair": "",
}
_DONE = {
    "drain": "{slot} takes no new work",
    "end_job": "",
    "empty": "the scheduler says that {slot} is empty",
    "create": "the cloud started {machine}",
    "join": "{machine} reports and its driver answers",
    "validate": "{machine} is judged healthy",
    "adopt": "{machine} fills {slot}",
    "resume": "{slot} is back in service",
    "release": "{machine} is released",
    "reimage": "the cloud gave {machine} a fresh system disk",
    "sign": "",
    "order": "the hands of {machine} did it",
    "ended": "the attempt is over",
    "undo_resume": "{slot} is back in service",
    "undo_create": "{machine} is released",
    "undo_repair": "{slot} stays drained",
}


class Follows(Protocol):
    """The ledger, as one who follows it sees it."""

    def last_row_id(self) -> int:
        """Where the ledger ends."""

    def lines_of(self, *kinds: str) -> list[LedgerLine]:
        """Every line of these kinds."""

    def lines_after(self, row_id: int) -> tuple[int, list[LedgerLine]]:
        """What was written after a row."""


class IncidentBook:
    """Follows the ledger, whoever writes it; asked for what is open. Safe to read from any thread."""

    def __init__(self, ledger: Follows) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._incidents: dict[str, Incident] = {}
        self._entries: dict[str, list[Entry]] = {}
        self._open: dict[str, str] = {}
        self._row_id = ledger.last_row_id()
        self.apply(ledger.lines_of(*KINDS))

    @property
    def open(self) -> dict[str, str]:
        """Machine, or `run:<run>` -> the fault that is open there."""
        with self._lock:
            return dict(self._open)

    def follow(self) -> None:
        """Take in what was written since the last call. Raises `StoreError`."""
        self._row_id, lines = self._ledger.lines_after(self._row_id)
        self.apply(lines)
        for line in lines:
            fault = getattr(line, "fault", None)
            text = told(line) if fault else ""
            if text:
                LOG.info("%s: %s", fault, text)

    def get(self, fault: str) -> Incident | None:
        """One incident with its timeline so far."""
        with self._lock:
            found = self._incidents.get(fault)
            if found is None:
                return None
            return msgspec.structs.replace(found, timeline=self._timeline(fault))

    def all(self) -> list[Incident]:
        """Every incident that is remembered: open ones first, then the latest."""
        with self._lock:
            found = sorted(self._incidents.values(), key=lambda i: (i.closed_unix_ns is not None, -i.detected_unix_ns))
            return [msgspec.structs.replace(item, timeline=self._timeline(item.fault)) for item in found]

    def free_id(self, wanted: str) -> str:
        """This fault id, or the next that was never used: an id names one fault for ever."""
        number, name = 1, wanted
        while name in self._incidents:
            number += 1
            name = f"{wanted}-{number}"
        return name

    def apply(self, lines: Iterable[LedgerLine]) -> None:
        """Take in lines in the order of their writing."""
        with self._lock:
            self._apply(lines)

    def _apply(self, lines: Iterable[LedgerLine]) -> None:
        for line in lines:
            if isinstance(line, FaultOpened):
                self._opened(line)
            fault = getattr(line, "fault", None)
            incident = self._incidents.get(fault) if fault else None
            if incident is None:
                continue
            if isinstance(line, FaultBlamed):
                self._change(incident, machine=line.machine)
                self._open.setdefault(line.machine, incident.fault)
            elif isinstance(line, FaultClosed):
                self._closed(incident, line)
            text = told(line)
            if isinstance(line, HealthChanged) and line.because == incident.because:
                word = line.health.replace("_", " ")
                early = line.at_unix_ns < incident.detected_unix_ns
                text = f"from here on {line.slot} counts as {word}" if early else f"{line.slot} is {word}"
            entries = self._entries[incident.fault]
            if text and len(entries) < MAX_ENTRIES:
                entries.append(Entry(at_unix_ns=line.at_unix_ns, text=text))

    def _timeline(self, fault: str) -> tuple[Entry, ...]:
        """In the order in which things happened: an onset is known later than it was."""
        return tuple(sorted(self._entries[fault], key=lambda entry: entry.at_unix_ns))

    def _opened(self, line: FaultOpened) -> None:
        if line.fault in self._incidents:
            return
        self._incidents[line.fault] = Incident(
            fault=line.fault,
            kind=line.kind,
            slot=line.slot,
            machine=line.machine,
            run=line.run,
            pool=line.pool,
            cause=line.cause,
            because=line.because,
            onset_unix_ns=line.onset_unix_ns,
            detected_unix_ns=line.at_unix_ns,
        )
        self._entries[line.fault] = []
        if line.machine is not None:
            self._open[line.machine] = line.fault
        elif line.run is not None:
            self._open[f"run:{line.run}"] = line.fault

    def _closed(self, incident: Incident, line: FaultClosed) -> None:
        self._change(incident, closed_unix_ns=line.at_unix_ns, closed_because=line.because)
        for key in [key for key, fault in self._open.items() if fault == incident.fault]:
            del self._open[key]
        closed = [item.fault for item in self._incidents.values() if item.closed_unix_ns is not None]
        for fault in closed[: max(0, len(closed) - KEPT_CLOSED)]:
            del self._incidents[fault], self._entries[fault]

    def _change(self, incident: Incident, **changes: object) -> None:
        self._incidents[incident.fault] = msgspec.structs.replace(self._incidents[incident.fault], **changes)


def told(line: LedgerLine) -> str:
    """A line of the ledger as a line of an incident's timeline; empty if it says nothing there."""
    match line:
        case FaultOpened():
            return f"detected: {line.because}"
        case FaultBlamed():
            return f"{line.machine} is blamed: {line.because}"
        case FaultClosed():
            return f"over: {line.because}"
        case FaultNote():
            return line.text
        case HealthChanged():
            return f"{line.slot} is {line.health.replace('_', ' ')}: {line.because}"
        case HoldNoted():
            return f"held ({line.reason.replace('_', ' ')}): {line.because}"
        case AttemptEnded():
            return f"{line.attempt} ended: {line.cause or line.ended}"
        case LifeStarted():
            return f"{line.machine} is billed from now on"
        case ActionStep():
            return _step(line)
        case _:
            return ""


def _step(line: ActionStep) -> str:
    names = {"slot": line.slot, "machine": line.machine}
    because = f" ({line.because})" if line.because else ""
    if line.state == "intended":
        return _BEGIN.get(line.step, line.step).format(**names)
    if line.state == "done":
        done = _DONE.get(line.step, f"{line.step} done").format(**names)
        return done + because if done else line.because
    return f"{line.kind.replace('_', ' ')} {line.state} at {line.step.replace('_', ' ')}{because}"
