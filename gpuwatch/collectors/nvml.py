"""The driver and its GPUs through NVML. Can hang for ever in the kernel, so it runs in a child process.

Each GPU is asked by itself: one lost GPU must not hide the other seven (NVIDIA/k8s-device-plugin#231). What a GPU does
not support is absent, never 0 and never a fault. Values out of physical range are missing with a reason. Units and
numbers are nvml.h's: power in mW, utilisation in %, clocks in MHz.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from gpuwatch.collectors import Collector, Reading, Sample, Unsupported
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.sdk.nvidia_node import PciFunctions, in_container
from gpuwatch.sdk.nvml_answers import (
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    UNINITIALIZED,
    UNKNOWN,
    VERSION_MISMATCH,
    Refused,
    refused,
    text,
)
from gpuwatch.sdk.nvml_calls import Calls
from gpuwatch.sdk.nvml_gpu import Asking, Slot

Positive = Annotated[float, msgspec.Meta(gt=0)]
MOST_GPUS = 1024  # more than any machine has: a count above it is noise, and asking so many would look like a hang


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, how long, and where the node's own view is."""

    enabled: bool = True
    interval_s: Positive = 5.0
    deadline_s: Positive = 10.0  # no answer for this long: reported as hung
    kill_after_s: Positive = 60.0  # a call to a GPU whose GSP died returns after 6 to 45 s: killed only past that
    slow_every: Annotated[int, msgspec.Meta(ge=1)] = 6  # counters and links are read each n-th round
    pci_devices: str = "/sys/bus/pci/devices"
    driver_file: str = "/proc/driver/nvidia/version"
    container: Literal["auto", "yes", "no"] = "auto"
    preload: str = ""  # `module:function`, called with `preload_argument` first: how a simulation puts its library in
    preload_argument: str = ""


