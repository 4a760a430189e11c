"""What ought to be done with one node, were there no limits: the first step from its verdict, its lifecycle, the mode.

Replace is for what no job's end and no person can mend from afar: dead, a failed driver, a GPU that wants a reset, a
reboot or a new board; a new machine cures all of these.
Repair, where the policy and the node's own hands allow it, comes before: see `local_repair`.
Reimage, where the policy says so, is for what is installed alone: the same hardware comes back with a fresh disk. Once:
sick again, or not cured, it is replaced.
Only drain, and tell a person: what asks for the provider, and what may be the application's (a soft fault's jobs may
end first; then it is replaced).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuwatch.decide.limits import age_s
from gpuwatch.decide.local_repair import next_rung
from gpuwatch.model.evidence import Evidence
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import ActionKind, Done
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import SICK, Health, Lifecycle
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import FleetView, GroupView, NodeView

REPLACED = frozenset({"reset_gpu", "reboot", "drain_replace"})
BUSY = frozenset({Lifecycle.REPAIRING, Lifecycle.REPLACING, Lifecycle.VALIDATING})
EMPTY = frozenset({Lifecycle.DRAINED})
LEAVING = frozenset({Lifecycle.CORDONED, Lifecycle.DRAINING})


class Wanted(msgspec.Struct, frozen=True):
    """One action that ought to happen, or, with no kind, why there is none left for us."""

    kind: ActionKind | None
    reason: str = ""
    because: str = ""
    order: str = ""  # repair: see Action
    target: str = ""


def wanted(
    view: NodeView, verdict: Verdict, policy: Policy, fleet: FleetView, past: Sequence[Done], now: Moment
) -> Wanted:
    """The next action for a sick node. `past`: what was done on its slot."""
    stuck = out_of_our_hands(view)
    if stuck is not None:
        return stuck
    out = view.lifecycle in EMPTY or view.lifecycle in LEAVING
    may_replace = policy.mode is not Mode.DRAIN
    if not may_replace:
        return (
            Wanted(None, "drained", f"it is {view.lifecycle.value}; mode drain goes no further")
            if out
            else Wanted("drain")
        )
    if verdict.health is not Health.DEAD:
        if verdict.action not in REPLACED:
            words = "the evidence asks for a person or the provider, not for another machine"
            return Wanted(None, "person", f"it is {view.lifecycle.value}; {words}") if out else Wanted("drain")
        if verdict.soft and view.lifecycle not in EMPTY:
            words = "its jobs may end first: the fault is soft"
            return Wanted(None, "in_progress", f"it is {view.lifecycle.value}; {words}") if out else Wanted("drain")
    rung = next_rung(view, verdict, policy, fleet, past, now)
    if rung.kind is not None:
        return Wanted("repair", because=rung.because, order=rung.kind, target=rung.target)
    owner = group_refusal(view, fleet)
    if owner:
        return Wanted(None, "group_owner", owner) if out else Wanted("drain", because=f"not replaced: {owner}")
    want = _reimage_or_replace(view, verdict, policy, fleet, past, now)
    return msgspec.structs.replace(want, because="; ".join(filter(None, (want.because, rung.because))))


def _reimage_or_replace(
    view: NodeView, verdict: Verdict, policy: Policy, fleet: FleetView, past: Sequence[Done], now: Moment
) -> Wanted:
    if policy.software_fault != "reimage" or verdict.health is not Health.DRIVER_FAILED or not verdict.software:
        return Wanted("replace")
    group = group_of(view, fleet)
    if group is None or not group.reimages:
        return Wanted("replace", because="not reimaged: its cloud cannot do that")
    for done in past:
        age = age_s(done, fleet, now)
        if done.kind != "reimage" or done.machine != view.machine or done.outcome == "cancelled":
            continue
        if age < policy.reimage_again_s:
            how = "was reimaged" if done.outcome == "done" else "could not be reimaged"
            return Wanted("replace", because=f"it {how} {age:.0f} s ago (less than {policy.reimage_again_s:.0f} s)")
    return Wanted("reimage", because="a fault of what is installed: a fresh system disk may cure it")


def out_of_our_hands(view: NodeView) -> Wanted | None:
    """A lifecycle in which nothing new may begin."""
    if view.lifecycle is Lifecycle.QUARANTINED:
        return Wanted(None, "quarantined", "it is quarantined: a person must look")
    if view.lifecycle in BUSY:
        return Wanted(None, "in_progress", f"it is {view.lifecycle.value}")
    return None


def group_refusal(view: NodeView, fleet: FleetView) -> str:
    """Why we may not change this node's group; empty: we own it and nothing stands against it.

    Two controllers that each replace a machine make two machines.
    """
    group = group_of(view, fleet)
    name = view.group or view.pool
    if group is None:
        return f"it is not known who owns group {name}"
    if group.owner != "gpuwatch":
        return f"group {group.name} belongs to {group.owner or 'an unknown controller'}"
    if group.refuses:
        return f"group {group.name} refuses: {', '.join(group.refuses)}"
    return ""


def group_of(view: NodeView, fleet: FleetView) -> GroupView | None:
    """The cloud's group of this node; a fleet's only group is everybody's who names none."""
    for group in fleet.groups:
        if group.name == (view.group or view.pool):
            return group
    return fleet.groups[0] if len(fleet.groups) == 1 and not view.group else None


def expired(verdict: Verdict, policy: Policy, now: Moment) -> str:
    """Why this verdict is too old to act on: all that condemns are single events, and they were long ago."""
    condemning = [e for e in verdict.evidence if e.argues_for in SICK and e.subject.kind != "run"]
    if not condemning or not all(_single(e) for e in condemning):
        return ""
    old_s = now.age_s(verdict.since_monotonic_ns)
    onsets = [e.onset_unix_ns for e in condemning if e.onset_unix_ns is not None]
    if onsets:  # it may have been sick of something else before: what has just come is not old for that
        old_s = min(old_s, (now.unix_ns - max(onsets)) / 1e9)
    if old_s <= policy.event_expires_s:
        return ""
    words = f"the event was seen {old_s:.0f} s ago and nothing else speaks of it"
    return f"{words} (expires after {policy.event_expires_s:.0f} s)"


def _single(evidence: Evidence) -> bool:
    return evidence.event_id is not None
