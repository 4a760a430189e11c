"""What NVML says of the driver and of each GPU."""

from __future__ import annotations

from typing import Annotated

import msgspec

Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Gpu(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One GPU. Key it by `uuid`, join it by `pci`; the index is not stable over reboots."""

    index: int
    uuid: str | None = None
    pci: str | None = None  # `0000:9b:00`, see identity.pci_address
    name: str | None = None
    error: int | None = None  # NVML return code with which this GPU refused; None: it answers
    utilization_ratio: Ratio | None = None
    memory_utilization_ratio: Ratio | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    clock_event_mask: int | None = None  # NVML clocks event reasons, nvml.h
    ecc_corrected_volatile_count: int | None = None
    ecc_uncorrected_volatile_count: int | None = None
    ecc_uncorrected_total_count: int | None = None
    rows_remapped_corrected_count: int | None = None
    rows_remapped_uncorrected_count: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    recovery_action: int | None = None  # NVML field 230; 0 is none
    pids: tuple[int, ...] = ()
    serial: str | None = None


class NvmlFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The driver and its GPUs as NVML shows them."""

    driver_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    init_error: int | None = None  # NVML return code of nvmlInit: 9 not loaded, 12 no library, 18 mismatch
    pci_gpu_count: int | None = None  # NVIDIA display-class functions in sysfs; None: sysfs not readable
    driver_loaded: bool | None = None  # /proc/driver/nvidia/version exists
    in_container: bool = False  # then NVML sees only what the container may see: never judge a count


FACTS = NvmlFacts
