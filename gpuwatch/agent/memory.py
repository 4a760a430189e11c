"""Keeps a process small that has ten threads and lives for months."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # malloc.h
TIDY_EVERY = 200
LARGE_BYTES = 128 << 10  # glibc's own first choice, which it would raise to the largest block that was ever freed


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def one_arena() -> None:
    """Before the first thread. glibc gives each thread an arena of its own, and each keeps what it once needed; but
    Python's threads take turns. Large blocks go back to the system at once, always."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = _libc().mallopt
        mallopt(ARENA_MAX, 1)
        mallopt(MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(TRIM_THRESHOLD, LARGE_BYTES)


def tidy() -> None:
    """After much was built anew and let go, such as all settings: cycles would wait long for the seldom collector."""
    gc.collect()


def tidy_at(number: int) -> None:
    """At each two hundredth report or reading, which takes 0.2 ms. Python keeps freed tuples for the next, up to 2,000
    of each length; `tuple(…)` of a generator takes one of ten and leaves one of its own length behind. Only a full
    collection gives them back, and few objects are made here that would bring one about."""
    if number % TIDY_EVERY == 0:
        tidy()


def settle() -> None:
    """Give back what loading needed, and let the collector never look at what stays for ever."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    with contextlib.suppress(OSError, AttributeError):
        _libc().malloc_trim(0)  # glibc: some ten MB after compiling a large binding
