"""Which run each fault hit, read from the ledger in the order of its writing, so that the answer never changes.

An alert's labels must be the same after a restart. So the run of a node's fault is the one whose member the machine was
when the fault's own line was written, and only lines that stand before it count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gpuwatch.model.ledger import AttemptEnded, AttemptStarted, FaultOpened, LedgerLine, MemberLeft

KINDS = ("attempt_started", "attempt_ended", "member_left", "fault_opened")


class Follows(Protocol):
    """The ledger, as one who follows it sees it."""

    def last_row_id(self) -> int:
        """Where the ledger ends."""

    def lines_of(self, *kinds: str) -> list[LedgerLine]:
        """Every line of these kinds."""

    def lines_after(self, row_id: int) -> tuple[int, list[LedgerLine]]:
        """What was written after a row."""


class AlertRuns:
    """Fault -> run. One thread uses it."""

    def __init__(self, ledger: Follows) -> None:
        self._ledger = ledger
        self._members: dict[str, tuple[str, set[str]]] = {}  # attempt -> run and machines
        self._runs: dict[str, str] = {}
        self._row_id = ledger.last_row_id()
        self._apply(ledger.lines_of(*KINDS))

    def run_of(self, fault: str) -> str:
        """The run that this fault hit; empty if it hit none. Raises `StoreError`."""
        if fault not in self._runs:
            self._row_id, lines = self._ledger.lines_after(self._row_id)
            self._apply(lines)
        return self._runs.get(fault, "")

    def _apply(self, lines: Iterable[LedgerLine]) -> None:
        for line in lines:
            if isinstance(line, AttemptStarted):
                _, machines = self._members.setdefault(line.attempt, (line.run, set()))
                machines.update(member.machine for member in line.members)
            elif isinstance(line, AttemptEnded):
                self._members.pop(line.attempt, None)
            elif isinstance(line, MemberLeft):
                self._members.get(line.attempt, ("", set[str]()))[1].discard(line.machine)
            elif isinstance(line, FaultOpened):
                self._runs.setdefault(line.fault, line.run or self._run_with(line.machine))

    def _run_with(self, machine: str | None) -> str:
        return next((run for run, machines in self._members.values() if machine in machines), "")
