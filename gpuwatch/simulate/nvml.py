"""A libnvidia-ml in Python: NVIDIA's own binding calls it as if it were the C library, so no compiler is needed.

`install(state_file)` puts it under `pynvml` in this process. The state file (JSON) is read again whenever it changes:

    {"gpu_count": 8, "seed": "gpu-001",          what the GPUs are; the seed makes their UUIDs
     "utilization": 97, "temperature": 61,       what all of them show
     "lost": [3],                                off the bus: every call answers GPU_IS_LOST
     "hang": true,                               every call on a GPU never returns (or: the name of one function)
     "init_error": 9,                            nvmlInit answers this
     "gpus": {"2": {"utilization": 4, "pids": [4711], "recovery_action": 1, "error": 16}}}
"""

from __future__ import annotations

import ctypes
import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, INSUFFICIENT_SIZE, GPU_IS_LOST = 0, 2, 3, 7, 15
ULONGLONG = 3  # NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
WITHOUT_GPU = ("nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2")
FIELDS = {
    # NVML_FI_DEV_* number -> key in the state file
    3: "ecc_corrected",
    4: "ecc_uncorrected",
    6: "ecc_uncorrected_lifetime",
    142: "rows_corrected",
    143: "rows_uncorrected",
    144: "row_pending",
    145: "row_failed",
    230: "recovery_action",
    5: "ecc_corrected_lifetime",
    94: "pcie_replays",
}
USUAL: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3 (simulated)",
    "utilization": 97,
    "memory_utilization": 55,
    "memory_used_mib": 71_000,
    "memory_total_mib": 81_559,
    "power_watts": 612.0,
    "power_limit_watts": 700.0,
    "temperature": 61,
    "sm_clock": 1755,
    "memory_clock": 2619,
    "event_mask": 4,
    "pcie_generation": 5,
    "pcie_width": 16,
    "pids": [],
}


class State:
    """The state file, read again when its time or size changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] = (0, -1)
        self._held: dict[str, Any] = {}

    def now(self) -> dict[str, Any]:
        """What the file says; what it said before, while it is being written."""
        try:
            status = self._path.stat()
            if (status.st_mtime_ns, status.st_size) != self._seen:
                held = json.loads(self._path.read_text())
                self._held, self._seen = held, (status.st_mtime_ns, status.st_size)
        except (OSError, ValueError):
            pass
        return self._held

    def of(self, index: int, key: str) -> Any:
        """One GPU's own value, else the one of all, else the usual one."""
        held = self.now()
        return held.get("gpus", {}).get(str(index), {}).get(key, held.get(key, USUAL.get(key, 0)))


