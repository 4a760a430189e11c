"""What the kernel says of its own clock: whether a time service keeps it, and how far off it may be. No network.

A hardened unit may not even ask (systemd's ProtectClock filters adjtimex as a whole). Then systemd's own time service
is asked to ask, now and then, because each time it is started for that.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass

from gpuwatch.sdk.errand import Errands

ASKED_EVERY = 20  # looks
DEADLINE_S = 2.0
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
    offset_s: float | None = None
    max_error_s: float | None = None


@functools.cache  # each one brings a class of its own, which only a full collection would give back
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def clock_says() -> ClockSays:
    """Ask. Raises `OSError` where the kernel refuses (a sandbox), or where the layout is not known."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_long) != 8:
        raise OSError("not a 64-bit Linux")
    asked = _Timex()  # modes 0: only look
    state = _libc().adjtimex(ctypes.byref(asked))
    if state < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    unit = 1e-9 if asked.status & STA_NANO else 1e-6
    return ClockSays(
        synchronised=state != TIME_ERROR and not asked.status & STA_UNSYNC,
        offset_s=asked.offset * unit,
        max_error_s=asked.maxerror * 1e-6,
    )


class KernelClock:
    """The kernel itself, else systemd's time service by a small program."""

    def __init__(self, errands: Errands) -> None:
        self._errands = errands
        self._look = -1
        self._latest: ClockSays | None = None

    def look(self) -> ClockSays:
        """Raises `OSError` where neither answers."""
        try:
            return clock_says()
        except OSError as error:
            self._look += 1
            if self._look % ASKED_EVERY == 0:
                self._latest = self._ask()
            if self._latest is None:
                raise OSError(f"{error}; timedatectl does not know either") from error
            return self._latest

    def _ask(self) -> ClockSays | None:
        asked = {"timedatectl": ["timedatectl", "show", "--property=NTPSynchronized", "--value"]}
        said = self._errands.ask(asked, deadline_s=DEADLINE_S)["timedatectl"].out.strip()
        return ClockSays(said == b"yes") if said in (b"yes", b"no") else None
