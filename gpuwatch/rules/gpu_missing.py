"""Fewer GPUs than this node should have.

Three numbers side by side: expected (the pool's or the node's own setting), NVML and PCI functions of vendor 10de,
class 0300 or 0302. PCI sees them all but NVML does not: the driver cannot start one (RmInitAdapter failed, WPR2 still
up after a warm reboot: open-gpu-kernel-modules#1230, #1353). PCI is short too: the hardware is gone. Nobody compared
them in leptonai/gpud#591, NVIDIA/NVSentinel#833, #155.
A container sees only its own GPUs, and a GPU given to a virtual machine is not missing: Unknown where the expected
number is not known and NVML and PCI disagree, and always in a container.
Must last `driver_grace_s` of the pool's policy: GPUs come up one by one after a boot or a reload.
"""

from __future__ import annotations

import msgspec

from gpuwatch.model.evidence import Evidence, Finding, Subject, Unknown
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

GPU_NOT_FOUND = 28


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: the expected number is the pool's `gpus`, the grace its policy's `driver_grace_s`."""


def examine(view: NodeView, now: Moment, settings: Settings) -> Finding | None:  # noqa: ARG001
    """Needs the NVML facts."""
    if view.expected_gpu_count == 0:
        return None
    facts = view.fact(NvmlFacts)
    expected = view.expected_gpu_count if view.expected_gpu_count is not None else facts.expected_gpu_count
    if facts.init_error not in (None, GPU_NOT_FOUND):
        return None  # the driver rules speak of that
    seen, pci = len(facts.gpus), facts.pci_gpu_count
    subject = Subject("machine", view.machine)
    if expected is None:
        if pci is None or pci <= seen:
            return None
        why = f"PCI shows {pci} GPUs, NVML {seen}, and the expected number is not known: set the pool's `gpus`"
        return Unknown(rule="gpu_missing", subject=subject, because=why)
    if seen >= expected:
        return None
    if facts.in_container:
        why = f"NVML shows {seen} of {expected} GPUs, but in a container it sees only the container's"
        return Unknown(rule="gpu_missing", subject=subject, because=why)
    if pci is None:
        rest, action = "PCI could not be read", "reboot"
    elif pci >= expected:
        rest, action = f"PCI shows {pci}: the driver cannot start {expected - seen}", "reboot"
    else:
        rest, action = f"PCI shows {pci}: hardware is gone", "drain_replace"
    return Evidence(
        rule="gpu_missing",
        subject=subject,
        argues_for=Health.DEGRADED if seen else Health.DRIVER_FAILED,
        because=f"NVML shows {seen} of {expected} GPUs, {rest}",
        conclusive=True,
        action="reboot" if action == "reboot" else "drain_replace",
        kind="gpu_missing",
        must_last="driver_grace_s",
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="a job that asks for all GPUs fails or runs on fewer",
    source="NVIDIA/NVSentinel#833, leptonai/gpud#591, NVIDIA/open-gpu-kernel-modules#1230",
)
