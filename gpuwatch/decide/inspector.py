"""Reads the finished plan again, with other eyes: a planner's bug must fool both.

Shares no code with the planner and its limits: what it checks, it works out anew, from the plan and the inputs alone.
It never proposes anything. An objection names the action that must not happen; one without an action id concerns the
plan as a whole (a sick node that was forgotten), and is told, not obeyed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import floor

from gpuwatch.model.evidence import SharedCause
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Action, Done, Objection, Plan, PlanMemory
from gpuwatch.model.policy import Policy
from gpuwatch.model.verdict import Judgement, Verdict
from gpuwatch.model.view import FleetView, NodeView

HARM = ("drain", "replace", "reimage", "repair")
OUT_OF_SERVICE = ("cordoned", "draining", "drained", "repairing", "replacing", "validating", "quarantined")
SICK_WORDS = ("degraded", "driver_failed", "dead")
MODES_FOR = {
    "drain": ("approve", "drain", "replace"),
    "replace": ("approve", "replace"),
    "reimage": ("approve", "replace"),
    "repair": ("approve", "replace"),
    "restart_job": ("approve", "drain", "replace"),
    "resume": ("approve", "drain", "replace"),
    "ask_approval": ("approve",),
}


def inspect(
    plan: Plan,
    fleet: FleetView,
    judgement: Judgement,
    shared: tuple[SharedCause, ...],
    policies: Mapping[str, Policy],
    memory: PlanMemory,
    now: Moment,
) -> tuple[Objection, ...]:
    """Everything wrong with the plan; empty: nothing found."""
    if not plan.actions and all(v.health.value not in SICK_WORDS for v in judgement.nodes):
        return ()
    eyes = _Eyes(plan, fleet, judgement, shared, policies, memory, now)
    found = [Objection(action_id=a.action_id, because=why) for a in plan.actions for why in eyes.against(a)]
    found += [Objection(action_id=action_id, because=why) for action_id, why in eyes.against_sums()]
    found += [Objection(action_id="", because=why) for why in eyes.forgotten()]
    return tuple(found)


class _Eyes:
    def __init__(
        self,
        plan: Plan,
        fleet: FleetView,
        judgement: Judgement,
        shared: tuple[SharedCause, ...],
        policies: Mapping[str, Policy],
        memory: PlanMemory,
        now: Moment,
    ) -> None:
        self.plan, self.fleet, self.judgement = plan, fleet, judgement
        self.policies, self.memory, self.now = policies, memory, now
        self.views = {view.machine: view for view in fleet.nodes}
        self.verdicts = {verdict.machine: verdict for verdict in judgement.nodes}
        self.held_together = {slot for cause in shared for slot in cause.slots}
        self.ids = Counter(action.action_id for action in plan.actions)
        self.slots = Counter(action.slot for action in plan.actions)

    def against(self, action: Action) -> Iterator[str]:
        """What speaks against this one action."""
        if self.ids[action.action_id] > 1:
            yield "its id stands in the plan twice"
        if self.slots[action.slot] > 1:
            yield f"{action.slot} has two actions in one plan"
        if any(d.action_id == action.action_id and d.ended for d in self.memory.actions):
            yield "an action of this id has ended already"
        if not action.because:
            yield "it gives no because"
        policy = self.policies.get(action.pool, Policy())
        if policy.mode.value not in MODES_FOR[action.kind]:
            yield f"mode {policy.mode.value} of pool {action.pool} does not allow {action.kind}"
        if self.memory.hold_everything:
            yield f"everything is held: {self.memory.hold_everything}"
        if action.kind == "restart_job" or (action.kind == "ask_approval" and action.run):
            yield from self._against_restart(action, policy)
            return
        view, verdict = self.views.get(action.machine), self.verdicts.get(action.machine)
        if view is None or verdict is None:
            yield f"no machine {action.machine!r} is known"
            return
        if view.slot != action.slot or view.pool != action.pool:
            yield f"machine {action.machine} is in slot {view.slot} of pool {view.pool}, not as the action says"
            return
        if not view.fills_slot:
            yield f"machine {action.machine} only claims {action.slot}: another fills it"
        if action.slot in self.memory.human_holds:
            yield f"a person holds it: {self.memory.human_holds[action.slot]}"
        for done in self.memory.actions:
            if done.slot == action.slot and not done.ended and done.kind != "ask_approval":
                yield f"{done.kind} {done.action_id} is still under way there"
        if action.kind == "resume":
            yield from self._against_resume(action, view, verdict)
        else:
            yield from self._against_harm(action, view, verdict, policy)

    def _against_harm(self, action: Action, view: NodeView, verdict: Verdict, policy: Policy) -> Iterator[str]:
        health = verdict.health.value
        absent = health == "absent" and verdict.cause == "absent_unexplained" and action.kind != "drain"
        if health not in SICK_WORDS and not absent:
            yield f"it is {health}, not sick"
        if health == "dead":
            yield from self._against_death(view, verdict)
        if self.fleet.blind_because:
            yield f"the aggregator doubts itself: {self.fleet.blind_because}"
        if action.slot in self.held_together:
            yield "a shared cause explains it: all such nodes are held"
        hands = view.facts.get(HandsFacts)
        if hands is not None and hands.held:
            yield f"somebody holds it on the node: {hands.held[:200]}"
        if view.scheduler is not None and view.scheduler.drain_owner == "foreign":
            yield "another drained it"
        if view.lifecycle.value in ("retired", "quarantined", "repairing", "replacing", "validating"):
            yield f"it is {view.lifecycle.value}: nothing new may begin"
        if action.kind not in HARM:
            return
        in_service = view.lifecycle.value == "in_service"
        if action.takes_out is not (in_service and not absent):
            yield "it counts itself wrongly against the budget"
        if policy.mode.value == "approve" and not {action.action_id, f"ask-{action.action_id}"} & set(
            self.memory.approved
        ):
            yield "no person has approved it"
        if action.kind in ("replace", "reimage"):
            yield from self._against_owner(view, absent)
        if action.kind == "reimage":
            yield from self._against_reimage(action, view, verdict, policy)
        if action.kind == "repair":
            yield from self._against_repair(action, view, verdict, policy)
        yield from self._against_haste(action, policy)

    def _against_death(self, view: NodeView, verdict: Verdict) -> Iterator[str]:
        dead = [e for e in verdict.evidence if e.argues_for.value == "dead"]
        if len({e.path for e in dead}) < 2 and not any(e.conclusive for e in dead):
            yield "it is called dead by fewer than two witnesses"
        last = view.last_report_monotonic_ns
        policy = self.policies.get(view.pool, Policy())
        if last is not None and self.now.monotonic_ns - last < policy.dead_after_s * 1e9:
            yield "it is called dead, but it reported a moment ago"

    def _against_owner(self, view: NodeView, absent: bool) -> Iterator[str]:
        named = {group.name: group for group in self.fleet.groups}
        group = named.get(view.group or view.pool)
        if group is None and not view.group and len(named) == 1:
            group = next(iter(named.values()))
        if group is None or group.owner != "gpuwatch" or group.refuses:
            yield "its group is not ours to change"
        elif absent and group.target_count is None:
            yield "nobody knows whether its group still wants the absent machine"

    def _against_reimage(self, action: Action, view: NodeView, verdict: Verdict, policy: Policy) -> Iterator[str]:
        if policy.software_fault != "reimage":
            yield "the policy reimages nothing"
        if verdict.health.value != "driver_failed":
            yield f"it is {verdict.health.value}: no fresh disk cures that"
        if self._is_quiet(view, policy):
            yield "it does not speak: what ails it is not known"
        against = [e for e in verdict.evidence if e.argues_for.value in SICK_WORDS and e.subject.kind != "run"]
        if not against or not all(e.software for e in against):
            yield "not all that is said against it is of software"
        offers = [group for group in self.fleet.groups if group.name == (view.group or view.pool)]
        if not any(group.reimages for group in offers or (self.fleet.groups if not view.group else ())):
            yield "its cloud reimages nothing"
        for done in self.memory.actions:
            mine = done.kind == "reimage" and done.machine == action.machine and done.outcome != "cancelled"
            if mine and self._age_s(done) < policy.reimage_again_s:
                yield "it was reimaged not long ago"

    def _against_repair(self, action: Action, view: NodeView, verdict: Verdict, policy: Policy) -> Iterator[str]:
        if action.order not in policy.local_repair:
            yield f"the policy orders no {action.order or 'repair without a name'}"
        if self._is_quiet(view, policy) or verdict.health.value == "dead":
            yield "it does not speak: no order reaches it"
        hands = view.facts.get(HandsFacts)
        if hands is None or hands.refuses or not self.fleet.order_key or self.fleet.order_key not in hands.keys:
            yield "its hands take no orders of ours"
            return
        may = {
            "restart_service": action.target in hands.units,
            "reset_gpu": hands.may_reset_gpu and action.target != "",
            "reboot": hands.may_reboot and action.target == "",
        }
        if not may.get(action.order, False):
            yield f"its hands do not allow {action.order} {action.target}".rstrip()
        against = [e for e in verdict.evidence if e.argues_for.value in SICK_WORDS and e.subject.kind != "run"]
        fits = {
            "restart_service": [e for e in against if e.service == action.target],
            "reset_gpu": [e for e in against if e.action == "reset_gpu" and e.subject.id.endswith(action.target)],
            "reboot": [e for e in against if e.action in ("reset_gpu", "reboot")],
        }
        if not against or len(fits.get(action.order, ())) < len([e for e in against if not e.note]):
            yield f"not all that is said against it asks for {action.order}"
        for done in self.memory.actions:
            same = done.kind == "repair" and done.machine == action.machine and done.order == action.order
            if same and done.outcome != "cancelled" and self._age_s(done) < policy.repair_again_s:
                yield f"{action.order} was tried not long ago"

    def _is_quiet(self, view: NodeView, policy: Policy) -> bool:
        last = view.last_report_monotonic_ns
        quiet_ns = policy.silent_after_intervals * view.interval_s * 1e9
        return last is None or self.now.monotonic_ns - last > quiet_ns or view.said_goodbye()

    def _against_haste(self, action: Action, policy: Policy) -> Iterator[str]:
        before = [d for d in self.memory.actions if d.slot == action.slot and d.kind != "ask_approval"]
        if any(self._age_s(done) < policy.cool_down_s for done in before):
            yield "it comes within the cool-down of the last action there"
        same = [d for d in before if d.machine == action.machine and d.kind == action.kind and d.cause == action.cause]
        if len(same) >= policy.max_attempts_per_machine:
            yield f"it was tried {len(same)} times for the same cause"

    def _age_s(self, done: Done) -> float:
        since = self.fleet.started_monotonic_ns if done.started_monotonic_ns is None else done.started_monotonic_ns
        return (self.now.monotonic_ns - since) / 1e9

    def _against_resume(self, action: Action, view: NodeView, verdict: Verdict) -> Iterator[str]:
        if action.takes_out:
            yield "a resume takes nothing out"
        if verdict.health.value != "healthy":
            yield f"it is {verdict.health.value}, not healthy"
        if view.scheduler is None or view.scheduler.drain_owner != "gpuwatch":
            yield "the drain is not ours"

    def _against_restart(self, action: Action, policy: Policy) -> Iterator[str]:
        if action.takes_out:
            yield "a restart of a run takes nothing out"
        found = [v for v in self.judgement.runs if (v.run, v.attempt) == (action.run, action.attempt)]
        if not found:
            yield f"attempt {action.attempt} of run {action.run} is not judged to be stalled"
            return
        if found[0].explained_by:
            yield f"the stall is explained by {found[0].explained_by}"
        if self.fleet.blind_because:
            yield f"the aggregator doubts itself: {self.fleet.blind_because}"
        if not policy.restart_stalled_runs or policy.job_action == "wait":
            yield "the policy leaves stalled runs alone"
        slots = {self.views[machine].slot for machine in found[0].machines if machine in self.views}
        if slots & self.held_together:
            yield "a shared cause explains it: all such nodes are held"
        if slots & self.memory.human_holds.keys():
            yield "a person holds one of its nodes"

    def against_sums(self) -> Iterator[tuple[str, str]]:
        """The budgets, counted over the whole plan; the last actions that do not fit are named."""
        places: dict[str, set[str]] = {}
        out: dict[str, set[str]] = {}
        domains: dict[str, str] = {}
        busy = {done.slot for done in self.memory.actions if done.kind in HARM and not done.ended}
        for view in self.fleet.nodes:
            verdict = self.verdicts.get(view.machine)
            gone = verdict is not None and verdict.health.value == "absent"
            if gone or view.expected_gpu_count == 0 or view.lifecycle.value == "retired":
                continue
            places.setdefault(view.pool, set()).add(view.slot)
            domains[view.slot] = view.domain
            foreign = view.scheduler is not None and view.scheduler.drain_owner == "foreign"
            if (
                view.lifecycle.value in OUT_OF_SERVICE
                or foreign
                or view.slot in busy
                or view.slot in self.memory.granted
            ):
                out.setdefault(view.pool, set()).add(view.slot)
        for action in self.plan.actions:
            if not action.takes_out:
                continue
            policy = self.policies.get(action.pool, Policy())
            now_out = out.setdefault(action.pool, set())
            if action.slot in now_out:
                continue
            now_out.add(action.slot)
            size = len(places.get(action.pool, ()))
            by_share = floor(size * policy.max_out_ratio + 1e-9)
            if by_share < 1 and size <= policy.small_pool_nodes and policy.max_out_ratio > 0:
                by_share = 1
            if len(now_out) > policy.max_nodes_out or len(now_out) > by_share:
                yield action.action_id, f"{len(now_out)} of pool {action.pool} would be out"
            domain = domains.get(action.slot, "")
            same = [slot for slot in now_out if domain and domains.get(slot) == domain]
            if len(same) > policy.max_out_per_domain:
                yield action.action_id, f"{len(same)} of domain {domain} would be out"

    def forgotten(self) -> Iterator[str]:
        """Sick nodes that are neither acted on nor held, or both."""
        acted = {action.machine for action in self.plan.actions if action.kind != "restart_job"}
        held = {hold.machine for hold in self.plan.holds if not hold.slot.startswith("run:")}
        for verdict in self.judgement.nodes:
            if verdict.machine not in self.views or verdict.health.value not in SICK_WORDS:
                continue
            if verdict.machine not in acted and verdict.machine not in held:
                yield f"{verdict.slot} is {verdict.health.value}, and neither acted on nor held"
            if verdict.machine in acted and verdict.machine in held:
                yield f"{verdict.slot} is both acted on and held"
        for hold in self.plan.holds:
            if not hold.because:
                yield f"{hold.slot} is held without a because"
