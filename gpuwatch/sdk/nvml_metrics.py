"""Numbers for `/metrics` from the NVML facts: base units, counters end in `_total`, a GPU's index is the label."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpuwatch.model.facts.nvml import Gpu, NvmlFacts

NS = 1e-9


class Number(NamedTuple):
    """One number, and under which name."""

    name: str
    help: str
    value: float
    labels: dict[str, str] = {}  # noqa: RUF012  (never changed)
    counter: bool = False


class Gauge(NamedTuple):
    """How one field of a GPU is shown."""

    name: str
    help: str
    factor: float = 1.0


class Counter(NamedTuple):
    """How one counter of a GPU is shown; `kind` tells those of one name apart."""

    name: str
    help: str
    kind: str = ""
    factor: float = 1.0


GAUGES = {
    "utilization_ratio": Gauge("utilization_ratio", "Share of time in which a kernel ran."),
    "memory_utilization_ratio": Gauge("memory_utilization_ratio", "Share of time in which memory was accessed."),
    "memory_used_bytes": Gauge("memory_used_bytes", "Memory in use."),
    "memory_total_bytes": Gauge("memory_total_bytes", "Memory of the GPU."),
    "power_watts": Gauge("power_watts", "Power drawn."),
    "power_limit_watts": Gauge("power_limit_watts", "Power limit that was asked for."),
    "power_limit_enforced_watts": Gauge("power_limit_enforced_watts", "Power limit in force, out-of-band included."),
    "power_limit_default_watts": Gauge("power_limit_default_watts", "Power limit with which the GPU starts."),
    "temperature_celsius": Gauge("temperature_celsius", "Temperature of the GPU."),
    "memory_temperature_celsius": Gauge("memory_temperature_celsius", "Temperature of the memory."),
    "temperature_margin_celsius": Gauge("temperature_margin_celsius", "Degrees left until the hardware slows down."),
    "slowdown_celsius": Gauge("slowdown_celsius", "Temperature at which the hardware slows down."),
    "sm_clock_mhz": Gauge("sm_clock_hertz", "Clock of the multiprocessors.", 1e6),
    "sm_clock_max_mhz": Gauge("sm_clock_max_hertz", "Fastest clock of the multiprocessors.", 1e6),
    "memory_clock_mhz": Gauge("memory_clock_hertz", "Clock of the memory.", 1e6),
    "clock_event_mask": Gauge("clock_event_mask", "Why clocks are held down: bits of NVML's clocks event reasons."),
    "thermal_slowdown_ratio": Gauge("thermal_slowdown_ratio", "Share of the last minute slowed down for heat."),
    "power_brake_ratio": Gauge("power_brake_ratio", "Share of the last minute under the power brake."),
    "ecc_enabled": Gauge("ecc_enabled", "1: memory errors are corrected."),
    "retired_page_pending": Gauge("retired_page_pending", "1: a memory page waits for a reset to be retired."),
    "row_remap_pending": Gauge("row_remap_pending", "1: a remapped memory row waits for a reset."),
    "row_remap_failed": Gauge("row_remap_failed", "1: remapping a memory row has failed."),
    "pcie_generation": Gauge("pcie_link_generation", "PCIe generation of the link; drops when idle."),
    "pcie_generation_max": Gauge("pcie_link_generation_max", "PCIe generation that GPU and slot allow."),
    "pcie_width": Gauge("pcie_link_width", "PCIe lanes in use."),
    "pcie_width_max": Gauge("pcie_link_width_max", "PCIe lanes that GPU and slot allow."),
    "nvlink_count": Gauge("nvlinks", "NVLinks that the chip has."),
    "fabric_state": Gauge("fabric_state", "NVLink fabric: 0 none, 1 not started, 2 in progress, 3 completed."),
    "fabric_status": Gauge("fabric_status_code", "NVML return code of the fabric's probe; of use in state 3."),
    "persistence_mode": Gauge("persistence_mode", "1: the driver stays loaded while nobody uses the GPU."),
    "mig_mode": Gauge("mig_mode", "1: the GPU is divided into instances (MIG)."),
    "mig_instance_count": Gauge("mig_instances", "Instances into which the GPU is divided."),
    "recovery_action": Gauge("recovery_action", "What the driver wants done (NVML field 230); 0 is nothing."),
}
_VOLATILE, _LIFETIME = "Memory errors since driver load.", "Memory errors in the board's life."
_LINK_ERRORS = "Errors of all NVLinks of a GPU since driver load."
_SLOWED = "Time in which clocks were held down since driver load, by cause."
COUNTERS = {
    "ecc_corrected_volatile_count": Counter("ecc_volatile_errors_total", _VOLATILE, "corrected"),
    "ecc_uncorrected_volatile_count": Counter("ecc_volatile_errors_total", _VOLATILE, "uncorrected"),
    "ecc_corrected_total_count": Counter("ecc_lifetime_errors_total", _LIFETIME, "corrected"),
    "ecc_uncorrected_total_count": Counter("ecc_lifetime_errors_total", _LIFETIME, "uncorrected"),
    "rows_remapped_corrected_count": Counter("rows_remapped_total", "Remapped memory rows, by cause.", "corrected"),
    "rows_remapped_uncorrected_count": Counter("rows_remapped_total", "Remapped memory rows, by cause.", "uncorrected"),
    "retired_page_count": Counter("retired_pages_total", "Memory pages taken out of use."),
    "pcie_replay_count": Counter("pcie_replays_total", "PCIe packets that were sent again since driver load."),
    "nvlink_replay_count": Counter("nvlink_errors_total", _LINK_ERRORS, "replay"),
    "nvlink_recovery_count": Counter("nvlink_errors_total", _LINK_ERRORS, "recovery"),
    "nvlink_crc_count": Counter("nvlink_errors_total", _LINK_ERRORS, "crc"),
    "thermal_slowdown_ns": Counter("clocks_held_seconds_total", _SLOWED, "hardware_thermal", NS),
    "power_brake_ns": Counter("clocks_held_seconds_total", _SLOWED, "power_brake", NS),
    "software_thermal_ns": Counter("clocks_held_seconds_total", _SLOWED, "software_thermal", NS),
    "power_capped_ns": Counter("clocks_held_seconds_total", _SLOWED, "power_cap", NS),
}
BANKS = ("all", "most", "some", "few", "none")


def numbers(facts: NvmlFacts) -> Iterable[Number]:
    """Every number that is known; first how many GPUs should be here, how many are, and how many work."""
    known = (facts.expected_gpu_count, facts.pci_gpu_most_count, facts.pci_gpu_count)
    should_be = next((count for count in known if count is not None), None)
    if should_be is not None:
        text = "NVIDIA GPUs that should be here: as set, else the most that were seen on the PCI bus."
        yield Number(name="gpuwatch_gpus_expected", help=text, value=should_be)
    if facts.pci_gpu_count is not None:
        text = "NVIDIA GPUs on the PCI bus."
        yield Number(name="gpuwatch_gpus_on_bus", help=text, value=facts.pci_gpu_count)
    yield Number(name="gpuwatch_gpus_seen", help="GPUs that the driver's library lists.", value=len(facts.gpus))
    usable = sum(gpu.error is None for gpu in facts.gpus)
    yield Number(name="gpuwatch_gpus_usable", help="GPUs that answer the driver's library.", value=usable)
    if facts.init_error is not None:
        text = "NVML return code with which the driver's library refused to start."
        yield Number(name="gpuwatch_nvml_init_error_code", help=text, value=facts.init_error)
    if facts.driver_version is not None:
        labels = {"version": facts.driver_version} | ({"cuda": facts.cuda_version} if facts.cuda_version else {})
        yield Number(name="gpuwatch_driver_info", help="Version of the NVIDIA driver.", value=1, labels=labels)
    for gpu in facts.gpus:
        yield from _of_one(gpu)


def _of_one(gpu: Gpu) -> Iterable[Number]:
    place = {"gpu": str(gpu.index)}
    names = {"uuid": gpu.uuid or "", "pci": gpu.pci or "", "name": gpu.name or "", "serial": gpu.serial or ""}
    yield Number(name="gpuwatch_gpu_info", help="Names of a GPU; join on `gpu`.", value=1, labels=place | names)
    if gpu.vbios_version or gpu.inforom_version:
        labels = place | {"vbios": gpu.vbios_version or "", "inforom": gpu.inforom_version or ""}
        yield Number(name="gpuwatch_gpu_firmware_info", help="Firmware of a GPU's board.", value=1, labels=labels)
    text = "1: the GPU answers; 0: it refused, see the error code."
    yield Number(name="gpuwatch_gpu_usable", help=text, value=gpu.error is None, labels=place)
    if gpu.error is not None:
        text = "NVML return code with which a GPU refused."
        yield Number(name="gpuwatch_gpu_error_code", help=text, value=gpu.error, labels=place)
    for field, (name, text, factor) in GAUGES.items():
        value = getattr(gpu, field)
        if value is not None:
            yield Number(name=f"gpuwatch_gpu_{name}", help=text, value=value * factor, labels=place)
    for field, (name, text, kind, factor) in COUNTERS.items():
        value = getattr(gpu, field)
        if value is not None:
            labels = place | ({"kind": kind} if kind else {})
            yield Number(name=f"gpuwatch_gpu_{name}", help=text, value=value * factor, labels=labels, counter=True)
    if gpu.nvlink_inactive is not None:
        text = "NVLinks that carry nothing."
        yield Number(name="gpuwatch_gpu_nvlinks_inactive", help=text, value=len(gpu.nvlink_inactive), labels=place)
    for left, count in zip(BANKS, gpu.row_remap_banks or (), strict=False):
        text = "Memory banks by the spare rows that they have left."
        yield Number(name="gpuwatch_gpu_memory_banks", help=text, value=count, labels=place | {"spare_rows": left})
    if gpu.error is None:
        text = "Compute processes on a GPU."
        yield Number(name="gpuwatch_gpu_processes", help=text, value=len(gpu.pids), labels=place)
