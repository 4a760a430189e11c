"""The second axis: which fault of which machine made it so. Labels; it never adds money."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuwatch.model.ledger import FaultBlamed, FaultClosed, FaultOpened, snap_ns

FOLLOWS_NS = 10 * 60 * 10**9  # a stop this long after a member's fault is laid to it, if nothing else is known
FOLLOWS_LIVE_NS = 60 * 10**9  # the same of a stand-still that goes on: it may only be the next step's time


@dataclass(slots=True)
class Fault:
    """One fault as finally known."""

    id: str
    kind: str
    cause: str
    onset: int
    detected: int
    run: str | None
    machine: str | None  # blamed; may be filled in later
    closed: int | None = None


class FaultBook:
    """All faults, found by id, by machine or by run."""

    def __init__(self, lines: Iterable[FaultOpened | FaultBlamed | FaultClosed]) -> None:
        self.by_id: dict[str, Fault] = {}
        for line in lines:
            if isinstance(line, FaultOpened):
                self.by_id.setdefault(line.fault, _opened(line))
        for line in lines:
            fault = self.by_id.get(line.fault)
            if fault is None:
                continue
            if isinstance(line, FaultBlamed):
                fault.machine = line.machine
            elif isinstance(line, FaultClosed):
                fault.closed = snap_ns(line.at_unix_ns)
        self._of_machine: defaultdict[str, list[Fault]] = defaultdict(list)
        self._of_run: defaultdict[str, list[Fault]] = defaultdict(list)
        for fault in sorted(self.by_id.values(), key=lambda fault: (fault.onset, fault.id)):
            if fault.machine is not None:
                self._of_machine[fault.machine].append(fault)
            if fault.run is not None:
                self._of_run[fault.run].append(fault)

    def blame(self, fault: str | None) -> str | None:
        """The broken machine, if known."""
        found = self.by_id.get(fault) if fault is not None else None
        return found.machine if found is not None else None

    def onsets_of(self, machine: str) -> Sequence[int]:
        """When faults of this machine began, sorted."""
        return [fault.onset for fault in self._of_machine.get(machine, ())]

    def of_machine(self, machine: str, since: int, until: int, *, open_at: int) -> str | None:
        """The latest fault of this machine with its onset in [since, until) that was not closed before `open_at`."""
        faults = self._of_machine.get(machine, [])
        last = bisect_left(faults, until, key=lambda fault: fault.onset) - 1
        while last >= 0 and faults[last].onset >= since:
            if _open(faults[last], open_at):
                return faults[last].id
            last -= 1
        return None

    def of_stop(
        self, run: str, members: Iterable[str], *, since: int, progress: int, until: int, over: bool
    ) -> str | None:
        """The fault that stopped an attempt, where its own end names none.

        `since`..`until`: the attempt; `progress`: its last proof of progress; `over`: it has ended. The run's own
        latest open fault; else of the members' faults the first that began after the progress (later ones follow from
        it); else the latest that began shortly before it and is open still; else none.
        """
        own = [fault for fault in self._of_run.get(run, ()) if since <= fault.onset <= until and _open(fault, progress)]
        if own:
            return own[-1].id
        follows_ns = FOLLOWS_NS if over else FOLLOWS_LIVE_NS
        after: list[tuple[int, str]] = []
        before: list[tuple[int, str]] = []
        for machine in members:
            for fault in self._of_machine.get(machine, ()):
                if progress <= fault.onset <= until:
                    after.append((fault.onset, fault.id))
                elif max(since, progress - follows_ns) <= fault.onset < progress and _open(fault, progress):
                    before.append((fault.onset, fault.id))
        if after:
            return min(after)[1]
        return max(before)[1] if before else None

    def straggler(self, run: str, start: int) -> str | None:
        """The open fault of kind `straggler` that names one node of this run: only then slow time has a fault."""
        for fault in self._of_run.get(run, ()):
            if fault.kind == "straggler" and fault.machine and fault.onset <= start and _open(fault, start):
                return fault.id
        return None


def _open(fault: Fault, at: int) -> bool:
    return fault.closed is None or fault.closed > at


def _opened(line: FaultOpened) -> Fault:
    return Fault(
        id=line.fault,
        kind=line.kind,
        cause=line.cause,
        onset=snap_ns(line.onset_unix_ns),
        detected=snap_ns(line.at_unix_ns),
        run=line.run,
        machine=line.machine,
    )
