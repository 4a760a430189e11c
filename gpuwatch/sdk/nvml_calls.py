"""Asks NVML through NVIDIA's own binding (`pynvml` of nvidia-ml-py). Every answer is a value or a `Refused`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from gpuwatch.errors import ProbeError
from gpuwatch.sdk.nvml_answers import FUNCTION_NOT_FOUND, NOT_SUPPORTED, UNKNOWN, Refused, refused

ARGUMENT_VERSION_MISMATCH = 25
_OLDER = {
    # what the newest binding and driver call it -> what older ones understand
    "nvmlDeviceGetTemperatureV": "nvmlDeviceGetTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetComputeRunningProcesses_v3": "nvmlDeviceGetComputeRunningProcesses_v2",
}


class Calls:
    """The binding, loaded. Not for a process that must never hang: any call may block in the driver for ever."""

    def __init__(self) -> None:
        try:
            self._binding = importlib.import_module("pynvml")
        except ImportError as error:
            raise ProbeError(
                "the Python module pynvml cannot be imported", why=str(error), next_step="pip install nvidia-ml-py"
            ) from error
        if not hasattr(self._binding, "nvmlInitWithFlags"):
            raise ProbeError(
                f"{self._binding.__file__} is not NVIDIA's binding",
                why="another package installs a module of the same name",
                next_step="pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py",
            )
        self.note: Callable[[str], None] = _nobody
        self._instead: dict[str, str] = {}
        self.where = ""  # put before each note: which GPU is being asked

    def ask(self, function: str, *arguments: Any, **named: Any) -> Any:
        """What this function answers, an older one of the same meaning if the driver or binding has no newer."""
        function = self._instead.get(function, function)
        answer = self._call(function, arguments, named)
        older = _OLDER.get(function)
        if older and isinstance(answer, Refused) and answer.code in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
            answer = self._call(older, arguments, named)
            if not isinstance(answer, Refused):
                self._instead[function] = older
        return answer

    def fields(self, handle: Any, numbers: tuple[int, ...]) -> dict[int, Any]:
        """Raw field values by number; all refused alike where the whole call is."""
        answer = self.ask("nvmlDeviceGetFieldValues", handle, list(numbers))
        if isinstance(answer, Refused):
            return dict.fromkeys(numbers, answer)
        return {int(field.fieldId): field for field in answer}

    def memory(self, handle: Any) -> Any:
        """Memory as newer drivers count it (driver's own reserve apart), else the old way."""
        version = getattr(self._binding, "nvmlMemory_v2", None)
        if version is not None and "memory" not in self._instead:
            answer = self.ask("nvmlDeviceGetMemoryInfo", handle, version=version)
            refusals = (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, NOT_SUPPORTED)
            if not isinstance(answer, Refused) or answer.code not in refusals:
                return answer
        answer = self.ask("nvmlDeviceGetMemoryInfo", handle)
        if not isinstance(answer, Refused):
            self._instead["memory"] = "v1"
        return answer

    def _call(self, function: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        called = getattr(self._binding, function, None)
        if called is None:
            return refused(FUNCTION_NOT_FOUND, function)
        self.note(f"{function}{self.where}")
        try:
            return called(*arguments, **named)
        except self._binding.NVMLError as error:
            code = error.value  # compared by value: the class is unhashable and cannot be compared with None
            return refused(code if isinstance(code, int) else UNKNOWN, function)
        except Exception as error:  # names that are no text raise UnicodeDecodeError, not NVMLError
            return Refused(None, f"{function}: {type(error).__name__}: {error}")


def _nobody(_: str) -> None:
    pass
