"""NVML calls do not come back: the driver is wedged.

The agent asks NVML in a child process with a deadline; a child that does not come back cannot even be killed (D state).
That the call hangs is the finding, with the wait channel beside it (NVIDIA/gpu-monitoring-tools#46, dcgm-exporter#84,
NVSentinel#1576, #1748). A blocked call to a dead GSP lasts 6 to 45 s and may yet come back, so it must last
`driver_grace_s` of the pool's policy beyond the agent's own deadline. The agent alone may testify: it is there to see.
Only the source `nvml` is the driver's; another source that hangs (a network file system) says nothing of it.
"""

from __future__ import annotations

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: see `driver_grace_s` of the pool's policy, and the agent's own deadline."""


def examine(view: NodeView, now: Moment, settings: Settings) -> Evidence | None:  # noqa: ARG001
    """Looks at the envelope only: a hung source has no facts."""
    source = view.sources.get("nvml")
    if source is None or source.status != "hung":
        return None
    words = "NVML does not answer"
    if source.reason:
        words += f": {source.reason.partition(', kernel stack')[0]}"  # the stack stays with the source, for explain
    if source.abandoned_count:
        words += f" ({source.abandoned_count} child process{'es' if source.abandoned_count > 1 else ''} abandoned)"
    return Evidence(
        rule="probe_hung",
        subject=Subject("machine", view.machine),
        argues_for=Health.DRIVER_FAILED,
        because=words,
        conclusive=True,
        onset_unix_ns=source.since_unix_ns,
        action="reboot",
        must_last="driver_grace_s",
        software=True,
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="whatever calls the driver next hangs too, and cannot be killed",
    source="NVIDIA/gpu-monitoring-tools#46, NVIDIA/dcgm-exporter#84, NVIDIA/NVSentinel#1576",
)
