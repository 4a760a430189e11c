"""Makes a process small once everything is loaded."""

from __future__ import annotations

import contextlib
import ctypes
import gc


def tidy() -> None:
    """After much was built anew and let go, such as all settings: cycles would wait long for the seldom collector."""
    gc.collect()


def settle() -> None:
    """Give back what loading needed, and let the collector never look at what stays for ever."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc: some ten MB after compiling a large binding
