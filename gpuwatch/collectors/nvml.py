"""The driver and its GPUs through NVML. Can hang for ever in the kernel, so it runs in a child process.

Each GPU is asked by itself: one lost GPU must not hide the other seven (NVIDIA/k8s-device-plugin#231). What a GPU does
not support is absent, never 0 and never a fault. Values out of physical range are missing with a reason. Units and
numbers are nvml.h's: power in mW, utilisation in %, clocks in MHz.

Each question costs: the driver takes a lock for it, and a job on the GPU may wait for that lock. So what moves slowly
is asked seldom, four GPUs in turn, so that no round asks everything; what can be asked together is one call.
"""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import msgspec

from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector, Reading, Sample, Unsupported
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.sdk.nvidia_node import PciFunctions, in_container
from gpuwatch.sdk.nvml_answers import (
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    SUCCESS,
    UNINITIALIZED,
    UNKNOWN,
    UNSUPPORTED,
    VERSION_MISMATCH,
    Refused,
    refused,
    within,
)
from gpuwatch.sdk.nvml_calls import Calls
from gpuwatch.sdk.nvml_events import Xids
from gpuwatch.sdk.nvml_fields import Fields
from gpuwatch.sdk.nvml_gpu import LOST, Asking, Slot, gaps_of, keep
from gpuwatch.sdk.nvml_metrics import numbers
from gpuwatch.sdk.nvml_slow import seldom, slow

Positive = Annotated[float, msgspec.Meta(gt=0)]
Rounds = Annotated[int, msgspec.Meta(ge=1)]
MOST_GPUS = 1024  # more than any machine has: a count above it is noise, and asking so many would look like a hang
ABOUT_RIGHTS = frozenset({4, 17, UNKNOWN})  # what NVML answers a process that may not open the device files
PCI_DEVICES, DRIVER_FILE, DEVICE_FILE = "/sys/bus/pci/devices", "/proc/driver/nvidia/version", "/dev/nvidiactl"
KERNEL_RING = "/dev/kmsg"
TOGETHER = 4  # GPUs whose turn it is together: what a round does at all costs more than doing it four times
AROUND = 6  # rounds between two looks at the node itself, and two tries to start a driver that refuses


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, how long, and where the node's own view is."""

    enabled: bool = True
    interval_s: Positive = 5.0
    deadline_s: Positive = 10.0  # no answer for this long: reported as hung
    kill_after_s: Positive = 60.0  # a call to a GPU whose GSP died returns after 6 to 45 s: killed only past that
    calm_every: Rounds = 3  # memory, temperature, clocks and processes are read each n-th round
    slow_every: Rounds = 12  # counters and links each n-th round
    seldom_every: Rounds = 60  # names, limits and modes each n-th round
    expected_gpus: Annotated[int, msgspec.Meta(ge=0)] | None = None  # this node's; None: the aggregator's pool knows
    pci_devices: str = PCI_DEVICES
    driver_file: str = DRIVER_FILE
    device_file: str = DEVICE_FILE
    xids: Literal["auto", "yes", "no"] = "auto"  # auto: heard through NVML while /dev/kmsg may not be read
    container: Literal["auto", "yes", "no"] = "auto"
    preload: str = ""  # `module:function`, called with `preload_argument` first: how a simulation puts its library in
    preload_argument: str = ""


