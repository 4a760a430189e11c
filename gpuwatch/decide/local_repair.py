"""Whether the node itself can be mended, by an order to its own hands, before it is given up; and by which rung.

The ladder is the fault's: a service that is down is restarted, a GPU that wants a reset is reset, what is left is
rebooted. Each rung once in `repair_again_s`; then the next one, then another machine. Only what the pool's policy and
the node's own hands allow, only by a node that speaks, and only where all that condemns it asks for such a rung: one
fault that wants another board makes a reset of its neighbour a waste of time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuwatch.decide.limits import age_s
from gpuwatch.model.evidence import Evidence
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.identity import pci_address
from gpuwatch.model.moment import Moment
from gpuwatch.model.order import OrderKind
from gpuwatch.model.plan import Done
from gpuwatch.model.policy import Policy
from gpuwatch.model.states import SICK, Health
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import FleetView, NodeView

FRESH_S = 180.0
"""Older words of the hands say nothing: a report carries them when they are new, and each minute."""
SHOWN = 200  # characters of what a node says
MENDED = frozenset({"reset_gpu", "reboot"})
_WORDS = {"restart_service": "restart {}", "reset_gpu": "reset {}", "reboot": "reboot it"}


class Rung(msgspec.Struct, frozen=True):
    """One order; with no kind, why there is none. Empty words: nobody asked for any."""

    kind: OrderKind | None
    target: str = ""
    because: str = ""


def next_rung(
    view: NodeView, verdict: Verdict, policy: Policy, fleet: FleetView, past: Sequence[Done], now: Moment
) -> Rung:
    """The next order for a sick node. `past`: what was done on its slot."""
    if not policy.local_repair:
        return Rung(None)
    if verdict.health in (Health.DEAD, Health.ABSENT) or view.is_silent(
        now.monotonic_ns, policy.silent_after_intervals
    ):
        return Rung(None, because="not repaired: it does not speak")
    hands, source = view.facts.get(HandsFacts), view.sources.get("hands")
    if hands is None or source is None or now.age_s(source.received_monotonic_ns) > FRESH_S:
        return Rung(None, because="not repaired: it has no hands that speak")
    if not fleet.order_key or fleet.order_key not in hands.keys:
        return Rung(None, because="not repaired: its hands do not know our key")
    if hands.refuses:
        return Rung(None, because=f"not repaired: its hands refuse: {hands.refuses[:SHOWN]}")
    rungs = [rung for rung in _ladder(view, verdict) if rung.kind in policy.local_repair and _allows(hands, rung)]
    if not rungs:
        return Rung(None, because="not repaired: no rung that is allowed there cures this")
    own = [done for done in past if done.kind == "repair" and done.machine == view.machine]
    times = sum(1 for done in own if done.cause == verdict.cause)
    if times >= policy.max_attempts_per_machine:
        return Rung(None, because=f"not repaired: {times} repairs did not cure it")
    tried = [
        d.order for d in own if d.order and d.outcome != "cancelled" and age_s(d, fleet, now) < policy.repair_again_s
    ]
    for rung in rungs:
        if rung.kind not in tried and rung.kind is not None:
            return Rung(rung.kind, rung.target, f"its hands may {_WORDS[rung.kind].format(rung.target)}")
    return Rung(None, because=f"not repaired: {', '.join(sorted(tried))} did not cure it")


def beyond(view: NodeView, verdict: Verdict, kind: str, target: str) -> Evidence | None:
    """The first of what condemns it that this order does not cure; None: all of it, or nothing condemns it."""
    for e in _against(verdict):
        cures = e.action in MENDED
        if kind == "restart_service":
            cures = cures and e.service == target
        elif kind == "reset_gpu":
            cures = e.action == "reset_gpu" and _gpu(view, e) == target
        if not cures:
            return e
    return None


def _ladder(view: NodeView, verdict: Verdict) -> list[Rung]:
    """Every rung that may cure all that condemns it, the mildest first."""
    first = next(iter(_against(verdict)), None)
    if first is None:
        return []
    rungs = [Rung("restart_service", first.service), Rung("reset_gpu", _gpu(view, first)), Rung("reboot")]
    named = [rung for rung in rungs if rung.target or rung.kind == "reboot"]
    return [rung for rung in named if beyond(view, verdict, rung.kind or "", rung.target) is None]


def _against(verdict: Verdict) -> list[Evidence]:
    return [e for e in verdict.evidence if e.argues_for in SICK and e.subject.kind != "run" and not e.note]


def _gpu(view: NodeView, evidence: Evidence) -> str:
    """Its GPU as an order names it: UUID or PCI address; empty: it names none."""
    name = evidence.subject.id.removeprefix(f"{view.machine}/")
    known = name.startswith("GPU-") or pci_address(name) is not None
    return name if evidence.subject.kind == "gpu" and known else ""


def _allows(hands: HandsFacts, rung: Rung) -> bool:
    if rung.kind == "restart_service":
        return rung.target in hands.units
    return hands.may_reset_gpu if rung.kind == "reset_gpu" else hands.may_reboot
