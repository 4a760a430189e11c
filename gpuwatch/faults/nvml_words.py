"""What NVML answered, in the words in which other programs print it: the same few faults, whoever asked.

Words: `nvmlErrorString` of nvml.h and the classes of nvidia-ml-py. Most answers are no fault and give nothing.
"""

from __future__ import annotations

import re

from gpuwatch.faults import nvml_codes
from gpuwatch.faults.event import Event
from gpuwatch.faults.named import named

NO_PERMISSION, BLOCKED = 4, 17
BY_CODE = {
    NO_PERMISSION: "nvml_no_permission",
    nvml_codes.DRIVER_NOT_LOADED: "driver_not_loaded",
    nvml_codes.LIBRARY_NOT_FOUND: "driver_library_missing",
    nvml_codes.GPU_IS_LOST: "gpu_lost",
    nvml_codes.RESET_REQUIRED: "gpu_reset_required",
    BLOCKED: "nvml_no_permission",
    nvml_codes.VERSION_MISMATCH: "driver_mismatch",
    nvml_codes.UNKNOWN_ERROR: "nvml_unknown_error",
}
_BY_WORDS = (
    ("driver not loaded", nvml_codes.DRIVER_NOT_LOADED),
    ("driver/library version mismatch", nvml_codes.VERSION_MISMATCH),
    ("rm has detected an nvml/rm version mismatch", nvml_codes.VERSION_MISMATCH),
    ("nvml shared library not found", nvml_codes.LIBRARY_NOT_FOUND),
    ("gpu is lost", nvml_codes.GPU_IS_LOST),
    ("gpu requires reset", nvml_codes.RESET_REQUIRED),
    ("gpu requires restart", nvml_codes.RESET_REQUIRED),
    ("insufficient permissions", NO_PERMISSION),
    ("gpu access blocked", BLOCKED),
    ("the operating system has blocked", BLOCKED),
    ("unknown error", nvml_codes.UNKNOWN_ERROR),
)
_CLASSES = {
    "NoPermission": NO_PERMISSION,
    "DriverNotLoaded": nvml_codes.DRIVER_NOT_LOADED,
    "LibraryNotFound": nvml_codes.LIBRARY_NOT_FOUND,
    "GpuIsLost": nvml_codes.GPU_IS_LOST,
    "ResetRequired": nvml_codes.RESET_REQUIRED,
    "OperatingSystem": BLOCKED,
    "LibRmVersionMismatch": nvml_codes.VERSION_MISMATCH,
    "Unknown": nvml_codes.UNKNOWN_ERROR,
}
_RAISED = re.compile(r"(?:[\w.]+\.)?NVMLError_(?P<name>\w+): ")
_CONTAINER = re.compile(  # alone, or as docker quotes it
    r"(?:(?:docker: )?Error response from daemon: .*?\b)?nvidia-container-cli(?:\.real)?: "
    r"(?:[\w ]+: nvml error: (?P<words>.*)|initialization error: load library failed: libnvidia-ml\.so)"
)


def code_of(words: str) -> int | None:
    """The number of an answer that was printed in words; None: it is no fault."""
    low = words.lower()
    return next((code for said, code in _BY_WORDS if low.startswith(said)), None)


def told(text: str, code: int | None, *, with_code: bool = True) -> Event | None:
    """The event of an answer by its number."""
    kind = BY_CODE.get(code) if code is not None else None
    return named(kind, text, details={"code": code if with_code else None}) if kind is not None else None


def of_program(text: str) -> Event | None:
    """The last line of a Python traceback, or the refusal of the container toolkit, pasted by a person."""
    raised = _RAISED.match(text)
    if raised is not None:
        return told(text, _CLASSES.get(raised["name"]))
    refused = _CONTAINER.match(text)
    if refused is None:
        return None
    return told(text, code_of(refused["words"]) if refused["words"] else nvml_codes.LIBRARY_NOT_FOUND)
