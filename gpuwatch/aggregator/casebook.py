"""When an incident opens and when it is over. Pure: what is known in, ledger lines out.

A fault is opened when a verdict condemns (a suspicion is none), and stays the same fault while it gets worse. It is
over when the node is well and in service again, or its replacement is; a stalled run's, when it makes progress again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuwatch.aggregator.incidents import IncidentBook
from gpuwatch.model.incident import Incident
from gpuwatch.model.ledger import AttemptEnded, FaultBlamed, FaultClosed, FaultOpened, LedgerLine, snap_ns
from gpuwatch.model.run import RunView
from gpuwatch.model.states import SICK, Health, Lifecycle
from gpuwatch.model.verdict import Judgement, Verdict
from gpuwatch.model.view import FleetView, NodeView


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the casebook may look at besides the book."""

    fleet: FleetView
    judgement: Judgement
    busy: Mapping[str, str]  # fault -> action that is under way for it
    replaced: Mapping[str, str]  # fault -> the machine that took the broken one's place
    run_is_open: Callable[[str], bool]  # a job of this run is running or waiting to run
    now_unix_ns: int


def openings(book: IncidentBook, known: Known) -> list[LedgerLine]:
    """A line for each fault that has no incident yet."""
    lines: list[LedgerLine] = []
    views = {view.machine: view for view in known.fleet.nodes}
    open_now = book.open
    for verdict in known.judgement.nodes:
        view = views.get(verdict.machine)
        if view is not None and _condemned(verdict) and verdict.machine not in open_now:
            lines += _of_node(book, verdict, view, known)
    for stalled in known.judgement.runs:
        if stalled.explained_by or f"run:{stalled.run}" in open_now:
            continue
        pools = [views[machine].pool for machine in stalled.machines if machine in views]
        suspect = views.get(stalled.suspects[0]) if len(stalled.suspects) == 1 else None
        lines.append(
            FaultOpened(
                at_unix_ns=snap_ns(known.now_unix_ns),
                fault=book.free_id(f"{stalled.kind}-{stalled.run}-{stalled.onset_unix_ns // 10**9}"),
                kind=stalled.kind,
                onset_unix_ns=stalled.onset_unix_ns,
                cause=f"{stalled.kind}:{stalled.run}",
                because=stalled.because + (f"; {suspect.slot} stands out" if suspect is not None else ""),
                run=stalled.run,
                slot=None if suspect is None else suspect.slot,
                pool=pools[0] if pools else "",
            )
        )
    return lines


def closings(book: IncidentBook, known: Known) -> list[LedgerLine]:
    """A line for each open fault that is over."""
    lines: list[LedgerLine] = []
    verdicts = {verdict.machine: verdict for verdict in known.judgement.nodes}
    views = {view.machine: view for view in known.fleet.nodes}
    for fault in sorted(set(book.open.values())):
        incident = book.get(fault)
        if incident is None or fault in known.busy:
            continue
        if incident.machine is not None:
            because = _node_over(incident, verdicts.get(incident.machine), views.get(incident.machine), known)
        else:
            because = _run_over(incident, known)
        if because:
            lines.append(FaultClosed(at_unix_ns=snap_ns(known.now_unix_ns), fault=fault, because=because))
    return lines


def blame_ends(book: IncidentBook, lines: list[LedgerLine], acted: Mapping[str, str]) -> list[LedgerLine]:
    """The same lines, each unplanned end of an attempt with its fault where one is open for it.

    `acted`: attempt -> fault of the action that ended it. An end without a fault here is laid to one by the cost room,
    by time.
    """
    blamed: list[LedgerLine] = []
    for line in lines:
        if isinstance(line, AttemptEnded) and line.fault is None:
            fault = acted.get(line.attempt)
            if fault is None and line.ended == "unplanned":
                fault = book.open.get(f"run:{line.run}")
            if fault is not None:
                incident = book.get(fault)
                line = AttemptEnded(  # an order that a fault caused only carries out what the fault began
                    at_unix_ns=line.at_unix_ns,
                    run=line.run,
                    attempt=line.attempt,
                    ended="unplanned",
                    cause=line.cause or ("" if incident is None else incident.cause),
                    fault=fault,
                )
        blamed.append(line)
    return blamed


def _condemned(verdict: Verdict) -> bool:
    return verdict.health in SICK or (verdict.health is Health.ABSENT and verdict.cause == "absent_unexplained")


def _of_node(book: IncidentBook, verdict: Verdict, view: NodeView, known: Known) -> list[LedgerLine]:
    onset_unix_ns = verdict.onset_unix_ns or verdict.since_unix_ns
    kind = verdict.kind or str(verdict.health)
    run = view.run.run if view.run is not None else None
    stalled = book.open.get(f"run:{run}") if run is not None else None
    incident = book.get(stalled) if stalled is not None else None
    if stalled is not None and incident is not None and incident.machine is None:
        # The run stood still first, and now it is known whose fault it was: one fault, one price.
        because = f"{view.slot} is {str(verdict.health).replace('_', ' ')}: {verdict.because}"
        return [
            FaultBlamed(at_unix_ns=snap_ns(known.now_unix_ns), fault=stalled, machine=verdict.machine, because=because)
        ]
    return [
        FaultOpened(
            at_unix_ns=snap_ns(known.now_unix_ns),
            fault=book.free_id(f"{kind}-{verdict.slot}-{onset_unix_ns // 10**9}"),
            kind=kind,
            onset_unix_ns=onset_unix_ns,
            cause=verdict.cause or kind,
            because=verdict.because,
            machine=verdict.machine,
            slot=verdict.slot,
            pool=view.pool,
        )
    ]


def _node_over(incident: Incident, verdict: Verdict | None, view: NodeView | None, known: Known) -> str:
    new = known.replaced.get(incident.fault)
    if new:
        return f"{new} took the place of {incident.machine} and is in service"
    if view is None or verdict is None or view.lifecycle is Lifecycle.RETIRED:
        return f"{incident.machine} has left the fleet"
    if verdict.health is Health.HEALTHY and view.lifecycle is Lifecycle.IN_SERVICE:
        return "it is healthy and in service again"
    if verdict.health is Health.ABSENT and verdict.cause != "absent_unexplained":
        return verdict.because
    return ""


def _run_over(incident: Incident, known: Known) -> str:
    live = next((run for run in known.fleet.runs if run.run == incident.run), None)
    if live is None:
        return "" if known.run_is_open(incident.run or "") else "the run has ended"
    if any(stalled.run == incident.run for stalled in known.judgement.runs):
        return ""
    return f"{live.attempt} has finished step {live.step}" if _moved(live, incident) else ""


def _moved(run: RunView, incident: Incident) -> bool:
    """By the training processes' own stamps: a step ended after the stall began."""
    return run.step is not None and (run.step_end_unix_ns or 0) > incident.onset_unix_ns
