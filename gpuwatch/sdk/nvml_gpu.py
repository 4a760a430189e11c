"""The questions of one round to one GPU, and what its answers say of the GPU as a whole."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from gpuwatch.model.identity import pci_address
from gpuwatch.sdk.nvml_answers import (
    ABSENT,
    CONDEMNS,
    GPU_IS_LOST,
    HARMLESS,
    MIB,
    NOT_SUPPORTED,
    UNKNOWN,
    Refused,
    field_value,
    positive,
    refused,
    text,
    within,
)
from gpuwatch.sdk.nvml_calls import Calls

TEMPERATURE_GPU = 0
CLOCK_SM = 1
CLOCK_MEMORY = 2
RECOVERY_ACTION = 230  # polled each round: a GPU that was bad before the driver started prints no Xid 154
SLOW_FIELDS = {
    # NVML_FI_DEV_* number -> fact
    3: "ecc_corrected_volatile_count",
    4: "ecc_uncorrected_volatile_count",
    6: "ecc_uncorrected_total_count",
    142: "rows_remapped_corrected_count",
    143: "rows_remapped_uncorrected_count",
    144: "row_remap_pending",
    145: "row_remap_failed",
}


class Slot(msgspec.Struct):
    """What is kept of one index between rounds."""

    handle: Any = None
    fixed: dict[str, Any] = {}  # uuid, pci, name, serial, pcie_width_max: survive the loss of the GPU
    unnamed: dict[str, Refused] = {}  # those of `fixed` that this GPU does not tell
    slow: dict[str, Any] = {}  # answers of the last slow round, refusals included
    absent: set[str] = set()  # not asked again before the next slow round


class Asking:
    """The questions of one round to one GPU."""

    def __init__(self, calls: Calls, slot: Slot, slow: bool) -> None:
        self._calls = calls
        self._slot = slot
        self._slow = slow
        self.values: dict[str, Any] = {}
        self.gaps: dict[str, str] = {}
        self._codes: list[int | None] = []
        self._answered = False
        if slow:
            slot.absent.clear()

    def all(self) -> None:
        """Fast set, then slow set. Stops at the first word that the GPU is lost."""
        self._identity()
        self._load()
        self._clocks()
        self._recovery()
        self._pids()
        if self._slow:
            self._slot.slow = self._links()
        for name, answer in self._slot.slow.items():
            self._keep(name, answer)

    def error(self) -> int | None:
        """The code with which the GPU as a whole refused, None if it answers."""
        condemned = [code for code in self._codes if code in CONDEMNS]
        if condemned:
            return GPU_IS_LOST if GPU_IS_LOST in condemned else condemned[0]
        serious = [UNKNOWN if code is None else code for code in self._codes if code not in HARMLESS]
        return serious[0] if serious and not self._answered else None

    def _ask(self, function: str, *arguments: Any) -> Any:
        if self._lost():
            return refused(GPU_IS_LOST)
        if function in self._slot.absent:
            return refused(NOT_SUPPORTED, function)
        return self._noted(function, self._calls.ask(function, self._slot.handle, *arguments))

    def _fields(self, numbers: tuple[int, ...]) -> dict[int, Any]:
        if self._lost():
            return dict.fromkeys(numbers, refused(GPU_IS_LOST))
        return self._calls.fields(self._slot.handle, numbers)

    def _lost(self) -> bool:
        return GPU_IS_LOST in self._codes

    def _noted(self, function: str, answer: Any) -> Any:
        if isinstance(answer, Refused):
            self._codes.append(answer.code)
            if answer.code in ABSENT:
                self._slot.absent.add(function)
        else:
            self._answered = True
        return answer

    def _keep(self, name: str, answer: Any) -> None:
        if isinstance(answer, Refused):
            self.gaps["*" if answer.code == GPU_IS_LOST else name] = answer.why
        else:
            self.values[name] = answer

    def _identity(self) -> None:
        fixed, unnamed = self._slot.fixed, self._slot.unnamed
        if self._slow or "uuid" not in fixed:  # asked again: another board may sit at the same index
            unnamed.clear()
            for name, answer in (
                ("uuid", text(self._ask("nvmlDeviceGetUUID"))),
                ("name", text(self._ask("nvmlDeviceGetName"))),
                ("pci", self._address()),
                ("serial", text(self._ask("nvmlDeviceGetSerial"))),
                ("pcie_width_max", within(self._ask("nvmlDeviceGetMaxPcieLinkWidth"), 1, 32, "lanes")),
            ):
                if not isinstance(answer, Refused):
                    fixed[name] = answer
                elif name not in fixed:
                    unnamed[name] = answer
        for name, why in unnamed.items():
            self._keep(name, why)

    def _address(self) -> Any:
        info = self._ask("nvmlDeviceGetPciInfo")
        told = text(info if isinstance(info, Refused) else info.busId)
        if isinstance(told, Refused):
            return told
        return pci_address(told) or Refused(None, f"{told!r} is no PCI address")

    def _load(self) -> None:
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        gpu, memory = (rates, rates) if isinstance(rates, Refused) else (rates.gpu, rates.memory)
        for name, percent in (("utilization_ratio", gpu), ("memory_utilization_ratio", memory)):
            percent = within(percent, 0, 100, "%")
            self._keep(name, percent if isinstance(percent, Refused) else percent / 100)
        info = refused(GPU_IS_LOST) if self._lost() else self._noted("memory", self._calls.memory(self._slot.handle))
        total = positive(_part(info, "total"), 1 << 45, "bytes")
        used = _part(info, "used")
        if not isinstance(total, Refused):
            used = within(used, 0, total, "bytes used of less")
        elif not isinstance(used, Refused):
            used = Refused(None, f"{used / MIB:.0f} MiB of an unknown total")
        self._keep("memory_total_bytes", total)
        self._keep("memory_used_bytes", used)
        self._keep("temperature_celsius", positive(self._ask("nvmlDeviceGetTemperatureV", TEMPERATURE_GPU), 150, "°C"))
        milliwatts = positive(self._ask("nvmlDeviceGetPowerUsage"), 5_000_000, "mW")
        self._keep("power_watts", milliwatts if isinstance(milliwatts, Refused) else milliwatts / 1000)

    def _clocks(self) -> None:
        self._keep("sm_clock_mhz", positive(self._ask("nvmlDeviceGetClockInfo", CLOCK_SM), 10_000, "MHz"))
        self._keep("memory_clock_mhz", positive(self._ask("nvmlDeviceGetClockInfo", CLOCK_MEMORY), 20_000, "MHz"))
        mask = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        self._keep("clock_event_mask", within(mask, 0, (1 << 32) - 2, ""))
        hides = "no data" in self.gaps.get("power_watts", "") and "no data" in self.gaps.get("sm_clock_mhz", "")
        if hides and self.values.get("utilization_ratio") == 0:
            del self.values["utilization_ratio"]
            self.gaps["utilization_ratio"] = "0 % beside 0 W and 0 MHz is no data"

    def _recovery(self) -> None:
        answer = self._noted("field 230", _field(self._fields((RECOVERY_ACTION,)), RECOVERY_ACTION))
        self._keep("recovery_action", within(answer, 0, 255, ""))

    def _pids(self) -> None:
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses_v3")
        if isinstance(processes, Refused):
            self._keep("pids", processes)
            return
        told = [int(process.pid) for process in processes]
        real = tuple(pid for pid in told if 0 < pid < 1 << 22 and os.path.exists(f"/proc/{pid}"))  # noqa: PTH110
        if len(real) < len(told):  # struct mix-ups of driver 535 gave garbage (XuehaiPan/nvitop#79)
            self.gaps["pids"] = f"{len(told) - len(real)} of {len(told)} are not in /proc"
        self.values["pids"] = real

    def _links(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        limit = positive(self._ask("nvmlDeviceGetPowerManagementLimit"), 5_000_000, "mW")
        found["power_limit_watts"] = limit if isinstance(limit, Refused) else limit / 1000
        found["pcie_generation"] = within(self._ask("nvmlDeviceGetCurrPcieLinkGeneration"), 1, 9, "")
        found["pcie_width"] = within(self._ask("nvmlDeviceGetCurrPcieLinkWidth"), 1, 32, "lanes")  # 63: off the bus
        fields = self._fields(tuple(SLOW_FIELDS))
        for number, name in SLOW_FIELDS.items():
            answer = within(_field(fields, number), 0, 1 << 60, "")
            if isinstance(answer, Refused):
                self._codes.append(answer.code)
            elif name.startswith("row") and "GeForce" in self._slot.fixed.get("name", ""):
                answer = Refused(None, "answered by a model that has no row remapping")  # leptonai/gpud#351
            elif name in ("row_remap_pending", "row_remap_failed"):
                answer = answer != 0
            found[name] = answer
        return found


def _part(answer: Any, name: str) -> Any:
    return answer if isinstance(answer, Refused) else int(getattr(answer, name))


def _field(found: dict[int, Any], number: int) -> Any:
    answer = found.get(number, Refused(None, f"field {number}: not answered"))
    return answer if isinstance(answer, Refused) else field_value(answer)