class _Reader:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        if settings.preload:
            module, _, function = settings.preload.partition(":")
            getattr(importlib.import_module(module), function)(settings.preload_argument)
        self._clock = SystemClock()
        self._calls = Calls()
        self._fields = Fields(self._calls)
        self._around_every = min(AROUND, settings.slow_every)
        self._xids = Xids(self._calls)
        self._hear_xids = settings.xids == "yes"
        self._pci = PciFunctions(settings.pci_devices)
        self._slots: list[Slot] = []
        self._round = -1
        self._up = False
        self._init_error: int | None = None
        self._driver: Any = None
        self._cuda: str | None = None
        self._pci_count: int | None = None
        self._most_on_bus: int | None = None
        self._driver_text: str | None = None  # of the kernel module that is loaded
        self._text_at_start: str | None = None
        self._stale = False
        self._gaps: list[dict[str, str]] = []
        self._named_gaps: dict[str, str] = {}
        self._contained = in_container() if settings.container == "auto" else settings.container == "yes"

    @property
    def spent(self) -> bool:
        """The library that is loaded does not fit the driver. Where packages or driver were changed since, another one
        would fit, which only a new process can load: asked for where the next round would try again."""
        mismatch = self._init_error == VERSION_MISMATCH and (self._round + 1) % self._around_every == 0
        return self._stale or mismatch

    def watch(self, note: Callable[[str], Any]) -> None:
        """From now on say what is about to be called."""
        self._calls.watch(note)

    def read(self) -> Reading:
        """One round. The first initialises the library and asks everything."""
        self._round += 1
        around = self._round % self._around_every == 0
        if around:
            self._look_around()
        if not self._up and (around or self._init_error is None):
            self._init_error = self._start()
        if self._up:
            self._count_again()
        if not self._up:
            return self._without_driver()
        if self._round % self._settings.seldom_every == 0 or self._driver is None:
            self._about_driver()
        now_ns = self._clock.monotonic_ns()
        gaps: list[dict[str, str]] = []
        due = [self._due(slot) for slot in self._slots]
        for slot, (calm, slow_too, seldom_too) in zip(self._slots, due, strict=True):
            if not seldom_too:
                slot.routine(calm, slow_too).perform()
        gpus = tuple(self._gpu(slot, sets, gaps, now_ns) for slot, sets in zip(self._slots, due, strict=True))
        self._calls.at(None)
        if around and not self._contained and (self._pci_count or 0) > len(self._slots):
            self._stop()  # a GPU may have come back: NVML counts them only when it starts
        if gaps != self._gaps:
            self._gaps, self._named_gaps = gaps, _named(gaps)
        errors = {gpu.error for gpu in gpus}
        xids = self._xids.look(self._slots, self._clock.unix_ns()) if self._hear_xids and self._up else ()
        facts = NvmlFacts(
            driver_version=None if isinstance(self._driver, Refused) else self._driver,
            gpus=gpus,
            pci_gpu_count=self._pci_count,
            driver_loaded=self._driver_loaded(),
            in_container=self._contained,
            cuda_version=self._cuda,
            rights_lost=not ABOUT_RIGHTS.isdisjoint(errors) and self._rights_are_lost(),
            expected_gpu_count=self._settings.expected_gpus,
            pci_gpu_most_count=self._most_on_bus,
            xids=xids,
        )
        return Reading(facts=facts, gaps=self._named_gaps | self._own_gaps(), urgent=bool(xids) and self._xids.fresh)

    def close(self) -> None:
        self._stop()

    def _simulated(self, place: str, usual: str) -> bool:
        """The node's own view says nothing of a simulated library."""
        return bool(self._settings.preload) and place == usual

    def _look_around(self) -> None:
        if not self._simulated(self._settings.pci_devices, PCI_DEVICES):
            self._pci_count = self._pci.count()
            if self._pci_count is not None and not self._contained:
                self._most_on_bus = max(self._most_on_bus or 0, self._pci_count)
        if self._settings.xids == "auto":
            self._hear_xids = not self._settings.preload and not os.access(KERNEL_RING, os.R_OK)
        if not self._simulated(self._settings.driver_file, DRIVER_FILE):
            try:
                with open(self._settings.driver_file, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    self._driver_text = file.read(1024)
            except OSError:
                self._driver_text = None
        if self._up and self._driver_text is not None and self._text_at_start not in (None, self._driver_text):
            self._stale = True  # another driver was loaded under us

    def _driver_loaded(self) -> bool | None:
        if self._simulated(self._settings.driver_file, DRIVER_FILE):
            return None
        return self._driver_text is not None

    def _own_gaps(self) -> dict[str, str]:
        why = "a simulated library" if self._settings.preload else f"{self._settings.pci_devices} cannot be read"
        gaps = {"pci_gpu_count": why} if self._pci_count is None else {}
        if isinstance(self._driver, Refused):
            gaps["driver_version"] = self._driver.why
        return gaps

    def _start(self) -> int | None:
        code = self._calls.start()
        if code != SUCCESS:
            return code
        self._up, self._driver = True, None
        self._text_at_start = self._driver_text
        for slot in self._slots:
            slot.ask_anew()
        self._xids.forget()
        return None

    def _stop(self) -> None:
        if self._up:
            self._up = False
            self._xids.forget()
            self._calls.stop()

    def _about_driver(self) -> None:
        self._driver = self._calls.text("nvmlSystemGetDriverVersion")
        cuda = within(self._calls.number("nvmlSystemGetCudaDriverVersion_v2"), 1000, 99_999, "")  # 13020 is 13.2
        self._cuda = None if isinstance(cuda, Refused) else f"{cuda // 1000}.{cuda % 1000 // 10}"

    def _count_again(self) -> None:
        answer = self._calls.count()
        if isinstance(answer, Refused) and answer.code == UNINITIALIZED:
            self._up = False  # another user of the library shut it down
            self._init_error = self._start()
            answer = self._calls.count() if self._up else answer
        if isinstance(answer, Refused):
            self._init_error = UNKNOWN if answer.code is None else answer.code
            self._stop()  # NVML counts who starts it: without its end, the next start would start nothing
            return
        if answer > MOST_GPUS:
            raise ProbeError(f"NVML counts {answer} GPUs", why=f"no machine has more than {MOST_GPUS}")
        if answer != len(self._slots):  # an index may mean another board now
            self._slots = [Slot(index) for index in range(answer)]

    def _rights_are_lost(self) -> bool:
        """Whether the device files refuse us: the cgroup was rewritten (NVIDIA/nvidia-container-toolkit#48)."""
        if self._simulated(self._settings.device_file, DEVICE_FILE):
            return False
        self._calls.note(f"open {self._settings.device_file}")
        try:
            os.close(os.open(self._settings.device_file, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            return error.errno in (errno.EPERM, errno.EACCES)
        return False

    def _without_driver(self) -> Reading:
        loaded = self._driver_loaded()
        if self._init_error == LIBRARY_NOT_FOUND and self._pci_count == 0 and not loaded:
            raise Unsupported("no NVIDIA GPU or driver on this node")
        why = refused(self._init_error if self._init_error is not None else UNKNOWN, "nvmlInit").why
        facts = NvmlFacts(
            init_error=self._init_error,
            pci_gpu_count=self._pci_count,
            driver_loaded=loaded,
            in_container=self._contained,
            rights_lost=self._init_error in ABOUT_RIGHTS and self._rights_are_lost(),
            expected_gpu_count=self._settings.expected_gpus,
            pci_gpu_most_count=self._most_on_bus,
        )
        return Reading(facts=facts, gaps={"gpus": why, "driver_version": why} | self._own_gaps())

    def _due(self, slot: Slot) -> tuple[bool, bool, bool]:
        """Whether the calm, the slow and the seldom set are asked in this round, besides the quick one."""
        turn, every = self._round + slot.index // TOGETHER, self._settings
        return (
            slot.calm is None or turn % every.calm_every == 0,
            slot.slow is None or turn % every.slow_every == 0,
            slot.seldom is None or (self._round + slot.index) % every.seldom_every == 0,
        )

    def _gpu(self, slot: Slot, due: tuple[bool, bool, bool], gaps: list[dict[str, str]], now_ns: int) -> Gpu:
        index = slot.index
        self._calls.at(index)
        if slot.handle is None:
            handle = self._calls.handle(index)
            if isinstance(handle, Refused):
                gaps.append({"*": handle.why})
                return Gpu(index=index, error=UNKNOWN if handle.code is None else handle.code, **slot.named)
            slot.handle = handle
        asking = Asking(self._calls, self._fields, slot)
        calm, slow_too, seldom_too = due
        if seldom_too or slot.seldom is None:
            slot.seldom = seldom(asking)
        self._calls.follow(None if seldom_too else slot.routine(calm, slow_too))
        try:
            quick = asking.quick()
            if calm or slot.calm is None:
                slot.calm = asking.calm()
            if slow_too or slot.slow is None:
                slot.slow = slow(asking, now_ns)
        finally:
            self._calls.follow(None)
        error = asking.error()
        sets = (quick, slot.calm, slot.slow, slot.seldom)
        if error is not None:
            slot.doubt()
        if error is not None and (asking.lost or not asking.answered):
            gaps.append({"*": LOST.why} if error == GPU_IS_LOST else gaps_of(sets))
            if error == GPU_IS_LOST:
                slot.ask_anew()  # a stale handle has crashed monitors (XuehaiPan/nvitop#139)
            return Gpu(index=index, error=error, **slot.named)
        kept = slot.kept
        if kept is None or kept.of != sets[1:]:
            kept = slot.kept = keep(slot, sets[1:])
        values, told = quick.values, kept.gaps | quick.gaps if quick.gaps else kept.gaps
        if values.get("utilization_ratio") == 0 and _hides(told):
            values = {name: value for name, value in values.items() if name != "utilization_ratio"}
            told = told | {"utilization_ratio": "0 % beside 0 W and 0 MHz is no data"}
        gaps.append(told)
        return msgspec.structs.replace(kept.gpu, error=error, **values)


def _hides(gaps: dict[str, str]) -> bool:
    return "no data" in gaps.get("power_watts", "") and "no data" in gaps.get("sm_clock_mhz", "")


def _named(gaps: list[dict[str, str]]) -> dict[str, str]:
    """Gaps by field: `gpus[*].serial` where all GPUs are alike, else `gpus[3].serial` or `gpus[0,3].serial`. What is
    not supported is told together, because it may be many: `gpus[*].mig_mode,serial`."""
    places: dict[tuple[str, str], list[int]] = {}
    for index, of_one in enumerate(gaps):
        for name, why in of_one.items():
            places.setdefault((name, why), []).append(index)
    named: dict[str, str] = {}
    unsupported: dict[str, list[str]] = {}
    for (name, why), indices in places.items():
        place = "*" if len(indices) == len(gaps) > 1 else ",".join(map(str, indices))
        if why == UNSUPPORTED:
            unsupported.setdefault(place, []).append(name)
        else:
            named[f"gpus[{place}].{name}"] = why
    return named | {f"gpus[{place}].{','.join(names)}": UNSUPPORTED for place, names in unsupported.items()}


def metrics(facts: NvmlFacts) -> Iterable[Sample]:
    """Every number that is known; first how many GPUs should be here, how many are, and how many work."""
    return (Sample(**number._asdict()) for number in numbers(facts))


def open_reader(settings: Settings) -> _Reader:
    """A reader; the library is initialised by the first reading."""
    return _Reader(settings)


COLLECTOR = Collector(facts=NvmlFacts, settings=Settings, open=open_reader, can_hang=True, metrics=metrics)