class _Reader:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        if settings.preload:
            module, _, function = settings.preload.partition(":")
            getattr(importlib.import_module(module), function)(settings.preload_argument)
        self._calls = Calls()
        self._pci = PciFunctions(settings.pci_devices)
        self._slots: dict[int, Slot] = {}
        self._round = -1
        self._gpu_count = 0
        self._up = False
        self._init_error: int | None = None
        self._driver: Any = None
        self._pci_count: int | None = None
        self._driver_loaded: bool | None = None
        self._contained = in_container() if settings.container == "auto" else settings.container == "yes"

    @property
    def spent(self) -> bool:
        """The library that is loaded does not fit the driver. Where packages or driver were changed since, another one
        would fit, which only a new process can load: asked for where the next round would try again."""
        return self._init_error == VERSION_MISMATCH and (self._round + 1) % self._settings.slow_every == 0

    def watch(self, note: Any) -> None:
        """From now on say what is about to be called."""
        self._calls.note = note

    def read(self) -> Reading:
        """One round: the fast set, and each n-th time the slow set. The first call initialises the library."""
        self._round += 1
        slow = self._round % self._settings.slow_every == 0
        if slow:
            self._look_around()
        if not self._up and (slow or self._init_error is None):
            self._init_error = self._start()
        count = self._count() if self._up else 0
        if not self._up:
            return self._without_driver()
        if count != self._gpu_count:  # an index may mean another board now
            self._slots.clear()
            self._gpu_count = count
        everything = slow or not self._slots
        if everything:
            self._driver = text(self._calls.ask("nvmlSystemGetDriverVersion"))
        gaps: dict[tuple[str, str], list[int]] = {}
        gpus = tuple(self._gpu(index, everything, gaps) for index in range(count))
        if slow and not self._contained and (self._pci_count or 0) > count:
            self._stop()  # a GPU may have come back: NVML counts them only when it starts
        facts = NvmlFacts(
            driver_version=None if isinstance(self._driver, Refused) else self._driver,
            gpus=gpus,
            pci_gpu_count=self._pci_count,
            driver_loaded=self._driver_loaded,
            in_container=self._contained,
        )
        return Reading(facts=facts, gaps=_named(gaps, count) | self._own_gaps())

    def close(self) -> None:
        self._stop()

    def _look_around(self) -> None:
        if not self._settings.preload or self._settings.pci_devices != "/sys/bus/pci/devices":
            self._pci_count = self._pci.count()
        if not self._settings.preload or self._settings.driver_file != "/proc/driver/nvidia/version":
            self._driver_loaded = os.path.exists(self._settings.driver_file)  # noqa: PTH110

    def _own_gaps(self) -> dict[str, str]:
        why = "a simulated library" if self._settings.preload else f"{self._settings.pci_devices} cannot be read"
        gaps = {"pci_gpu_count": why} if self._pci_count is None else {}
        if isinstance(self._driver, Refused):
            gaps["driver_version"] = self._driver.why
        return gaps

    def _start(self) -> int | None:
        answer = self._calls.ask("nvmlInit")
        if isinstance(answer, Refused):
            return UNKNOWN if answer.code is None else answer.code
        self._up = True
        self._slots.clear()
        return None

    def _stop(self) -> None:
        if self._up:
            self._up = False
            self._calls.ask("nvmlShutdown")

    def _count(self) -> int:
        answer = self._calls.ask("nvmlDeviceGetCount")
        if isinstance(answer, Refused) and answer.code == UNINITIALIZED:
            self._up = False  # another user of the library shut it down
            self._init_error = self._start()
            answer = self._calls.ask("nvmlDeviceGetCount") if self._up else answer
        if isinstance(answer, Refused):
            self._init_error = UNKNOWN if answer.code is None else answer.code
            self._up = False
            return 0
        if not 0 <= int(answer) <= MOST_GPUS:
            raise ProbeError(f"NVML counts {answer} GPUs", why=f"no machine has more than {MOST_GPUS}")
        return int(answer)

    def _without_driver(self) -> Reading:
        if self._init_error == LIBRARY_NOT_FOUND and self._pci_count == 0 and not self._driver_loaded:
            raise Unsupported("no NVIDIA GPU or driver on this node")
        why = refused(self._init_error if self._init_error is not None else UNKNOWN, "nvmlInit").why
        facts = NvmlFacts(
            init_error=self._init_error,
            pci_gpu_count=self._pci_count,
            driver_loaded=self._driver_loaded,
            in_container=self._contained,
        )
        return Reading(facts=facts, gaps={"gpus": why, "driver_version": why} | self._own_gaps())

    def _gpu(self, index: int, slow: bool, gaps: dict[tuple[str, str], list[int]]) -> Gpu:
        slot = self._slots.setdefault(index, Slot())
        self._calls.where = f" of GPU {index}"
        if slot.handle is None:
            handle = self._calls.ask("nvmlDeviceGetHandleByIndex", index)
            if isinstance(handle, Refused):
                gaps.setdefault(("*", handle.why), []).append(index)
                return Gpu(index=index, error=UNKNOWN if handle.code is None else handle.code, **slot.fixed)
            slot.handle = handle
        asking = Asking(self._calls, slot, slow)
        asking.all()
        self._calls.where = ""
        error = asking.error()
        for name, why in asking.gaps.items():
            gaps.setdefault((name, why), []).append(index)
        if error == GPU_IS_LOST:
            slot.handle = None  # a stale handle has crashed monitors (XuehaiPan/nvitop#139)
        return Gpu(index=index, error=error, **slot.fixed, **asking.values)


def _named(gaps: dict[tuple[str, str], list[int]], count: int) -> dict[str, str]:
    """Gaps by field: `gpus[*].serial` where all GPUs are alike, else `gpus[3].serial` or `gpus[0,3].serial`."""
    named: dict[str, str] = {}
    for (name, why), indices in gaps.items():
        place = "*" if len(indices) == count > 1 else ",".join(map(str, indices))
        named[f"gpus[{place}].{name}"] = why
    return named


