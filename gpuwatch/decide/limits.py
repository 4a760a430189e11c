"""How many nodes may be out, and when nothing may be done: the safety envelope, in one place.

Counted are nodes *newly taken out*: a node that is out already costs nothing more, and returning one is always allowed.
The share is of the pool's slots with GPUs, those that are out included; login and service nodes would make it too
large (NVIDIA/NVSentinel#1228). A share of a small pool rounds to nothing, so there one node may be out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Done, PlanMemory
from gpuwatch.model.policy import Policy
from gpuwatch.model.states import OUT, Health, Lifecycle
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import FleetView, NodeView

TAKES_OUT = frozenset({"drain", "replace", "reimage", "repair"})
Refusal = tuple[str, str]
"""Why not: the reason's name, and the sentence."""


def allowed_out(policy: Policy, slot_count: int) -> int:
    """How many slots of such a pool may be out at the same time."""
    share = int(policy.max_out_ratio * slot_count + 1e-9)
    if share == 0 and policy.max_out_ratio > 0 and slot_count <= policy.small_pool_nodes:
        share = 1
    return min(policy.max_nodes_out, share)


@dataclass(slots=True)
class Budget:
    """One pool's slots while a plan is being made. `take` is the only change."""

    policy: Policy
    slots: set[str] = field(default_factory=set)
    out: set[str] = field(default_factory=set)
    domain_of: dict[str, str] = field(default_factory=dict)

    def refusal(self, view: NodeView) -> Refusal | None:
        """Why this node may not be taken out now."""
        if view.slot in self.out:
            return None
        may = allowed_out(self.policy, len(self.slots))
        if len(self.out) >= may:
            share = f"{self.policy.max_out_ratio:.0%} of {len(self.slots)} slots"
            words = f"{len(self.out)} of the pool are out, {may} may be (at most {self.policy.max_nodes_out}, {share})"
            return "budget", words
        if view.domain:
            same = sum(1 for slot in self.out if self.domain_of.get(slot) == view.domain)
            if same >= self.policy.max_out_per_domain:
                words = f"{same} of domain {view.domain} are out, {self.policy.max_out_per_domain} may be"
                return "domain", words
        return None

    def take(self, view: NodeView) -> None:
        """It goes out by this plan."""
        self.out.add(view.slot)
        self.domain_of[view.slot] = view.domain


def budgets(
    fleet: FleetView, verdicts: Mapping[str, Verdict], policies: Mapping[str, Policy], memory: PlanMemory
) -> dict[str, Budget]:
    """Each pool's budget before this plan. A foreign drain and an action under way count as out."""
    under_way = {done.slot for done in memory.actions if not done.ended and done.kind in TAKES_OUT}
    found: dict[str, Budget] = {}
    for view in fleet.nodes:
        budget = found.get(view.pool)
        if budget is None:
            budget = found[view.pool] = Budget(policies.get(view.pool, Policy()))
        if view.lifecycle is Lifecycle.RETIRED or view.expected_gpu_count == 0:
            continue
        verdict = verdicts.get(view.machine)
        if verdict is not None and verdict.health is Health.ABSENT:
            continue
        budget.slots.add(view.slot)
        if view.lifecycle in OUT or view.slot in under_way or drained_by_another(view) or view.slot in memory.granted:
            budget.out.add(view.slot)
            budget.domain_of[view.slot] = view.domain
    return found


def drained_by_another(view: NodeView) -> bool:
    """A person or another tool drained it: hands off, and it is out all the same."""
    return view.scheduler is not None and view.scheduler.drain_owner == "foreign"


def under_way(memory: PlanMemory, slot: str) -> Done | None:
    """The action that was begun on this slot and has not ended. A question to a person is none."""
    return next((d for d in memory.actions if d.slot == slot and not d.ended and d.kind != "ask_approval"), None)


def age_s(done: Done, fleet: FleetView, now: Moment) -> float:
    """Seconds since an action began. Before our own start: at least as long as we run, the wall clock is not asked."""
    started_ns = done.started_monotonic_ns
    return now.age_s(fleet.started_monotonic_ns if started_ns is None else started_ns)


def cooling(
    past: Sequence[Done], policy: Policy, fleet: FleetView, now: Moment, *, of: str = "this slot"
) -> Refusal | None:
    """Too soon after the last action."""
    ages = [age_s(done, fleet, now) for done in past if done.kind != "ask_approval"]
    if not ages or min(ages) >= policy.cool_down_s:
        return None
    return "cool_down", f"the last action on {of} began {min(ages):.0f} s ago (cool-down {policy.cool_down_s:.0f} s)"


def worn_out(
    past: Sequence[Done], kind: str, cause: str, policy: Policy, *, of: str = "this machine"
) -> Refusal | None:
    """The same was tried for the same cause often enough: a person is needed."""
    times = sum(1 for done in past if done.kind == kind and done.cause == cause)
    if times < policy.max_attempts_per_machine:
        return None
    words = f"{kind} was tried {times} times on {of} for {cause} (at most {policy.max_attempts_per_machine})"
    return "attempts", f"{words}: a person must look"
