"""What to do with a run that makes no progress: the run is started again, no node is taken out.

A stall that a sick node explains is that node's affair and no action of its own. Where the policy's job action is
`wait`, or the run was started again often enough, it is held for its owner.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.decide.limits import Refusal, age_s, worn_out
from gpuwatch.model.evidence import SharedCause
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Action, ActionKind, Done, Hold, PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.verdict import RunVerdict
from gpuwatch.model.view import FleetView, NodeView


def plan_runs(
    fleet: FleetView,
    verdicts: tuple[RunVerdict, ...],
    shared: Mapping[str, SharedCause],
    policies: Mapping[str, Policy],
    memory: PlanMemory,
    now: Moment,
    taken: set[str],
) -> tuple[tuple[Action, ...], tuple[Hold, ...]]:
    """One action or one hold for each stalled run that nothing explains. `taken`: slots that this plan acts on."""
    actions: list[Action] = []
    holds: list[Hold] = []
    if not verdicts:
        return (), ()
    views = {view.machine: view for view in fleet.nodes}
    for verdict in verdicts:
        if verdict.explained_by:
            continue
        members = [views[machine] for machine in verdict.machines if machine in views]
        pool = members[0].pool if members else ""
        policy = policies.get(pool) or Policy()
        fault = memory.faults.get(f"run:{verdict.run}")
        if fault is None:
            fault = f"{verdict.kind}-{verdict.run}-{verdict.onset_unix_ns // 10**9}"
        suspect = views.get(verdict.suspects[0]) if len(verdict.suspects) == 1 else None
        slot = suspect.slot if suspect is not None else f"run:{verdict.run}"
        machine = suspect.machine if suspect is not None else ""
        refusal = _refusal(verdict, members, fleet, shared, policy, memory, now, taken)
        because = verdict.because
        if suspect is not None:
            because += f"; {slot} stands out"
        if refusal is not None:
            reason, why = refusal
            holds.append(
                Hold(slot=f"run:{verdict.run}", machine=machine, pool=pool, reason=reason, because=why, fault=fault)
            )
            continue
        tries = sum(1 for d in memory.actions if d.fault == fault and d.kind == "restart_job" and d.ended)
        action_id = f"restart_job-{fault}-{tries + 1}"
        kind: ActionKind = "restart_job"
        if policy.mode is Mode.APPROVE and not {action_id, f"ask-{action_id}"} & set(memory.approved):
            kind, action_id, because = (
                "ask_approval",
                f"ask-{action_id}",
                f"may we restart run {verdict.run}? {because}",
            )
        actions.append(
            Action(
                action_id=action_id,
                kind=kind,
                slot=slot,
                machine=machine,
                pool=pool,
                because=because,
                fault=fault,
                takes_out=False,
                run=verdict.run,
                attempt=verdict.attempt,
                cause=cause_of(verdict.run),
            )
        )
    return tuple(actions), tuple(holds)


def cause_of(run: str) -> str:
    """Restarts are counted by run: its next stall has another fault id, and may have another suspect."""
    return f"run_stalled:{run}"


def _refusal(
    verdict: RunVerdict,
    members: list[NodeView],
    fleet: FleetView,
    shared: Mapping[str, SharedCause],
    policy: Policy,
    memory: PlanMemory,
    now: Moment,
    taken: set[str],
) -> Refusal | None:
    if memory.hold_everything:
        return "hold_file", memory.hold_everything
    if fleet.blind_because:
        return "blind", f"the aggregator doubts itself: {fleet.blind_because}"
    for view in members:
        if view.slot in shared:
            return "shared_cause", shared[view.slot].because
    for view in members:
        if view.slot in memory.human_holds:
            return "human_hold", f"{view.slot}: {memory.human_holds[view.slot]}"
    own = [d for d in memory.actions if d.cause == cause_of(verdict.run) and d.kind != "ask_approval"]
    slots = {view.slot for view in members}
    open_now = (d for d in memory.actions if not d.ended and d.kind != "ask_approval")
    busy = next((d for d in open_now if d.slot in slots or d.cause == cause_of(verdict.run)), None)
    if busy is not None:
        return "in_progress", f"{busy.kind} {busy.action_id} is under way"
    if taken & slots:
        return "in_progress", "this plan already acts on one of its nodes"
    if policy.mode in (Mode.OBSERVE, Mode.RECOMMEND):
        words = f"would restart run {verdict.run}, {verdict.because}"
        return policy.mode.value, f"mode {policy.mode.value}: {words}"
    if not policy.restart_stalled_runs:
        return "job_action", "the policy leaves a stalled run to its owner (restart_stalled_runs = false)"
    if policy.job_action == "wait":
        return "job_action", "the policy's job action is wait: a stalled run is left to its owner"
    return worn_out(own, "restart_job", cause_of(verdict.run), policy, of=f"run {verdict.run}") or _cooling(
        own, policy, fleet, now
    )


def _cooling(own: list[Done], policy: Policy, fleet: FleetView, now: Moment) -> Refusal | None:
    ages = [age_s(done, fleet, now) for done in own]
    if not ages or min(ages) >= policy.cool_down_s:
        return None
    return "cool_down", f"this run was restarted {min(ages):.0f} s ago (cool-down {policy.cool_down_s:.0f} s)"
