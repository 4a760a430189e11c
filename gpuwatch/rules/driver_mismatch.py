"""Library and kernel module of the driver are of different versions.

NVML code 18: packages were upgraded under a running kernel module, often by unattended upgrades. What already runs goes
on (shine-cluster#30), so the drain is soft: cordon, let the jobs end, reboot. It is no hardware fault.
It must last `driver_grace_s` of the pool's policy: an upgrade passes through this state.
In a container the mismatch may be the container's alone: Unknown.
"""

from __future__ import annotations

import msgspec

from gpuwatch.faults.nvml_codes import VERSION_MISMATCH
from gpuwatch.model.evidence import Evidence, Finding, Subject, Unknown
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: see `driver_grace_s` of the pool's policy."""


def examine(view: NodeView, now: Moment, settings: Settings) -> Finding | None:  # noqa: ARG001
    """Needs the NVML facts."""
    if view.expected_gpu_count == 0:
        return None
    facts = view.fact(NvmlFacts)
    if facts.init_error != VERSION_MISMATCH:
        return None
    subject = Subject("machine", view.machine)
    if facts.in_container:
        why = "driver library and kernel module differ inside the agent's container; the host may be well"
        return Unknown(rule="driver_mismatch", subject=subject, because=why)
    return Evidence(
        rule="driver_mismatch",
        subject=subject,
        argues_for=Health.DRIVER_FAILED,
        because="driver library and kernel module are of different versions (NVML code 18); running jobs go on",
        conclusive=True,
        action="reboot",
        soft=True,
        must_last="driver_grace_s",
        software=True,
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="what runs goes on, but no new CUDA program starts until module and library agree",
    source="nvml.h, return code 18; NVIDIA driver installation guide",
)
