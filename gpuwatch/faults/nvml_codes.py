"""What an NVML return code of one GPU says of that GPU. Data and one look-up; rules decide from it.

Source of the numbers: `nvml.h`, nvmlReturn_t (API 13, NVIDIA/go-nvml). Source of each reading: the thread beside it.
A code that is not here is kept as a number and means "unknown", never a fault.
"""

from __future__ import annotations

from typing import Literal

import msgspec

DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
UNKNOWN_ERROR = 999

Answer = Literal["fine", "absent", "unknown", "lost", "sick"]


class Code(msgspec.Struct, frozen=True, gc=False):
    """One return code. `absent` is an answer (this board has no such thing), `unknown` is none."""

    name: str
    answer: Answer
    meaning: str
    action: Literal["none", "reset_gpu", "reboot", "drain_replace", "contact_support"] = "none"
    after_s: float = 0.0  # seen once is nothing: it must last this long
    after_intervals: int = 0  # … or this many reports in a row


CODES: dict[int, Code] = {
    0: Code("SUCCESS", "fine", "the call worked"),
    1: Code("UNINITIALIZED", "unknown", "NVML was not initialised: our own mistake"),
    2: Code("INVALID_ARGUMENT", "unknown", "a stale index after the number of GPUs changed"),
    3: Code("NOT_SUPPORTED", "absent", "this board has no such reading (wookayin/gpustat#144)"),
    4: Code("NO_PERMISSION", "unknown", "the agent lacks the right to ask this GPU"),
    6: Code("NOT_FOUND", "fine", "the process ended between two calls"),
    7: Code("INSUFFICIENT_SIZE", "fine", "the process table grew between two calls"),
    8: Code("INSUFFICIENT_POWER", "sick", "the board's power cable is not in order (with Xid 54)", "contact_support"),
    10: Code("TIMEOUT", "sick", "the GPU does not answer in time", "reset_gpu", after_intervals=3),
    11: Code("IRQ_ISSUE", "sick", "the driver sees no interrupts from the GPU", "reboot", after_intervals=2),
    13: Code("FUNCTION_NOT_FOUND", "absent", "the library is older than the call (k8s-device-plugin#331)"),
    14: Code(
        "CORRUPTED_INFOROM", "sick", "the board's own memory is damaged (azhpc-diagnostics#40)", "contact_support"
    ),
    GPU_IS_LOST: Code("GPU_IS_LOST", "lost", "the GPU is off the bus", "drain_replace"),
    RESET_REQUIRED: Code("RESET_REQUIRED", "sick", "the GPU wants a reset (leptonai/gpud#1133)", "reset_gpu"),
    17: Code("OPERATING_SYSTEM", "unknown", "the operating system blocked the call (a container's rules)"),
    19: Code("IN_USE", "fine", "a reset or a MIG change while in use"),
    20: Code("MEMORY", "unknown", "the host is out of memory"),
    21: Code("NO_DATA", "absent", "nothing recorded"),
    23: Code("INSUFFICIENT_RESOURCES", "unknown", "the host is out of memory"),
    25: Code("ARGUMENT_VERSION_MISMATCH", "absent", "a newer record than this driver knows"),
    26: Code("DEPRECATED", "absent", "an old reading on a new driver"),
    27: Code("NOT_READY", "sick", "the GPU has not come up", "reboot", after_s=600.0),
    UNKNOWN_ERROR: Code("UNKNOWN", "unknown", "the driver cannot say what is wrong"),
}


def code(number: int) -> Code:
    """What is known of this number."""
    return CODES.get(number) or Code(f"code {number}", "unknown", "a code that is in no published list")
