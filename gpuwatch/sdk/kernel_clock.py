"""What the kernel says of its own clock: whether a time service keeps it, and how far off it may be. No network."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

TIME_ERROR = 5  # what adjtimex(2) returns while the clock is not synchronised
STA_UNSYNC, STA_NANO = 0x0040, 0x2000


class _Timex(ctypes.Structure):
    """`struct timex` of 64-bit Linux, <linux/timex.h>."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time_s", ctypes.c_long),
        ("time_us", ctypes.c_long),
        ("rest", ctypes.c_byte * 256),  # more than the kernel writes
    )


@dataclass(frozen=True, slots=True)
class ClockSays:
    """The kernel's word."""

    synchronised: bool
    offset_s: float
    max_error_s: float


def clock_says() -> ClockSays:
    """Ask. Raises `OSError` where the kernel refuses (a sandbox), or where the layout is not known."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_long) != 8:
        raise OSError("not a 64-bit Linux")
    library = ctypes.CDLL(None, use_errno=True)
    asked = _Timex()  # modes 0: only look
    state = library.adjtimex(ctypes.byref(asked))
    if state < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    unit = 1e-9 if asked.status & STA_NANO else 1e-6
    return ClockSays(
        synchronised=state != TIME_ERROR and not asked.status & STA_UNSYNC,
        offset_s=asked.offset * unit,
        max_error_s=asked.maxerror * 1e-6,
    )
