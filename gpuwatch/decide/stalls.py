"""What is concluded about runs: a stall is its own incident only if no sick member explains it."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.model.evidence import Evidence, Finding
from gpuwatch.model.moment import Moment
from gpuwatch.model.run import RunView
from gpuwatch.model.states import Health
from gpuwatch.model.verdict import RunVerdict, Verdict
from gpuwatch.model.view import FleetView, NodeView
from gpuwatch.runs.standouts import stand_outs

EXPLAINS = frozenset({Health.DEAD, Health.DRIVER_FAILED, Health.ABSENT})
DEGRADED_EXPLAINS_NS = 600 * 10**9
"""A degraded member explains a stall that came with it, not one of hours later: the gang has stepped since."""
MAY_YET_EXPLAIN_S = 60.0
"""A member that is silent, suspected or slow to answer may turn out to be the cause: wait this long for a verdict."""
OVERDUE_INTERVALS = 2.0


def run_verdicts(
    fleet: FleetView,
    findings: Mapping[str, tuple[Finding, ...]],
    verdicts: Mapping[str, Verdict],
    previous: tuple[RunVerdict, ...],
    now: Moment,
) -> tuple[RunVerdict, ...]:
    """One verdict for each live attempt that a rule calls stalled. `verdicts`: by machine, of this tick."""
    stalled = _stalled(findings)
    if not stalled:
        return ()
    before = {(verdict.run, verdict.attempt): verdict for verdict in previous}
    views = {view.machine: view for view in fleet.nodes}
    concluded = []
    for run in sorted(fleet.runs, key=lambda run: (run.run, run.attempt)):
        evidence = stalled.get(run.run)
        if evidence is None:
            continue
        last = before.get((run.run, run.attempt))
        since_unix_ns = last.since_unix_ns if last is not None else now.unix_ns
        since_monotonic_ns = last.since_monotonic_ns if last is not None else now.monotonic_ns
        onset_unix_ns = evidence.onset_unix_ns if evidence.onset_unix_ns is not None else since_unix_ns
        concluded.append(
            RunVerdict(
                run=run.run,
                attempt=run.attempt,
                kind=evidence.kind or evidence.rule,
                because=evidence.because,
                onset_unix_ns=last.onset_unix_ns if last is not None else onset_unix_ns,
                since_unix_ns=since_unix_ns,
                since_monotonic_ns=since_monotonic_ns,
                suspects=stand_outs(run),
                explained_by=_explained_by(run, verdicts, views, now.age_s(since_monotonic_ns), now),
                machines=run.machines,
            )
        )
    return tuple(concluded)


def _stalled(findings: Mapping[str, tuple[Finding, ...]]) -> dict[str, Evidence]:
    return {
        finding.subject.id: finding
        for found in findings.values()
        for finding in found
        if isinstance(finding, Evidence) and finding.subject.kind == "run"
    }


def _explained_by(
    run: RunView, verdicts: Mapping[str, Verdict], views: Mapping[str, NodeView], stalled_s: float, now: Moment
) -> str:
    """The member whose own failure explains the stall, or, for a while, the one that may yet turn out to."""
    for machine in run.machines:
        verdict = verdicts.get(machine)
        if verdict is None or verdict.soft:
            continue
        came_with_it = verdict.since_monotonic_ns > run.moved_monotonic_ns - DEGRADED_EXPLAINS_NS
        if verdict.health in EXPLAINS or (verdict.health is Health.DEGRADED and came_with_it):
            return machine
    if stalled_s >= MAY_YET_EXPLAIN_S:
        return ""
    for machine in run.machines:
        verdict, view = verdicts.get(machine), views.get(machine)
        if verdict is not None and verdict.health is Health.SUSPECT:
            return machine
        if view is not None and _overdue(view, now):
            return machine
    return ""


def _overdue(view: NodeView, now: Moment) -> bool:
    """A report, or NVML's part of it, is late: by the node's own clock, since the other parts go on."""
    silent_s = view.silent_s(now.monotonic_ns)
    if silent_s is not None and silent_s > OVERDUE_INTERVALS * view.interval_s:
        return True
    nvml = view.sources.get("nvml")
    if nvml is None or nvml.status != "ok":
        return False
    newest_ns = max(source.at_unix_ns for source in view.sources.values())
    return newest_ns - nvml.at_unix_ns > 3 * view.interval_s * 1e9
