"""EVIDENCE -> VERDICT. How sure we must be, and how long we wait.

Level-triggered: each tick concludes from what is known now; the previous judgement only says since when, which name an
incident already has, and when evidence that must last was first seen. So nothing can stay latched: a node is healthy
again as soon as nothing argues against it and a fresh report speaks for it.

    speaks, nothing against it, NVML looked at ....... healthy
    speaks, a check could not run .................... unknown (missing is never healthy)
    speaks, evidence ................................. the worst that the evidence proves, see strongest.py
    speaks, another witness says dead or gone ........ suspect: the agent is there to see
    does not speak ................................... see witnesses.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpuwatch.decide.stalls import run_verdicts
from gpuwatch.decide.strongest import RANK, Strongest, pending, strongest
from gpuwatch.decide.witnesses import Absence, Doubt, absence, doubt, fresh_words, steps_of_others
from gpuwatch.model.evidence import Evidence, Finding, Unknown
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.policy import Policy
from gpuwatch.model.states import SICK, Health, Lifecycle
from gpuwatch.model.verdict import Judgement, Verdict
from gpuwatch.model.view import FleetView, NodeView

NVML_FRESH_S = 90.0
"""How old NVML's answer may be beside the node's other sources: the agent asks a slow driver less often."""
DEFAULT = Policy()
WORSE = SICK | {Health.ABSENT}
WELL = "it reports, and every check that ran is clean"


def judge(
    fleet: FleetView,
    findings: Mapping[str, tuple[Finding, ...]],
    previous: Judgement | None,
    policies: Mapping[str, Policy],
    now: Moment,
) -> Judgement:
    """One verdict a node, and one a stalled run. `findings` by machine, of the last report and of this tick."""
    before = {verdict.machine: verdict for verdict in previous.nodes} if previous is not None else {}
    doubts = doubt(fleet, policies, now)
    gang = steps_of_others(fleet.runs, doubts.silent)
    nodes: list[Verdict] = []
    for view in fleet.nodes:
        last = before.get(view.machine)
        found = findings.get(view.machine, ())
        policy = policies.get(view.pool, DEFAULT)
        if not found and _plainly_well(view, policy, now):
            if last is not None and last.health is Health.HEALTHY and last.slot == view.slot and not last.evidence:
                nodes.append(last)
            else:
                nodes.append(_verdict(view, last, now, Health.HEALTHY, WELL))
            continue
        nodes.append(_conclude(view, found, last, policy, doubts, gang.get(view.machine), now))
    by_machine = {verdict.machine: verdict for verdict in nodes}
    runs = run_verdicts(fleet, findings, by_machine, previous.runs if previous is not None else (), now)
    return Judgement(nodes=tuple(nodes), runs=runs)


def _speaks(view: NodeView, policy: Policy, now: Moment) -> bool:
    last_ns = view.last_report_monotonic_ns
    if last_ns is None or view.lifecycle is Lifecycle.RETIRED:
        return False
    if now.monotonic_ns - last_ns > policy.silent_after_intervals * view.interval_s * 1e9:
        return False
    return not view.said_goodbye()


def _plainly_well(view: NodeView, policy: Policy, now: Moment) -> bool:
    return _speaks(view, policy, now) and _missing(view) == ""


def _missing(view: NodeView) -> str:
    """Which positive proof of health is not there; empty: it is all there."""
    if view.expected_gpu_count == 0:
        return ""
    nvml = view.sources.get("nvml")
    if nvml is None:
        return "no NVML answer in its reports"
    if nvml.status == "unsupported":
        rest = f": {nvml.reason}" if nvml.reason else ""
        return f"NVML is not there{rest}; if it has no GPUs, set its pool's `gpus` to 0"
    if nvml.status != "ok":
        return f"NVML {nvml.status}" + (f": {nvml.reason}" if nvml.reason else "")
    newest_ns = max([source.at_unix_ns for source in view.sources.values()])
    if newest_ns - nvml.at_unix_ns > NVML_FRESH_S * 1e9:
        return f"NVML's last answer is {(newest_ns - nvml.at_unix_ns) / 1e9:.0f} s older than its other facts"
    if view.expected_gpu_count is None:
        facts = view.facts.get(NvmlFacts)
        if facts is not None and facts.init_error is not None and not facts.pci_gpu_count:
            start = f"NVML does not start (code {facts.init_error}), and nothing says that GPUs are here"
            return f"{start}; if it has none, set its pool's `gpus` to 0"
    return ""


def _conclude(
    view: NodeView,
    found: Sequence[Finding],
    last: Verdict | None,
    policy: Policy,
    doubts: Doubt,
    gang: tuple[int, str] | None,
    now: Moment,
) -> Verdict:
    evidence = tuple(_announced(f, policy, now) for f in found if isinstance(f, Evidence))
    unknowns = tuple(f for f in found if isinstance(f, Unknown))
    about_node = [e for e in evidence if e.subject.kind != "run" and not e.note]
    own = [e for e in about_node if e.path == "agent" and e.rule != "agent_silent"]
    words = fresh_words(view, about_node, policy, now)
    first_seen = pending(own, last, now)
    proof = strongest(own, first_seen, view.last_report_monotonic_ns, last, policy, now)
    kept = (evidence, unknowns, first_seen)
    if not _speaks(view, policy, now):
        return _silent(view, kept, proof, absence(view, words, policy, doubts, gang, now), last, now)
    dissent = [e for e in words if e.argues_for in (Health.DEAD, Health.ABSENT)]
    if proof is not None and (proof.health is not Health.SUSPECT or not dissent):
        software = proof.software and not any(e.path != "agent" and e.argues_for in WORSE for e in about_node)
        return _sick(view, kept, proof, last, now, proof.evidence.because, software=software)
    if dissent:
        because = f"{dissent[0].because}, but its agent reports: the agent is there to see"
        return _verdict(view, last, now, Health.SUSPECT, because, kept)
    lacking = [_missing(view), *(u.because for u in unknowns if u.subject.kind != "run")]
    because = next((words for words in lacking if words), "")
    if because:
        return _verdict(view, last, now, Health.UNKNOWN, because, kept)
    noted = [e.because for e in evidence if e.note]
    return _verdict(view, last, now, Health.HEALTHY, f"{WELL}, but: {'; '.join(noted)}" if noted else WELL, kept)


def _announced(e: Evidence, policy: Policy, now: Moment) -> Evidence:
    """A note of what is to come counts from so long before it as the policy says."""
    ahead_s = policy.drain_before_maintenance_s
    if not e.note or e.due_monotonic_ns is None or not ahead_s or now.age_s(e.due_monotonic_ns) < -ahead_s:
        return e
    return msgspec.structs.replace(e, note=False, argues_for=Health.DEGRADED)


_Kept = tuple[tuple[Evidence, ...], tuple[Unknown, ...], dict[str, int]]


def _silent(
    view: NodeView, kept: _Kept, proof: Strongest | None, gone: Absence, last: Verdict | None, now: Moment
) -> Verdict:
    """The worse of what it last proved about itself and what its silence means; goodbye and absence explain it away."""
    stands = proof is not None and RANK[proof.health] > max(RANK.get(gone.health, 0), RANK[Health.SUSPECT])
    if proof is not None and stands and gone.health is not Health.ABSENT:
        silent_s = view.silent_s(now.monotonic_ns)
        heard = f" (its last report is {silent_s:.0f} s old)" if silent_s is not None else ""
        return _sick(view, kept, proof, last, now, proof.evidence.because + heard)
    evidence = kept[0] + tuple(e for e in gone.evidence if e not in kept[0])
    onset_unix_ns = None
    if gone.last_alive_monotonic_ns is not None:
        onset_unix_ns = _last_alive_unix_ns(view, gone.last_alive_monotonic_ns, now)
    return _verdict(
        view,
        last,
        now,
        gone.health,
        gone.because,
        (evidence, kept[1], kept[2]),
        kind={Health.DEAD: "node_dead", Health.ABSENT: "node_absent"}.get(gone.health, ""),
        cause=gone.cause,
        action="drain_replace" if gone.health is Health.DEAD else "none",
        onset_unix_ns=onset_unix_ns,
    )


def _last_alive_unix_ns(view: NodeView, last_alive_monotonic_ns: int, now: Moment) -> int:
    """The last proof of life on today's wall clock, never before the end of a step that its own rank finished."""
    alive_ns = now.unix_ns - (now.monotonic_ns - last_alive_monotonic_ns)
    if view.run is not None:
        own = [rank.step_end_unix_ns or 0 for rank in view.run.ranks if rank.machine == view.machine]
        alive_ns = max(alive_ns, *own, 0) if own else alive_ns
    return min(alive_ns, now.unix_ns)


