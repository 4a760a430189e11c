"""A GPU has left the bus: NVML says so for this one GPU, the others are judged by themselves.

Code 15 (GPU is lost): from then on every call on it fails (nvitop#139, rossumai/nvgpu#6); it comes also without any Xid
(NVIDIA/NVSentinel#155). Power-cycle or replace; a warm reboot often does not help.
Code 999 on a host may be the same before the driver knows it (NVIDIA/dcgm-exporter#604): confirmed when the kernel log
has a fatal word on that GPU or PCI shows fewer GPUs than NVML lists, else a suspicion once it was seen twice within a
minute. In a container 999 is usually the container's (nvidia-container-toolkit#48): Unknown. So it is on a host where
the agent itself may not open the device files any more: a rewritten cgroup, not hardware.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.faults.nvml_codes import GPU_IS_LOST, UNKNOWN_ERROR
from gpuwatch.model.evidence import Evidence, Finding, Subject, Unknown
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be set, with its usual value."""

    unknown_error_lasts_s: float = 60.0  # an unconfirmed code 999 must last this long to be a suspicion


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Finding] | None:  # noqa: ARG001
    """Needs the NVML facts."""
    if view.expected_gpu_count == 0:
        return None
    facts = view.fact(NvmlFacts)
    for gpu in facts.gpus:
        if gpu.error is not None and gpu.error in (GPU_IS_LOST, UNKNOWN_ERROR):
            return _findings(view, facts, settings)
    return None


def _findings(view: NodeView, facts: NvmlFacts, settings: Settings) -> Iterator[Finding]:
    for gpu in facts.gpus:
        subject = Subject("gpu", gpu.uuid or f"{view.machine}/{gpu.pci or gpu.index}")
        where = f"GPU {gpu.index}" + (f" at {gpu.pci}" if gpu.pci else "")
        if gpu.error == GPU_IS_LOST:
            yield _lost(subject, f"{where} is lost (NVML code 15)")
        elif gpu.error == UNKNOWN_ERROR and facts.in_container:
            why = f"{where} answers code 999 in a container: look from the host"
            yield Unknown(rule="gpu_lost", subject=subject, because=why)
        elif gpu.error == UNKNOWN_ERROR and facts.rights_lost:
            why = f"{where} answers code 999, but the agent may not open the device files: restart the agent"
            yield Unknown(rule="gpu_lost", subject=subject, because=why)
        elif gpu.error == UNKNOWN_ERROR and (why := _confirmed(view, facts, gpu)):
            yield _lost(subject, f"{where} answers code 999, and {why}")
        elif gpu.error == UNKNOWN_ERROR:
            yield Evidence(
                rule="gpu_lost",
                subject=subject,
                argues_for=Health.SUSPECT,
                because=f"{where} answers code 999 Unknown Error: it may be lost",
                cause="nvml_999",
                must_last=settings.unknown_error_lasts_s,
            )


def _lost(subject: Subject, because: str) -> Evidence:
    return Evidence(
        rule="gpu_lost",
        subject=subject,
        argues_for=Health.DRIVER_FAILED,
        because=because,
        conclusive=True,
        action="drain_replace",
        kind="gpu_lost",
    )


def _confirmed(view: NodeView, facts: NvmlFacts, gpu: Gpu) -> str:
    if gpu.pci is not None and any(e.pci == gpu.pci and e.severity == "fatal" for e in view.events):
        return "the kernel log has a fatal event of it"
    if facts.pci_gpu_count is not None and facts.pci_gpu_count < len(facts.gpus):
        return f"PCI shows {facts.pci_gpu_count} GPUs where NVML lists {len(facts.gpus)}"
    return ""


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="every job that uses all GPUs of this node fails or hangs",
    source="nvml.h, return code 15; NVIDIA Xid catalogue, Xid 79",
)
