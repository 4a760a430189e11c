"""VERDICT -> PLAN. Every sick node is acted on, or held with a because; nothing happens here.

In this order, the first that applies is the reason of the hold: the HOLD file, our own blindness, a shared cause, a
person's hold, another's drain, an action under way, nothing left for us to do, the mode, an expired event, too many
attempts, the cool-down, the next checkpoint, the budget. What passes all of them is an action, or, in mode approve, a
question to a person. The worst and longest sick come first, so that the budget goes to them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuwatch.decide.drain_timing import Timing, weigh
from gpuwatch.decide.limits import (
    TAKES_OUT,
    Budget,
    Refusal,
    budgets,
    cooling,
    drained_by_another,
    under_way,
    worn_out,
)
from gpuwatch.decide.returning import OURS_TO_RESUME, returning
from gpuwatch.decide.stalled_runs import plan_runs
from gpuwatch.decide.strongest import RANK
from gpuwatch.decide.wanted import Wanted, expired, group_of, group_refusal, out_of_our_hands, wanted
from gpuwatch.model.evidence import SharedCause
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Action, ActionKind, Done, Hold, Plan, PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import SICK, Health, Lifecycle
from gpuwatch.model.verdict import Judgement, Verdict
from gpuwatch.model.view import FleetView, NodeView


def make_plan(
    fleet: FleetView,
    judgement: Judgement,
    shared: tuple[SharedCause, ...],
    policies: Mapping[str, Policy],
    memory: PlanMemory,
    now: Moment,
) -> Plan:
    """Actions and holds of one tick. The same inputs give the same plan."""
    return _Planner(fleet, judgement, shared, policies, memory, now).plan()


class _Planner:
    """The inputs of one plan, and what has been handed out of the budgets so far."""

    def __init__(
        self,
        fleet: FleetView,
        judgement: Judgement,
        shared: tuple[SharedCause, ...],
        policies: Mapping[str, Policy],
        memory: PlanMemory,
        now: Moment,
    ) -> None:
        self.fleet = fleet
        self.judgement = judgement
        self.shared = {slot: cause for cause in reversed(shared) for slot in cause.slots}
        self.policies = policies
        self.memory = memory
        self.now = now
        self.verdicts = {verdict.machine: verdict for verdict in judgement.nodes}
        self.past: dict[str, list[Done]] = {}
        for done in memory.actions:
            self.past.setdefault(done.slot, []).append(done)
        self.budgets: dict[str, Budget] = {}
        self.actions: list[Action] = []
        self.holds: list[Hold] = []
        self.taken: set[str] = set()

    def plan(self) -> Plan:
        sick: list[tuple[NodeView, Verdict]] = []
        for view in self.fleet.nodes:
            verdict = self.verdicts.get(view.machine)
            if verdict is None:
                continue  # it came after the judgement
            if verdict.health in SICK or verdict.cause == "absent_unexplained":
                sick.append((view, verdict))
            elif verdict.health is Health.HEALTHY and view.fills_slot and view.lifecycle in OURS_TO_RESUME:
                self._return(view, verdict)
        if sick:
            self.budgets = budgets(self.fleet, self.verdicts, self.policies, self.memory)
        for view, verdict in sorted(sick, key=_urgency):
            if verdict.health is Health.ABSENT:
                self._absent(view, verdict)
            else:
                self._sick(view, verdict)
        actions, holds = plan_runs(
            self.fleet, self.judgement.runs, self.shared, self.policies, self.memory, self.now, self.taken
        )
        return Plan(
            at_unix_ns=self.now.unix_ns,
            actions=tuple(self.actions) + actions,
            holds=tuple(self.holds) + holds,
        )

    def _sick(self, view: NodeView, verdict: Verdict) -> None:
        policy = self._policy(view)
        want = wanted(view, verdict, policy, self.fleet, self.past.get(view.slot, ()), self.now)
        self._act_or_hold(view, verdict, policy, want)

    def _absent(self, view: NodeView, verdict: Verdict) -> None:
        """Only an unexplained absence that the group's target still counts may lead to a new machine."""
        policy = self._policy(view)
        group = group_of(view, self.fleet)
        owner = group_refusal(view, self.fleet)
        stuck = out_of_our_hands(view)
        if stuck is not None:
            want = stuck
        elif owner:
            want = Wanted(None, "group_owner", owner)
        elif group is None or group.target_count is None:
            want = Wanted(None, "absent", "it is not known how many machines its group wants")
        elif self._present(group.name) >= group.target_count:
            words = f"group {group.name} wants {group.target_count} machines and has them without it"
            want = Wanted(None, "absent", words)
        elif policy.mode is Mode.DRAIN:
            want = Wanted(None, "absent", "mode drain replaces nothing")
        else:
            want = Wanted("replace")
        self._act_or_hold(view, verdict, policy, want)

    def _present(self, group: str) -> int:
        count = 0
        for view in self.fleet.nodes:
            verdict = self.verdicts.get(view.machine)
            if view.lifecycle is Lifecycle.RETIRED or verdict is None or verdict.health is Health.ABSENT:
                continue
            own = group_of(view, self.fleet)
            count += own is not None and own.name == group
        return count

    def _act_or_hold(self, view: NodeView, verdict: Verdict, policy: Policy, want: Wanted) -> None:
        fault = self._fault(verdict)
        refusal = self._never_now(view) or (None if want.kind else (want.reason, want.because))
        action_id = ""
        because = verdict.because
        if refusal is None and want.kind is not None:
            action_id = self._action_id(want.kind, want, fault)
            refusal = self._not_yet(view, verdict, policy, want.kind, because)
            timing = self._timing(view, verdict, policy, want.kind)
            if refusal is None and timing is not None:
                because = f"{because}; {timing.because}"
                if timing.wait():
                    refusal = "checkpoint", because
        takes_out = want.kind in TAKES_OUT and view.lifecycle is Lifecycle.IN_SERVICE
        takes_out = takes_out and verdict.health is not Health.ABSENT
        if refusal is None and takes_out:
            refusal = self.budgets[view.pool].refusal(view)
        if refusal is not None or want.kind is None:
            assert refusal is not None
            self._hold(view, refusal, fault)
            return
        if takes_out:
            self.budgets[view.pool].take(view)
        if want.because:
            because = f"{because}; {want.because}"
        kind: ActionKind = want.kind
        if policy.mode is Mode.APPROVE and not self._approved(action_id):
            kind, because = "ask_approval", f"may we {want.kind} it? {because}"
            action_id, takes_out = f"ask-{action_id}", False
        self.taken.add(view.slot)
        self.actions.append(
            Action(
                action_id=action_id,
                kind=kind,
                slot=view.slot,
                machine=view.machine,
                pool=view.pool,
                because=because,
                fault=fault,
                takes_out=takes_out,
                cause=verdict.cause,
                order=want.order,
                target=want.target,
            )
        )

    def _never_now(self, view: NodeView) -> Refusal | None:
        """Reasons that stop every harm to this node, whatever ought to be done."""
        if self.memory.hold_everything:
            return "hold_file", self.memory.hold_everything
        if self.fleet.blind_because:
            return "blind", f"the aggregator doubts itself: {self.fleet.blind_because}"
        cause = self.shared.get(view.slot)
        if cause is not None:
            return "shared_cause", cause.because
        if view.slot in self.memory.human_holds:
            return "human_hold", self.memory.human_holds[view.slot]
        hands = view.facts.get(HandsFacts)
        if hands is not None and hands.held:
            return "human_hold", f"on the node itself: {hands.held[:200]}"
        if drained_by_another(view):
            reason = view.scheduler.reason if view.scheduler is not None else ""
            return "foreign_drain", "it was drained by another" + (f": {reason}" if reason else "")
        busy = under_way(self.memory, view.slot)
        if not view.fills_slot and busy is None:
            return "not_in_slot", f"{view.machine} names {view.slot}, but another machine fills it"
        if busy is not None:
            return "in_progress", f"{busy.kind} {busy.action_id} is under way"
        if view.slot in self.taken:
            return "in_progress", "this plan already acts on its slot"
        return None

    def _not_yet(
        self, view: NodeView, verdict: Verdict, policy: Policy, kind: ActionKind, because: str
    ) -> Refusal | None:
        """Reasons that may pass."""
        if policy.mode in (Mode.OBSERVE, Mode.RECOMMEND):
            return policy.mode.value, f"mode {policy.mode.value}: would {kind} it, {because}"
        old = expired(verdict, policy, self.now)
        if old:
            return "expired", old
        own = [done for done in self.past.get(view.slot, ()) if done.machine == view.machine]
        tried = worn_out(own, kind, verdict.cause, policy)
        return tried or cooling(self.past.get(view.slot, ()), policy, self.fleet, self.now)

    def _timing(self, view: NodeView, verdict: Verdict, policy: Policy, kind: ActionKind) -> Timing | None:
        """Now or at the next checkpoint, where a drain can cost work at all and nothing forbids to wait."""
        if view.run is None or view.lifecycle is not Lifecycle.IN_SERVICE or kind not in TAKES_OUT:
            return None
        if verdict.health is Health.DEAD or verdict.data_suspect or verdict.soft or policy.job_action == "wait":
            return None
        if verdict.kind == "maintenance":
            return None  # it is known when the node goes: no guess is to be weighed
        return weigh(view.run, policy, self.now)

    def _return(self, view: NodeView, verdict: Verdict) -> None:
        past = self.past.get(view.slot, [])
        found = returning(view, verdict, self._policy(view), past, self.memory, self.fleet, self.now)
        if isinstance(found, Action):
            self.taken.add(view.slot)
            self.actions.append(found)
        elif found is not None:
            self.holds.append(found)

    def _hold(self, view: NodeView, refusal: Refusal, fault: str) -> None:
        reason, because = refusal
        self.holds.append(
            Hold(slot=view.slot, machine=view.machine, pool=view.pool, reason=reason, because=because, fault=fault)
        )

    def _policy(self, view: NodeView) -> Policy:
        return self.policies.get(view.pool) or Policy()

    def _fault(self, verdict: Verdict) -> str:
        """The open incident's id; before one is open, the same name each time."""
        known = self.memory.faults.get(verdict.machine)
        return known or f"{verdict.kind}-{verdict.slot}-{(verdict.onset_unix_ns or verdict.since_unix_ns) // 10**9}"

    def _action_id(self, kind: ActionKind, want: Wanted, fault: str) -> str:
        """The same for the same try: the number rises only when a try has ended. It names all that a person agrees to:
        who approves the reset of one GPU has not approved a reboot."""
        tries = sum(1 for d in self.memory.actions if d.fault == fault and d.kind == kind and d.ended)
        what = "-".join(filter(None, (kind, want.order, re.sub(r"[^A-Za-z0-9]+", "-", want.target))))
        return f"{what}-{fault}-{tries + 1}"

    def _approved(self, action_id: str) -> bool:
        return action_id in self.memory.approved or f"ask-{action_id}" in self.memory.approved


def _urgency(pair: tuple[NodeView, Verdict]) -> tuple[int, int, str, str]:
    view, verdict = pair
    return (-RANK.get(verdict.health, 0), verdict.since_monotonic_ns, view.slot, view.machine)
