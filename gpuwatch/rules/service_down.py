"""A service that this node needs is not running.

Of NVSwitch machines the fabric manager is part of the driver: without it CUDA does not start, and by its default its
end aborts what runs (NVIDIA Fabric Manager User Guide, ABORT_CUDA_JOBS_ON_FM_EXIT); NVIDIA/NVSentinel#883, #891: dead
for 20 days, every GPU well, nobody noticed. On a machine without a fabric the same service has nothing to do and may
end (NVIDIA/gpu-operator#610), so there it is a note, and so is every other service: the scheduler itself says what a
dead slurmd or kubelet means, and CUDA works without persistence daemon and DCGM. Only units that are enabled, or that
ran in this boot. A restart takes its time, so the fabric manager's end must last `driver_grace_s`; `after_s` for notes.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.facts.pcie import PcieFacts
from gpuwatch.model.facts.services import ServicesFacts, Unit
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

FABRIC_MANAGER = "nvidia-fabricmanager.service"
FABRIC_STATES = (1, 2, 3)  # NVML_GPU_FABRIC_STATE_*: not started, in progress, completed
DOWN = ("inactive", "failed")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How old the state of a unit is before it is told."""

    after_s: float = 120.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:
    """Silent where the agent does not watch services."""
    facts = view.facts.get(ServicesFacts)
    for unit in facts.units if facts is not None else ():
        if not unit.must_run() or not (unit.active_state in DOWN or unit.sub_state == "auto-restart"):
            continue
        fatal = unit.name == FABRIC_MANAGER and _has_fabric(view)
        age_s = (now.unix_ns - unit.since_unix_ns) / 1e9 if unit.since_unix_ns is not None else settings.after_s
        if not fatal and 0 <= age_s < settings.after_s:
            continue
        yield Evidence(
            rule="service_down",
            subject=Subject("machine", f"{view.machine}/{unit.name}"),
            argues_for=Health.DRIVER_FAILED if fatal else Health.SUSPECT,
            because=_words(unit, fatal=fatal),
            conclusive=fatal,
            onset_unix_ns=unit.since_unix_ns,
            action="reboot" if fatal else "none",
            cause=f"service_down_{unit.name.partition('.')[0]}",
            kind="fabric_manager_down" if fatal else "",
            must_last="driver_grace_s" if fatal else 0.0,
            software=True,
            service=unit.name if fatal else "",
            note=not fatal,
        )


def _has_fabric(view: NodeView) -> bool:
    pcie, nvml = view.facts.get(PcieFacts), view.facts.get(NvmlFacts)
    switches = any(device.kind == "switch" for device in (pcie.devices if pcie is not None else ()))
    return switches or any(gpu.fabric_state in FABRIC_STATES for gpu in (nvml.gpus if nvml is not None else ()))


def _words(unit: Unit, *, fatal: bool) -> str:
    state = unit.active_state if unit.active_state in DOWN else f"{unit.active_state} ({unit.sub_state})"
    result = f", result {unit.result}" if unit.result not in ("", "success") else ""
    ends = ": without it CUDA does not start on a machine with NVSwitches" if fatal else ""
    return f"{unit.name} is {state}{result}{ends}"


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(ServicesFacts,),
    matters="work that needs this service fails, though every GPU looks well",
    source="NVIDIA/NVSentinel#883, #891, NVIDIA/gpu-operator#610, NVIDIA Fabric Manager User Guide",
)
