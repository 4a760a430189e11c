"""What a machine's lifecycle becomes without an action of ours: it joins, others drain or resume it, it goes. Pure.

The lifecycles of a machine that one of our actions works on are set by that action's steps, and by nobody else.
"""

from __future__ import annotations

from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.view import NodeView

RESUMED_BY_SOMEBODY = "it was resumed by somebody in the scheduler"
OUT_BY_DRAIN = frozenset({Lifecycle.CORDONED, Lifecycle.DRAINING, Lifecycle.DRAINED})
_OURS = frozenset({Lifecycle.REPAIRING, Lifecycle.REPLACING, Lifecycle.VALIDATING, Lifecycle.QUARANTINED})


def next_lifecycle(
    view: NodeView, health: Health, *, fills_slot: bool, witnessed: bool, changed_monotonic_ns: int
) -> tuple[Lifecycle, str] | None:
    """The new lifecycle and why; None if it stays.

    `fills_slot`: it is the slot's machine, not one that waits to take over. `witnessed`: a scheduler is there to ask.
    `changed_monotonic_ns`: the last change of this lifecycle; what a witness was asked before it says nothing.
    """
    cloud = view.cloud
    if cloud is not None and cloud.state == "gone" and not _speaks_after(view, cloud.received_monotonic_ns):
        if cloud.absent_because != "unexplained":
            return Lifecycle.RETIRED, f"the cloud says that it is gone: {cloud.absent_because or cloud.because}"
        return None
    says = view.scheduler
    if says is not None and says.received_monotonic_ns <= changed_monotonic_ns:
        says = None
    if view.lifecycle is Lifecycle.PROVISIONING:
        if not fills_slot or health is not Health.HEALTHY:
            return None
        if witnessed and (says is None or says.state not in ("idle", "allocated")):
            return None
        return Lifecycle.IN_SERVICE, "it is healthy and takes work"
    if says is None or view.lifecycle in _OURS or not fills_slot:
        return None
    if says.drain_owner == "foreign":
        to = Lifecycle.DRAINING if says.jobs or says.state == "draining" else Lifecycle.DRAINED
        return None if view.lifecycle is to else (to, f"drained by another: {says.reason}")
    if says.drain_owner == "gpuwatch":
        if view.lifecycle is Lifecycle.IN_SERVICE:  # our drain, but no action of ours that is still known
            to = Lifecycle.DRAINING if says.jobs else Lifecycle.DRAINED
            return to, f"the scheduler shows our drain: {says.reason}"
        if view.lifecycle in (Lifecycle.CORDONED, Lifecycle.DRAINING) and not says.jobs:
            return Lifecycle.DRAINED, "the scheduler says that it is empty"
        return None
    if view.lifecycle in OUT_BY_DRAIN and says.state in ("idle", "allocated"):
        return Lifecycle.IN_SERVICE, RESUMED_BY_SOMEBODY
    return None


def _speaks_after(view: NodeView, moment_ns: int) -> bool:
    last_ns = view.last_report_monotonic_ns
    return last_ns is not None and last_ns > moment_ns - int(2 * view.interval_s * 1e9)