_PLAIN = {
    # field of Gpu -> (name, help, factor)
    "utilization_ratio": ("utilization_ratio", "Share of time in which a kernel ran.", 1.0),
    "memory_utilization_ratio": ("memory_utilization_ratio", "Share of time in which memory was read or written.", 1.0),
    "memory_used_bytes": ("memory_used_bytes", "Memory in use.", 1.0),
    "memory_total_bytes": ("memory_total_bytes", "Memory of the GPU.", 1.0),
    "power_watts": ("power_watts", "Power drawn.", 1.0),
    "power_limit_watts": ("power_limit_watts", "Power limit in force.", 1.0),
    "temperature_celsius": ("temperature_celsius", "Temperature of the GPU.", 1.0),
    "sm_clock_mhz": ("sm_clock_hertz", "Clock of the multiprocessors.", 1e6),
    "memory_clock_mhz": ("memory_clock_hertz", "Clock of the memory.", 1e6),
    "clock_event_mask": ("clock_event_mask", "Why clocks are held down: bits of NVML's clocks event reasons.", 1.0),
    "row_remap_pending": ("row_remap_pending", "1: a remapped memory row waits for a reset.", 1.0),
    "row_remap_failed": ("row_remap_failed", "1: remapping a memory row has failed.", 1.0),
    "pcie_generation": ("pcie_link_generation", "PCIe generation of the link; drops when idle.", 1.0),
    "pcie_width": ("pcie_link_width", "PCIe lanes in use.", 1.0),
    "pcie_width_max": ("pcie_link_width_max", "PCIe lanes that GPU and slot allow.", 1.0),
    "recovery_action": ("recovery_action", "What the driver wants done (NVML field 230); 0 is nothing.", 1.0),
}
_COUNTED = {
    # field of Gpu -> (name, help, label, its value)
    "ecc_corrected_volatile_count": ("ecc_volatile_errors_total", "Memory errors since driver load.", "corrected"),
    "ecc_uncorrected_volatile_count": ("ecc_volatile_errors_total", "Memory errors since driver load.", "uncorrected"),
    "ecc_uncorrected_total_count": ("ecc_lifetime_errors_total", "Memory errors in the board's life.", "uncorrected"),
    "rows_remapped_corrected_count": ("rows_remapped_total", "Remapped memory rows, by cause.", "corrected"),
    "rows_remapped_uncorrected_count": ("rows_remapped_total", "Remapped memory rows, by cause.", "uncorrected"),
}


def metrics(facts: NvmlFacts) -> Iterable[Sample]:
    """Every number that is known, a GPU's index its only label; first how many should be here and how many work."""
    if facts.pci_gpu_count is not None:
        text = "NVIDIA GPUs on the PCI bus."
        yield Sample(name="gpuwatch_gpus_expected", help=text, value=facts.pci_gpu_count)
    usable = sum(gpu.error is None for gpu in facts.gpus)
    yield Sample(name="gpuwatch_gpus_usable", help="GPUs that answer the driver's library.", value=usable)
    if facts.init_error is not None:
        text = "NVML return code with which the driver's library refused to start."
        yield Sample(name="gpuwatch_nvml_init_error_code", help=text, value=facts.init_error)
    if facts.driver_version is not None:
        labels = {"version": facts.driver_version}
        yield Sample(name="gpuwatch_driver_info", help="Version of the NVIDIA driver.", value=1, labels=labels)
    for gpu in facts.gpus:
        yield from _of_one(gpu)


def _of_one(gpu: Gpu) -> Iterable[Sample]:
    place = {"gpu": str(gpu.index)}
    names = {"uuid": gpu.uuid or "", "pci": gpu.pci or "", "name": gpu.name or "", "serial": gpu.serial or ""}
    yield Sample(name="gpuwatch_gpu_info", help="Names of a GPU; join on `gpu`.", value=1, labels=place | names)
    text = "1: the GPU answers; 0: it refused, see the error code."
    yield Sample(name="gpuwatch_gpu_usable", help=text, value=gpu.error is None, labels=place)
    if gpu.error is not None:
        text = "NVML return code with which a GPU refused."
        yield Sample(name="gpuwatch_gpu_error_code", help=text, value=gpu.error, labels=place)
    for field, (name, text, factor) in _PLAIN.items():
        value = getattr(gpu, field)
        if value is not None:
            yield Sample(name=f"gpuwatch_gpu_{name}", help=text, value=value * factor, labels=place)
    for field, (name, text, kind) in _COUNTED.items():
        value = getattr(gpu, field)
        if value is not None:
            labels = place | {"kind": kind}
            yield Sample(name=f"gpuwatch_gpu_{name}", help=text, value=value, labels=labels, counter=True)
    if gpu.error is None:
        text = "Compute processes on a GPU."
        yield Sample(name="gpuwatch_gpu_processes", help=text, value=len(gpu.pids), labels=place)


def open_reader(settings: Settings) -> _Reader:
    """A reader; the library is initialised by the first reading."""
    return _Reader(settings)


COLLECTOR = Collector(facts=NvmlFacts, settings=Settings, open=open_reader, can_hang=True, metrics=metrics)
