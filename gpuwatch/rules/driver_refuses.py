"""NVML does not start, for another reason than a missing driver or a version mismatch.

A node with GPUs whose NVML does not start is not a node without GPUs (NVIDIA/k8s-device-plugin#1641): on a host it is
a failed driver once it has lasted `driver_grace_s` of the pool's policy. Codes that only say that the agent may not
look (4, 17) or that the host is short of memory (20, 23) are Unknown, and so is everything inside a container, where
code 999 is usually the container's own (NVIDIA/nvidia-container-toolkit#48, #251, #1227).
"""

from __future__ import annotations

import msgspec

from gpuwatch.faults.nvml_codes import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    UNKNOWN_ERROR,
    VERSION_MISMATCH,
    code,
)
from gpuwatch.model.evidence import Evidence, Finding, Subject, Unknown
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

OTHER_RULES = (None, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH)
GPU_NOT_FOUND = 28  # NVML started and saw no GPU: that is `gpu_missing`
CONDEMNING = frozenset({11, 15, 16, 27, UNKNOWN_ERROR})


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: see `driver_grace_s` of the pool's policy."""


def examine(view: NodeView, now: Moment, settings: Settings) -> Finding | None:  # noqa: ARG001
    """Needs the NVML facts."""
    if view.expected_gpu_count == 0:
        return None
    facts = view.fact(NvmlFacts)
    error = facts.init_error
    if error in OTHER_RULES or error == GPU_NOT_FOUND:
        return None
    assert error is not None
    known = code(error)
    subject = Subject("machine", view.machine)
    if not (view.expected_gpu_count or facts.pci_gpu_count):
        return None  # nothing says that GPUs are here
    words = f"NVML does not start: code {error} {known.name}, {known.meaning}"
    if facts.rights_lost:
        words += "; the agent may not open the device files, so that proves nothing: restart the agent"
        return Unknown(rule="driver_refuses", subject=subject, because=words)
    if facts.in_container:
        return Unknown(rule="driver_refuses", subject=subject, because=f"{words}; in a container that proves nothing")
    if error not in CONDEMNING:
        return Unknown(rule="driver_refuses", subject=subject, because=words)
    return Evidence(
        rule="driver_refuses",
        subject=subject,
        argues_for=Health.DRIVER_FAILED,
        because=words,
        conclusive=True,
        action="reboot",
        cause=f"nvml_init_{error}",
        must_last="driver_grace_s",
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="no CUDA program can start here",
    source="nvml.h, return codes; NVIDIA/k8s-device-plugin#1641",
)
