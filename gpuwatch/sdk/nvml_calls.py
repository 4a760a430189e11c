"""Asks NVML. Every answer is a value or a `Refused`; a function that this driver lacks is an answer too.

Made to cost little: each function is looked up once, out-parameters are made once, refusals are kept. Not for a process
that must never hang: any call may block in the driver for ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from gpuwatch.sdk import nvml_library as lib
from gpuwatch.sdk.nvml_answers import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    NOT_SUPPORTED,
    SUCCESS,
    Refused,
    refused,
)

OLDER = frozenset({FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})
"""The driver is older than the question: the same is asked as older ones understand it."""
MOST_PROCESSES = 4096  # of one GPU


class Calls:
    """The library, and what is known of it."""

    def __init__(self) -> None:
        self.note: Callable[[str], Any] = _nobody
        self._functions: dict[str, Any] = {}
        self._instead: set[str] = set()  # questions that only the old way answers, of the GPU that is asked
        self._instead_at: dict[int | None, set[str]] = {None: self._instead}
        self._refusals: dict[tuple[int, str], Refused] = {}
        self._words: dict[str, str] = {}
        self._words_at: dict[int | None, dict[str, str]] = {None: self._words}
        self._where = ""
        self._number, self._large = ctypes.c_uint(), ctypes.c_ulonglong()
        self._second = ctypes.c_uint()
        self._text = ctypes.create_string_buffer(lib.TEXT_BYTES)
        self.binding = binding = lib.Binding()
        self._rates, self._memory, self._pci, self._banks = (
            binding.utilization(),
            binding.memory(),
            binding.pci(),
            binding.banks(),
        )
        self._memory2 = binding.memory2()
        self._memory2.version = lib.version_of(ctypes.sizeof(self._memory2), 2)
        self._celsius = lib.Temperature(version=lib.version_of(ctypes.sizeof(lib.Temperature), 1))
        self._margin = lib.Margin(version=lib.version_of(ctypes.sizeof(lib.Margin), 1))
        self._processes = (binding.process * 64)()

    def at(self, index: int | None) -> None:
        """Whose turn it is: what is noted from now on says so."""
        self._where = "" if index is None else f" of GPU {index}"
        self._words = self._words_at.setdefault(index, {})
        self._instead = self._instead_at.setdefault(index, set())

    def code(self, function: str, *arguments: Any) -> int:
        """The bare call: NVML's return code."""
        called = self._functions.get(function)
        if called is None:
            called = self._bind(function)
            if called is None:
                return FUNCTION_NOT_FOUND
        words = self._words.get(function)
        if words is None:
            words = self._words[function] = function + self._where
        self.note(words)
        return int(called(*arguments))

    def refused(self, code: int, function: str) -> Refused:
        """The refusal in words, made once."""
        found = self._refusals.get((code, function))
        if found is None:
            found = self._refusals[code, function] = refused(code, function)
        return found

    def start(self) -> int:
        """Load and initialise."""
        self.note("nvmlInit")
        return self.binding.start()

    def stop(self) -> None:
        """Let go of every GPU. May hang like any call."""
        self.note("nvmlShutdown")
        self.binding.stop()

    def count(self) -> Any:
        """How many GPUs NVML counted when it started."""
        return self.number("nvmlDeviceGetCount_v2")

    def handle(self, index: int) -> Any:
        """What stands for this GPU in every other call."""
        handle = self.binding.handle()
        code = self.code("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        return handle if code == SUCCESS else self.refused(code, "nvmlDeviceGetHandleByIndex_v2")

    def number(self, function: str, *arguments: Any) -> Any:
        """A function whose last parameter receives an unsigned number."""
        self._number.value = 0
        code = self.code(function, *arguments, ctypes.byref(self._number))
        return self._number.value if code == SUCCESS else self.refused(code, function)

    def large(self, function: str, handle: Any) -> Any:
        """… a number of 64 bits."""
        self._large.value = 0
        code = self.code(function, handle, ctypes.byref(self._large))
        return self._large.value if code == SUCCESS else self.refused(code, function)

    def pair(self, function: str, handle: Any) -> Any:
        """… two numbers: what is, and what will be after a reset."""
        code = self.code(function, handle, ctypes.byref(self._number), ctypes.byref(self._second))
        return (self._number.value, self._second.value) if code == SUCCESS else self.refused(code, function)

    def text(self, function: str, *arguments: Any) -> Any:
        """… a name. Some drivers give bytes that are no text (XuehaiPan/nvitop#127)."""
        code = self.code(function, *arguments, self._text, lib.TEXT_BYTES)
        if code != SUCCESS:
            return self.refused(code, function)
        try:
            return self._text.value.decode() or Refused(None, "an empty name")
        except UnicodeDecodeError as error:
            return Refused(None, f"{function}: UnicodeDecodeError: {error.reason}")

    def rates(self, handle: Any) -> Any:
        """Utilisation of the GPU and of its memory, in %."""
        code = self.code("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(self._rates))
        if code != SUCCESS:
            return self.refused(code, "nvmlDeviceGetUtilizationRates")
        return self._rates.gpu, self._rates.memory

    def memory(self, handle: Any) -> Any:
        """Total and used bytes, the driver's own reserve apart where the driver tells it apart."""
        if "memory" not in self._instead:
            code = self.code("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(self._memory2))
            if code == SUCCESS:
                return self._memory2.total, self._memory2.used
            if code not in OLDER and code != NOT_SUPPORTED:
                return self.refused(code, "nvmlDeviceGetMemoryInfo_v2")
        code = self.code("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(self._memory))
        if code != SUCCESS:
            return self.refused(code, "nvmlDeviceGetMemoryInfo")
        self._instead.add("memory")
        return self._memory.total, self._memory.used

    def temperature(self, handle: Any) -> Any:
        """Of the GPU, in °C."""
        if "temperature" not in self._instead:
            code = self.code("nvmlDeviceGetTemperatureV", handle, ctypes.byref(self._celsius))
            if code == SUCCESS:
                return self._celsius.temperature
            if code not in OLDER:
                return self.refused(code, "nvmlDeviceGetTemperatureV")
        return self._older("temperature", self.number("nvmlDeviceGetTemperature", handle, 0))

    def margin(self, handle: Any) -> Any:
        """°C left until the hardware slows down."""
        code = self.code("nvmlDeviceGetMarginTemperature", handle, ctypes.byref(self._margin))
        if code == SUCCESS:
            return self._margin.marginTemperature
        return self.refused(code, "nvmlDeviceGetMarginTemperature")

    def clock_events(self, handle: Any) -> Any:
        """Why clocks are held down: a mask."""
        if "clock_events" not in self._instead:
            answer = self.large("nvmlDeviceGetCurrentClocksEventReasons", handle)
            if not isinstance(answer, Refused) or answer.code not in OLDER:
                return answer
        return self._older("clock_events", self.large("nvmlDeviceGetCurrentClocksThrottleReasons", handle))

    def pids(self, handle: Any) -> Any:
        """Processes that compute on this GPU, as NVML lists them."""
        newest = "nvmlDeviceGetComputeRunningProcesses_v3"
        if "pids" not in self._instead:
            answer = self._pids(newest, handle)
            if not isinstance(answer, Refused) or answer.code not in OLDER:
                return answer
        return self._older("pids", self._pids("nvmlDeviceGetComputeRunningProcesses_v2", handle))

    def pci(self, handle: Any) -> Any:
        """Where it sits, as NVML writes it."""
        code = self.code("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(self._pci))
        if code != SUCCESS:
            return self.refused(code, "nvmlDeviceGetPciInfo_v3")
        try:
            told = self._pci.busId  # bytes, or text already, by the binding's version
            return told.decode() if isinstance(told, bytes) else str(told)
        except UnicodeDecodeError as error:
            return Refused(None, f"nvmlDeviceGetPciInfo_v3: UnicodeDecodeError: {error.reason}")

    def instance(self, handle: Any, place: int) -> int:
        """The return code for the MIG instance at this place of a GPU: success if there is one."""
        found = self.binding.handle()
        return self.code("nvmlDeviceGetMigDeviceHandleByIndex", handle, place, ctypes.byref(found))

    def banks(self, handle: Any) -> Any:
        """Memory banks by the spare rows they have left: all, most, some, few, none."""
        code = self.code("nvmlDeviceGetRowRemapperHistogram", handle, ctypes.byref(self._banks))
        if code != SUCCESS:
            return self.refused(code, "nvmlDeviceGetRowRemapperHistogram")
        found = self._banks
        return found.max, found.high, found.partial, found.low, found.none

    def fabric(self, handle: Any) -> Any:
        """The NVLink fabric as this GPU sees it, in the newest record that the driver knows."""
        for number in (3, 2):
            if f"fabric_{number}" in self._instead:
                continue
            info = lib.Fabric()
            info.version = lib.version_of(ctypes.sizeof(info) if number == 3 else lib.FABRIC_2_BYTES, number)
            code = self.code("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
            if code == SUCCESS:
                return info
            if code not in OLDER:
                return self.refused(code, "nvmlDeviceGetGpuFabricInfoV")
            self._instead.add(f"fabric_{number}")
        first = self.binding.fabric_first()
        code = self.code("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(first))
        return first if code == SUCCESS else self.refused(code, "nvmlDeviceGetGpuFabricInfo")

    def _pids(self, function: str, handle: Any) -> Any:
        code = INSUFFICIENT_SIZE
        for _ in range(3):  # the table may grow between two calls
            self._number.value = len(self._processes)
            code = self.code(function, handle, ctypes.byref(self._number), self._processes)
            if code == SUCCESS:
                found = min(self._number.value, len(self._processes))
                return [process.pid for process in self._processes[:found]]
            if code != INSUFFICIENT_SIZE or len(self._processes) >= MOST_PROCESSES:
                break
            wanted = max(2 * len(self._processes), self._number.value + 16)
            self._processes = (self.binding.process * min(wanted, MOST_PROCESSES))()
        return self.refused(code, function)

    def _older(self, question: str, answer: Any) -> Any:
        if not isinstance(answer, Refused):
            self._instead.add(question)
        return answer

    def _bind(self, function: str) -> Any:
        found = self.binding.pointer(function)
        if found is not None:
            self._functions[function] = found
        return found


def _nobody(_: str) -> None:
    pass
