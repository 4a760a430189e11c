"""Asks NVML. Every answer is a value or a `Refused`; a function that this driver lacks is an answer too.

Made to cost little: each function is looked up once, out-parameters are made once a GPU, refusals are kept. Not for a
process that must never hang: any call may block in the driver for ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
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
from gpuwatch.sdk.nvml_routine import Routine

OLDER = frozenset({FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})
"""The driver is older than the question: the same is asked as older ones understand it."""
LEAST_PROCESSES, MOST_PROCESSES = 64, 4096  # of one GPU


class _Table:
    """A list of processes to be filled. Its count is room on the way in and what was found on the way out."""

    def __init__(self, kind: Any, room: int) -> None:
        self.array = (kind * room)()
        self.count = ctypes.c_uint(room)
        self.ref = ctypes.byref(self.count)


class _OfOne:
    """What is kept of one GPU, or of the library as a whole: its answers lie here until they are looked at."""

    __slots__ = ("instead", "notes", "records", "where")

    def __init__(self, index: int | None) -> None:
        self.where = "" if index is None else f" of GPU {index}"
        self.notes: dict[str, Callable[[], Any]] = {}  # function -> notes a call of it
        self.instead: set[str] = set()  # questions that only the old way answers
        self.records: dict[Any, Any] = {}  # question -> its out-parameter, and a reference to it


class Calls:
    """The library, and what is known of it."""

    def __init__(self) -> None:
        self.note: Callable[[str], Any] = _nobody  # says what is about to be called; see `watch`
        self._ready: Callable[[str], Callable[[], Any]] = partial(partial, self.note)
        self._functions: dict[str, Any] = {}
        self._of: dict[int | None, _OfOne] = {}
        self._one = self._of[None] = _OfOne(None)
        self._routine: Routine | None = None
        self._refusals: dict[tuple[int, str], Refused] = {}
        self._text = ctypes.create_string_buffer(lib.TEXT_BYTES)
        self.binding = lib.Binding()

    def watch(self, note: Callable[[str], Any]) -> None:
        """From now on say what is about to be called. Where `note` has a `ready(words)`, that is asked once for each
        call, for something that says these words in one step."""
        self.note = note
        self._ready = getattr(note, "ready", None) or partial(partial, note)
        for one in self._of.values():
            one.notes.clear()

    def at(self, index: int | None) -> None:
        """Whose turn it is: what is noted from now on says so."""
        found = self._of.get(index)
        if found is None:
            found = self._of[index] = _OfOne(index)
        self._one = found

    def follow(self, routine: Routine | None) -> None:
        """From now on take what this routine's calls answered, and tell it of others. None: it ends."""
        if self._routine is not None:
            self._routine.end()
        self._routine = routine

    def record(self, question: Any, made: Callable[[], Any]) -> Any:
        """The out-parameter of a question to the GPU whose turn it is, and a reference to it."""
        found = self._one.records.get(question)
        if found is None:
            record = made()
            found = self._one.records[question] = record, ctypes.byref(record)
        return found

    def code(self, function: str, *arguments: Any) -> int:
        """The bare call: NVML's return code."""
        routine = self._routine
        if routine is not None:
            code = routine.code(function, arguments)
            if code is not None:
                return code
        called = self._functions.get(function)
        if called is None:
            called = self._bind(function)
            if called is None:
                return FUNCTION_NOT_FOUND
        note = self._one.notes.get(function)
        if note is None:
            note = self._one.notes[function] = self._ready(function + self._one.where)
        if routine is not None:
            routine.add((note, function, called, arguments))
        note()
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
        record, ref = self.record((function, arguments[1:]), ctypes.c_uint)
        return self._taken(record, self.code(function, *arguments, ref), function)

    def large(self, function: str, handle: Any) -> Any:
        """… a number of 64 bits."""
        record, ref = self.record(function, ctypes.c_ulonglong)
        return self._taken(record, self.code(function, handle, ref), function)

    def _taken(self, record: Any, code: int, function: str) -> Any:
        value, record.value = record.value, 0  # for the next call: one that writes nothing is not the last one again
        return value if code == SUCCESS else self.refused(code, function)

    def pair(self, function: str, handle: Any) -> Any:
        """… two numbers: what is, and what will be after a reset."""
        (now, now_ref), (then, then_ref) = (self.record((function, at), ctypes.c_uint) for at in ("now", "then"))
        code = self.code(function, handle, now_ref, then_ref)
        return (now.value, then.value) if code == SUCCESS else self.refused(code, function)

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
        rates, ref = self.record("rates", self.binding.utilization)
        code = self.code("nvmlDeviceGetUtilizationRates", handle, ref)
        return (rates.gpu, rates.memory) if code == SUCCESS else self.refused(code, "nvmlDeviceGetUtilizationRates")

    def memory(self, handle: Any) -> Any:
        """Total and used bytes, the driver's own reserve apart where the driver tells it apart."""
        if "memory" not in self._one.instead:
            memory, ref = self.record("memory2", self._memory2)
            code = self.code("nvmlDeviceGetMemoryInfo_v2", handle, ref)
            if code == SUCCESS:
                return memory.total, memory.used
            if code not in OLDER and code != NOT_SUPPORTED:
                return self.refused(code, "nvmlDeviceGetMemoryInfo_v2")
        memory, ref = self.record("memory", self.binding.memory)
        code = self.code("nvmlDeviceGetMemoryInfo", handle, ref)
        if code != SUCCESS:
            return self.refused(code, "nvmlDeviceGetMemoryInfo")
        self._one.instead.add("memory")
        return memory.total, memory.used

    def _memory2(self) -> Any:
        made = self.binding.memory2()
        made.version = lib.version_of(ctypes.sizeof(made), 2)
        return made

    def temperature(self, handle: Any) -> Any:
        """Of the GPU, in °C."""
        if "temperature" not in self._one.instead:
            celsius, ref = self.record("temperature", lib.Temperature.made)
            code = self.code("nvmlDeviceGetTemperatureV", handle, ref)
            if code == SUCCESS:
                return celsius.temperature
            if code not in OLDER:
                return self.refused(code, "nvmlDeviceGetTemperatureV")
        return self._older("temperature", self.number("nvmlDeviceGetTemperature", handle, 0))

    def margin(self, handle: Any) -> Any:
        """°C left until the hardware slows down."""
        margin, ref = self.record("margin", lib.Margin.made)
        code = self.code("nvmlDeviceGetMarginTemperature", handle, ref)
        return margin.marginTemperature if code == SUCCESS else self.refused(code, "nvmlDeviceGetMarginTemperature")

    def clock_events(self, handle: Any) -> Any:
        """Why clocks are held down: a mask."""
        if "clock_events" not in self._one.instead:
            answer = self.large("nvmlDeviceGetCurrentClocksEventReasons", handle)
            if not isinstance(answer, Refused) or answer.code not in OLDER:
                return answer
        return self._older("clock_events", self.large("nvmlDeviceGetCurrentClocksThrottleReasons", handle))

    def pids(self, handle: Any) -> Any:
        """Processes that compute on this GPU, as NVML lists them."""
        newest = "nvmlDeviceGetComputeRunningProcesses_v3"
        if "pids" not in self._one.instead:
            answer = self._pids(newest, handle)
            if not isinstance(answer, Refused) or answer.code not in OLDER:
                return answer
        return self._older("pids", self._pids("nvmlDeviceGetComputeRunningProcesses_v2", handle))

    def pci(self, handle: Any) -> Any:
        """Where it sits, as NVML writes it."""
        pci, ref = self.record("pci", self.binding.pci)
        code = self.code("nvmlDeviceGetPciInfo_v3", handle, ref)
        if code != SUCCESS:
            return self.refused(code, "nvmlDeviceGetPciInfo_v3")
        try:
            told = pci.busId  # bytes, or text already, by the binding's version
            return told.decode() if isinstance(told, bytes) else str(told)
        except UnicodeDecodeError as error:
            return Refused(None, f"nvmlDeviceGetPciInfo_v3: UnicodeDecodeError: {error.reason}")

    def instance(self, handle: Any, place: int) -> int:
        """The return code for the MIG instance at this place of a GPU: success if there is one."""
        found = self.binding.handle()
        return self.code("nvmlDeviceGetMigDeviceHandleByIndex", handle, place, ctypes.byref(found))

    def banks(self, handle: Any) -> Any:
        """Memory banks by the spare rows they have left: all, most, some, few, none."""
        found, ref = self.record("banks", self.binding.banks)
        code = self.code("nvmlDeviceGetRowRemapperHistogram", handle, ref)
        if code != SUCCESS:
            return self.refused(code, "nvmlDeviceGetRowRemapperHistogram")
        return found.max, found.high, found.partial, found.low, found.none

    def fabric(self, handle: Any) -> Any:
        """The NVLink fabric as this GPU sees it, in the newest record that the driver knows."""
        for number in (3, 2):
            if f"fabric_{number}" in self._one.instead:
                continue
            info, ref = self.record(f"fabric_{number}", lib.Fabric.newest if number == 3 else lib.Fabric.second)
            code = self.code("nvmlDeviceGetGpuFabricInfoV", handle, ref)
            if code == SUCCESS:
                return info
            if code not in OLDER:
                return self.refused(code, "nvmlDeviceGetGpuFabricInfoV")
            self._one.instead.add(f"fabric_{number}")
        first, ref = self.record("fabric_1", self.binding.fabric_first)
        code = self.code("nvmlDeviceGetGpuFabricInfo", handle, ref)
        return first if code == SUCCESS else self.refused(code, "nvmlDeviceGetGpuFabricInfo")

    def _pids(self, function: str, handle: Any) -> Any:
        table: _Table | None = self._one.records.get("pids")
        code = INSUFFICIENT_SIZE
        for _ in range(3):  # the table may grow between two calls
            if table is None:
                table = self._one.records["pids"] = _Table(self.binding.process, LEAST_PROCESSES)
            if table.count.value > len(table.array):  # of a call ahead that nobody looked at: no room is there for it
                table.count.value = len(table.array)
            code = self.code(function, handle, table.ref, table.array)
            found, room = table.count.value, len(table.array)
            table.count.value = room  # for the next call
            if code == SUCCESS:
                return [process.pid for process in table.array[: min(found, room)]]
            if code != INSUFFICIENT_SIZE or room >= MOST_PROCESSES:
                break
            wanted = min(max(2 * room, found + 16), MOST_PROCESSES)
            table = self._one.records["pids"] = _Table(self.binding.process, wanted)
        return self.refused(code, function)

    def _older(self, question: str, answer: Any) -> Any:
        if not isinstance(answer, Refused):
            self._one.instead.add(question)
        return answer

    def _bind(self, function: str) -> Any:
        found = self.binding.pointer(function)
        if found is not None:
            self._functions[function] = found
        return found


def _nobody(_: str) -> None:
    pass
