"""The same verdict on several nodes of one pool or failure domain, close in time: one fault of something shared.

A subnet-manager failover, a leaf switch's reboot, an upgrade gone wrong, a bad threshold: each makes many healthy
machines look sick at once, and taking out the first few of them makes it worse (kubernetes-sigs/karpenter#2134,
Azure/az-hop#1796). All are held and one incident is told. `shared_cause_nodes` within `shared_cause_window_s` are the
pool's policy. A suspect whose fault has only not lasted long enough yet counts too: reports come one after the other,
and the first few must not be taken out while the third is still waiting to be condemned.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import SharedCause, Subject
from gpuwatch.model.moment import Moment
from gpuwatch.model.policy import Policy
from gpuwatch.model.states import SICK, Health
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import FleetView
from gpuwatch.rules import FleetRule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: see `shared_cause_nodes` and `shared_cause_window_s` of the pool's policy."""


DEFAULT = Policy()


def examine(
    fleet: FleetView,
    verdicts: tuple[Verdict, ...],
    now: Moment,  # noqa: ARG001
    settings: Settings,  # noqa: ARG001
) -> Iterator[SharedCause]:
    """By the moment each verdict began, on the monotonic clock."""
    sick = {verdict.machine: verdict for verdict in verdicts if verdict.health in SICK or _will_be(verdict)}
    groups: dict[tuple[str, str, str, str], list[Verdict]] = {}
    if len(sick) > 1:
        for view in fleet.nodes:
            verdict = sick.get(view.machine)
            if verdict is None:
                continue
            groups.setdefault(("pool", view.pool, view.pool, verdict.cause), []).append(verdict)
            if view.domain:
                groups.setdefault(("domain", view.domain, view.pool, verdict.cause), []).append(verdict)
    told: set[tuple[str, tuple[str, ...]]] = set()
    for (kind, name, pool, cause), found in sorted(groups.items()):  # a domain before the pool around it
        policy = fleet.policies.get(pool, DEFAULT)
        slots = _together(found, policy)
        if len(slots) >= policy.shared_cause_nodes and (cause, slots) not in told:
            told.add((cause, slots))
            words = f"{len(slots)} nodes of {kind} {name} show {cause or 'the same fault'}"
            yield SharedCause(
                rule="shared_cause",
                subject=Subject("domain" if kind == "domain" else "pool", name),
                slots=slots,
                because=f"{words}, within {policy.shared_cause_window_s:.0f} s: one fault of something they share",
                cause=cause,
            )


def _will_be(verdict: Verdict) -> bool:
    return verdict.health is Health.SUSPECT and bool(verdict.pending)


def _together(found: list[Verdict], policy: Policy) -> tuple[str, ...]:
    """Slots that lie in a window of time with enough others. Nodes are counted by slot, a slot once."""
    window_ns = int(policy.shared_cause_window_s * 1e9)
    ordered = sorted(found, key=lambda verdict: (verdict.since_monotonic_ns, verdict.slot))
    slots: set[str] = set()
    end = 0
    for start, first in enumerate(ordered):
        end = max(end, start)
        while end < len(ordered) and ordered[end].since_monotonic_ns - first.since_monotonic_ns <= window_ns:
            end += 1
        inside = {verdict.slot for verdict in ordered[start:end]}
        if len(inside) >= policy.shared_cause_nodes:
            slots |= inside
    return tuple(sorted(slots))


RULE = FleetRule(settings=Settings, examine=examine)
