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
    # what moves slowly; each is a number of the last slow round
    memory_temperature_celsius: int | None = None
    temperature_margin_celsius: int | None = None  # left until the hardware slows down; below 0: it does
    slowdown_celsius: int | None = None  # the board's own limit, none on boards that only tell a margin
    power_limit_default_watts: float | None = None
    power_limit_enforced_watts: float | None = None  # what holds now, limits set out of band included
    sm_clock_max_mhz: int | None = None
    ecc_enabled: bool | None = None
    ecc_corrected_total_count: int | None = None
    retired_page_count: int | None = None  # before Ampere; later boards remap rows
    retired_page_pending: bool | None = None
    row_remap_banks: tuple[int, int, int, int, int] | None = None  # with all, most, some, few, no spare rows left
    pcie_generation_max: int | None = None
    pcie_replay_count: int | None = None
    nvlink_count: int | None = None  # links that the chip has
    nvlink_inactive: tuple[int, ...] | None = None  # of these, by number; None: the states are not told
    nvlink_replay_count: int | None = None
    nvlink_recovery_count: int | None = None
    nvlink_crc_count: int | None = None
    fabric_state: int | None = None  # NVML_GPU_FABRIC_STATE_*: 0 no fabric, 1 not started, 2 in progress, 3 completed
    fabric_status: int | None = None  # an NVML return code; valid in state 3 only
    fabric_health_mask: int | None = None  # 2-bit fields, see rules/fabric_not_ready.py
    fabric_health_summary: int | None = None  # 1 healthy, 2 unhealthy, 3 limited capacity
    fabric_cluster: str | None = None
    fabric_clique: int | None = None
    persistence_mode: bool | None = None
    mig_mode: bool | None = None
    mig_mode_pending: bool | None = None
    mig_instance_count: int | None = None  # where MIG is on
    vbios_version: str | None = None
    inforom_version: str | None = None
    thermal_slowdown_ns: int | None = None  # since driver load: the hardware halved clocks or worse, for heat
    power_brake_ns: int | None = None  # … for the chassis' power brake
    software_thermal_ns: int | None = None  # the driver lowered clocks, for heat
    power_capped_ns: int | None = None  # … to keep the power limit: normal under load
    # shares of the time between the last two slow rounds
    thermal_slowdown_ratio: Ratio | None = None
    power_brake_ratio: Ratio | None = None
    # growth within the last hour that this agent has watched; a counter that fell begins anew
    ecc_corrected_hour_count: int | None = None
    ecc_uncorrected_hour_count: int | None = None
    rows_remapped_hour_count: int | None = None  # by uncorrectable errors
    pcie_replay_hour_count: int | None = None
    nvlink_replay_hour_count: int | None = None
    nvlink_recovery_hour_count: int | None = None

    def place(self) -> str:
        """Where it is, in words."""
        return f"GPU {self.index}" + (f" at {self.pci}" if self.pci else "")

    def key(self, machine: str) -> str:
        """What evidence about it is named by: its own name, else its place in the machine."""
        return self.uuid or f"{machine}/{self.pci or self.index}"


class Xid(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One Xid that NVML told. Only heard while the kernel log cannot be read."""

    id: str
    at_unix_ns: int
    pci: str | None
    xid: int


class NvmlFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The driver and its GPUs as NVML shows them."""

    driver_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    init_error: int | None = None  # NVML return code of nvmlInit: 9 not loaded, 12 no library, 18 mismatch
    pci_gpu_count: int | None = None  # NVIDIA display-class functions in sysfs; None: sysfs not readable
    driver_loaded: bool | None = None  # /proc/driver/nvidia/version exists
    in_container: bool = False  # then NVML sees only what the container may see: never judge a count
    cuda_version: str | None = None  # the newest that this driver can do
    rights_lost: bool = False  # the device files refuse this process: what NVML cannot say is no word on the hardware
    expected_gpu_count: int | None = None  # by the node's own settings
    pci_gpu_most_count: int | None = None  # the most that this agent has seen on the bus
    xids: tuple[Xid, ...] = ()  # of the last ten minutes


FACTS = NvmlFacts
