"""Bring back what we drained ourselves and what is well again.

Never blocked by a budget, a shared cause or our blindness: the verdict "healthy" needs a fresh report, and a breaker
stops new harm, not recoveries. Only our own drains; and where only an event told of the fault, its end is no repair.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.decide.limits import Refusal, cooling, under_way
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Action, Done, Hold, PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import Lifecycle
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import FleetView, NodeView

OURS_TO_RESUME = frozenset({Lifecycle.CORDONED, Lifecycle.DRAINING, Lifecycle.DRAINED})
TOOK_OUT = ("drain", "reimage", "repair")
EVENT_CAUSES = ("xid_", "sxid_", "kernel_")
"""Causes that only an event told: that it was not seen again is no repair."""
SEEN_BY = {
    "ib_": "infiniband",
    "pcie_": "pcie",
    "service_": "services",
    "mount_": "host",
    "disk_": "host",
    "file_system_": "host",
    "processes_": "host",
}
"""Which source must say that it is gone, by how a cause begins: one that is silent, fails or is off says nothing."""


def returning(
    view: NodeView,
    verdict: Verdict,
    policy: Policy,
    past: Sequence[Done],
    memory: PlanMemory,
    fleet: FleetView,
    now: Moment,
) -> Action | Hold | None:
    """For a healthy node that is out: resume it, or say why not. None: it is not ours, or an action is under way.

    `past`: what was done on its slot before, oldest first.
    """
    if view.scheduler is None or view.scheduler.drain_owner != "gpuwatch":
        return None
    if under_way(memory, view.slot) is not None:
        return None
    drain = next((d for d in reversed(past) if d.kind in TOOK_OUT and d.machine == view.machine), None)
    refusal = _refusal(view, policy, drain, past, memory, fleet, now)
    if refusal is not None or drain is None:
        reason, because = refusal or ("drain_unknown", "")
        fault = drain.fault if drain is not None else ""
        return Hold(slot=view.slot, machine=view.machine, pool=view.pool, reason=reason, because=because, fault=fault)
    return Action(
        action_id=f"resume-{drain.action_id}",
        kind="resume",
        slot=view.slot,
        machine=view.machine,
        pool=view.pool,
        because=f"well again: {verdict.because}; it was drained for {drain.cause}",
        fault=drain.fault,
        takes_out=False,
        cause=drain.cause,
    )


def _refusal(
    view: NodeView,
    policy: Policy,
    drain: Done | None,
    past: Sequence[Done],
    memory: PlanMemory,
    fleet: FleetView,
    now: Moment,
) -> Refusal | None:
    if memory.hold_everything:
        return "hold_file", memory.hold_everything
    if view.slot in memory.human_holds:
        return "human_hold", memory.human_holds[view.slot]
    if policy.mode in (Mode.OBSERVE, Mode.RECOMMEND):
        return policy.mode.value, f"mode {policy.mode.value}: would resume it, it is well again"
    if drain is None:
        return "drain_unknown", "drained by gpuwatch, but it does not remember why: a person must resume it"
    if drain.cause.startswith(EVENT_CAUSES) and not _booted_since(view, drain):
        words = f"drained for {drain.cause}; that it was not seen again is no repair: a reboot, or a person's word"
        return "repair_unproven", words
    blind = _blind(view, drain.cause)
    if blind:
        return "repair_unproven", f"drained for {drain.cause}; {blind} does not say at present that it is gone"
    if drain.cause == "maintenance":
        source = view.sources.get("maintenance")
        if source is None or source.status in ("failed", "hung"):
            return "maintenance", "drained ahead of maintenance; the cloud does not say at present whether it is over"
    return cooling(past, policy, fleet, now)


def seen_by(cause: str) -> str:
    """The source that tells of it; empty: NVML, the kernel's log or a witness."""
    return next((name for begin, name in SEEN_BY.items() if cause.startswith(begin)), "")


def _blind(view: NodeView, cause: str) -> str:
    """The source that told of it and says nothing now; empty: it speaks, or NVML or a witness told of it."""
    name = seen_by(cause)
    source = view.sources.get(name)
    return name if name and (source is None or source.status != "ok") else ""


def _booted_since(view: NodeView, drain: Done) -> bool:
    if view.boot_changed_monotonic_ns is None or drain.started_monotonic_ns is None:
        return False
    return view.boot_changed_monotonic_ns > drain.started_monotonic_ns
