"""The NVIDIA kernel driver is not there, on a node that has GPUs.

NVML code 9 (driver not loaded), or code 12 (no library) where the driver is not there either: a kernel update without
its module, a module that was unloaded. Seen never to recover (utkuozdemir/nvidia_gpu_exporter#65), and taken for "no
GPUs here" so that the node stays ready (NVIDIA/k8s-device-plugin#1641, #2037).
It must last `driver_grace_s` of the pool's policy: driver containers reload the module during upgrades.
Library missing while the driver is loaded, or in a container: the agent's own trouble, so Unknown.
"""

from __future__ import annotations

import msgspec

from gpuwatch.faults.nvml_codes import DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND
from gpuwatch.model.evidence import Evidence, Finding, Subject, Unknown
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: see `driver_grace_s` of the pool's policy."""


def examine(view: NodeView, now: Moment, settings: Settings) -> Finding | None:  # noqa: ARG001
    """Needs the NVML facts; a node that is known to have no GPUs needs no driver."""
    if view.expected_gpu_count == 0:
        return None
    facts = view.fact(NvmlFacts)
    error = facts.init_error
    if error not in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND):
        return None
    if not (view.expected_gpu_count or facts.pci_gpu_count):
        return None  # nothing says that GPUs are here
    subject = Subject("machine", view.machine)
    if error == LIBRARY_NOT_FOUND and (facts.driver_loaded is not False or facts.in_container):
        where = "in the agent's container" if facts.in_container else "although the driver may well be loaded"
        why = f"the NVML library was not found {where}: the agent cannot look"
        return Unknown(rule="driver_not_loaded", subject=subject, because=why)
    if facts.in_container and facts.driver_loaded:
        why = "NVML says that the driver is not loaded, but it is: the container hides it"
        return Unknown(rule="driver_not_loaded", subject=subject, because=why)
    here = view.expected_gpu_count or facts.pci_gpu_count
    what = "the NVIDIA driver is not loaded"
    if error == LIBRARY_NOT_FOUND:
        what = "neither the NVIDIA driver nor its library is here: not installed, or removed"
    return Evidence(
        rule="driver_not_loaded",
        subject=subject,
        argues_for=Health.DRIVER_FAILED,
        because=f"{what} (NVML code {error}) on a node with {here} GPUs",
        conclusive=True,
        action="reboot",
        must_last="driver_grace_s",
        software=True,
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="no CUDA program can start here, and it does not come back by itself",
    source="nvml.h, return codes 9 and 12; utkuozdemir/nvidia_gpu_exporter#65",
)