def _sick(
    view: NodeView,
    kept: _Kept,
    proof: Strongest,
    last: Verdict | None,
    now: Moment,
    because: str,
    *,
    software: bool = False,  # never of a node that is silent: what else ails it is not known
) -> Verdict:
    evidence = proof.evidence
    condemned = proof.health is not Health.SUSPECT
    if not condemned and evidence.argues_for is not Health.SUSPECT:
        because += "; a suspicion until it has lasted or another witness says so"
    kind = evidence.kind or ("driver_failed" if proof.health is Health.DRIVER_FAILED else evidence.rule)
    return _verdict(
        view,
        last,
        now,
        proof.health,
        because,
        kept,
        kind=kind if condemned else "",
        cause=evidence.cause_key(),
        action=evidence.action if condemned else "none",
        onset_unix_ns=proof.onset_unix_ns,
        soft=proof.soft,
        data_suspect=proof.data_suspect,
        software=software and condemned,
    )


def _verdict(
    view: NodeView,
    last: Verdict | None,
    now: Moment,
    health: Health,
    because: str,
    kept: _Kept = ((), (), {}),
    *,
    kind: str = "",
    cause: str = "",
    action: str = "none",
    onset_unix_ns: int | None = None,
    soft: bool = False,
    data_suspect: bool = False,
    software: bool = False,
) -> Verdict:
    """`since` and `onset` stay as they are while health and cause do."""
    since_unix_ns, since_monotonic_ns = now.unix_ns, now.monotonic_ns
    if last is not None and last.health is health and last.slot == view.slot:
        since_unix_ns, since_monotonic_ns = last.since_unix_ns, last.since_monotonic_ns
        if last.cause == cause and last.onset_unix_ns is not None:
            onset_unix_ns = last.onset_unix_ns  # worked out anew it would move with every step of the wall clock
    evidence, unknowns, first_seen = kept
    return Verdict(
        slot=view.slot,
        machine=view.machine,
        health=health,
        because=because,
        evidence=evidence,
        unknowns=unknowns,
        since_unix_ns=since_unix_ns,
        since_monotonic_ns=since_monotonic_ns,
        onset_unix_ns=onset_unix_ns,
        kind=kind,
        cause=cause,
        action=action,
        soft=soft,
        data_suspect=data_suspect,
        pending=first_seen,
        software=software,
    )