class Library:
    """Answers for `pynvml.nvmlLib`: any function by name; what is not written below is NOT_SUPPORTED."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            own = getattr(self, f"_{name.removeprefix('nvml')}", None)
            if name.startswith("nvmlDeviceGet") and name not in (
                "nvmlDeviceGetCount_v2",
                "nvmlDeviceGetHandleByIndex_v2",
            ):
                return self._on_gpu(name, own, arguments)
            return NOT_SUPPORTED if own is None else int(own(*arguments))

        return call

    def _on_gpu(self, name: str, own: Callable[..., int] | None, arguments: tuple[Any, ...]) -> int:
        index = (ctypes.cast(arguments[0], ctypes.c_void_p).value or 1) - 1
        while self._state.now().get("hang") in (True, name):
            time.sleep(0.1)  # as a call that waits for a dead GSP: nothing but the state file ends it
        if index in self._state.now().get("lost", ()):
            return GPU_IS_LOST
        error = self._state.of(index, "error")
        if error:
            return int(error)
        return NOT_SUPPORTED if own is None else int(own(index, *arguments[1:]))

    def _InitWithFlags(self, _flags: Any) -> int:  # noqa: N802
        return int(self._state.now().get("init_error", SUCCESS))

    def _Shutdown(self) -> int:  # noqa: N802
        return SUCCESS

    def _SystemGetDriverVersion(self, buffer: Any, _length: Any) -> int:  # noqa: N802
        return _text(buffer, self._state.now().get("driver_version", "580.95.05"))

    def _DeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        return _put(count, int(self._state.now().get("gpu_count", 8)))

    def _DeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        place = _number(index)
        if place >= int(self._state.now().get("gpu_count", 8)):
            return INVALID_ARGUMENT
        if place in self._state.now().get("lost", ()):
            return GPU_IS_LOST
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = place + 1
        return SUCCESS

    def _DeviceGetUUID(self, index: int, buffer: Any, _length: Any) -> int:  # noqa: N802
        seed = self._state.now().get("seed", "gpuwatch")
        return _text(buffer, f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{seed}/{index}')}")

    def _DeviceGetName(self, index: int, buffer: Any, _length: Any) -> int:  # noqa: N802
        return _text(buffer, str(self._state.of(index, "name")))

    def _DeviceGetPciInfo_v3(self, index: int, info: Any) -> int:  # noqa: N802
        _inside(info).busId = pci_bus_id(index).encode()
        return SUCCESS

    def _DeviceGetUtilizationRates(self, index: int, rates: Any) -> int:  # noqa: N802
        inside = _inside(rates)
        inside.gpu = int(self._state.of(index, "utilization"))
        inside.memory = int(self._state.of(index, "memory_utilization"))
        return SUCCESS

    def _DeviceGetMemoryInfo_v2(self, index: int, info: Any) -> int:  # noqa: N802
        inside = _inside(info)
        inside.total = int(self._state.of(index, "memory_total_mib")) << 20
        inside.used = int(self._state.of(index, "memory_used_mib")) << 20
        inside.free = inside.total - inside.used
        return SUCCESS

    def _DeviceGetTemperatureV(self, index: int, asked: Any) -> int:  # noqa: N802
        _inside(asked).temperature = int(self._state.of(index, "temperature"))
        return SUCCESS

    def _DeviceGetPowerUsage(self, index: int, milliwatts: Any) -> int:  # noqa: N802
        return _put(milliwatts, int(float(self._state.of(index, "power_watts")) * 1000))

    def _DeviceGetPowerManagementLimit(self, index: int, milliwatts: Any) -> int:  # noqa: N802
        return _put(milliwatts, int(float(self._state.of(index, "power_limit_watts")) * 1000))

    def _DeviceGetClockInfo(self, index: int, kind: Any, megahertz: Any) -> int:  # noqa: N802
        return _put(megahertz, int(self._state.of(index, "memory_clock" if _number(kind) == 2 else "sm_clock")))

    def _DeviceGetCurrentClocksEventReasons(self, index: int, mask: Any) -> int:  # noqa: N802
        return _put(mask, int(self._state.of(index, "event_mask")))

    def _DeviceGetCurrPcieLinkGeneration(self, index: int, generation: Any) -> int:  # noqa: N802
        return _put(generation, int(self._state.of(index, "pcie_generation")))

    def _DeviceGetCurrPcieLinkWidth(self, index: int, width: Any) -> int:  # noqa: N802
        return _put(width, int(self._state.of(index, "pcie_width")))

    def _DeviceGetMaxPcieLinkWidth(self, _index: int, width: Any) -> int:  # noqa: N802
        return _put(width, 16)

    def _DeviceGetFieldValues(self, index: int, count: Any, values: Any) -> int:  # noqa: N802
        fields = _inside(values)
        for place in range(_number(count)):
            key = FIELDS.get(int(fields[place].fieldId))
            fields[place].nvmlReturn = SUCCESS if key else NOT_SUPPORTED
            fields[place].valueType = ULONGLONG
            fields[place].value.ullVal = int(self._state.of(index, key)) if key else 0
        return SUCCESS

    def _DeviceGetComputeRunningProcesses_v3(self, index: int, count: Any, processes: Any) -> int:  # noqa: N802
        pids = list(self._state.of(index, "pids"))
        if not pids:
            return _put(count, 0)
        if processes is None or _inside(count).value < len(pids):
            _put(count, len(pids))
            return INSUFFICIENT_SIZE
        for place, pid in enumerate(pids):
            processes[place].pid = int(pid)
        return _put(count, len(pids))


def pci_bus_id(index: int) -> str:
    """Where a simulated GPU sits, as NVML writes it; in a kernel log it is `0000:%02x:00`."""
    return f"00000000:{0x11 + index * 8:02X}:00.0"


def install(state_file: str) -> None:
    """Put the simulated library under `pynvml`, before anybody initialises it."""
    import pynvml

    pynvml.nvmlLib = Library(State(Path(state_file)))


def _inside(reference: Any) -> Any:
    return getattr(reference, "_obj", reference)


def _number(value: Any) -> int:
    return int(getattr(value, "value", value))


def _put(reference: Any, value: int) -> int:
    _inside(reference).value = value
    return SUCCESS


def _text(buffer: Any, value: str) -> int:
    buffer.value = value.encode()
    return SUCCESS
