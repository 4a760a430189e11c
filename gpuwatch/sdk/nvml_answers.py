"""What an answer of NVML is worth: a value, or a refusal with its return code. Ranges and words, no library.

Sources: nvml.h (API 13) for codes and field types; the public threads named beside each limit.
"""

from __future__ import annotations

from typing import Any

import msgspec

SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
INSUFFICIENT_SIZE = 7
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
UNKNOWN = 999

NAMES = {
    1: "UNINITIALIZED",
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    4: "NO_PERMISSION",
    6: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    9: "DRIVER_NOT_LOADED",
    10: "TIMEOUT",
    11: "IRQ_ISSUE",
    12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    15: "GPU_IS_LOST",
    16: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    18: "LIB_RM_VERSION_MISMATCH",
    19: "IN_USE",
    20: "MEMORY",
    21: "NO_DATA",
    23: "INSUFFICIENT_RESOURCES",
    25: "ARGUMENT_VERSION_MISMATCH",
    26: "DEPRECATED",
    27: "NOT_READY",
    28: "GPU_NOT_FOUND",
    29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED",
    999: "UNKNOWN",
}

ABSENT = frozenset({3, 13, 21, 25, 26})
"""This GPU or driver has no such number: an answer, not a fault. Worth remembering, and asking again now and then."""

HARMLESS = ABSENT | {4, 6, 7, 10, 19, 20, 23, 27}
"""Says nothing about the GPU's health, whichever call gives it."""

CONDEMNS = frozenset({8, 11, 14, 15, 16})
"""One such answer to any question is about the whole GPU."""

NOT_AVAILABLE_32 = 0xFFFFFFFF
NOT_AVAILABLE_64 = 0xFFFFFFFFFFFFFFFF
MIB = 1 << 20
UNSUPPORTED = "NOT_SUPPORTED (3)"


class Refused(msgspec.Struct, frozen=True):
    """NVML did not give a value. `code` is its return code, None where the binding itself failed."""

    code: int | None
    why: str


def refused(code: int, function: str = "") -> Refused:
    """A return code in words, any number that the table does not know included. Which function does not support
    something is of no use to anybody: those reasons are all alike, so that they can be told as one."""
    words = f"{NAMES.get(code, 'code')} ({code})"
    if code == NOT_SUPPORTED:
        return Refused(code, UNSUPPORTED)
    return Refused(code, f"{function}: {words}" if function else words)


def within(value: Any, low: float, high: float, unit: str) -> Any:
    """The value if it can be physical, else a `Refused` that quotes it.

    Utilisations of 808 % and memory of 4294967295 MiB were really exported (NVIDIA/dcgm-exporter#418, #662).
    """
    if isinstance(value, Refused):
        return value
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return Refused(None, f"{value!r} is not a number")
    if value in (NOT_AVAILABLE_32, NOT_AVAILABLE_64):
        return Refused(None, "NVML says: not available")
    if not low <= value <= high:
        return Refused(None, f"{value} {unit} is out of range")
    return value


def positive(value: Any, high: float, unit: str) -> Any:
    """Like `within`, and a zero is no data either: 0 W, 0 MHz and 0 degrees come with SUCCESS from a GPU that hides its
    numbers, and must not read as "cool and idle" (NVIDIA/DCGM#303, NVIDIA/DCGM#202)."""
    if not isinstance(value, Refused) and value == 0:
        return Refused(None, f"0 {unit} with SUCCESS is no data")
    return within(value, 1, high, unit)
