"""Tells when a file that others write and rotate may have changed (inotify): nobody need look at it by the clock.

Where the kernel gives no watch (none left, no such file system) there is no descriptor, and the reader polls. A change
that another machine makes on a network file system is not told either: look now and then all the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from pathlib import Path

MODIFIED, ATTRIBUTES, CREATED, MOVED_HERE, DELETED, MOVED = 0x2, 0x4, 0x100, 0x80, 0x400, 0x800  # linux/inotify.h
OF_FILE = MODIFIED | ATTRIBUTES | DELETED | MOVED
OF_FOLDER = CREATED | MOVED_HERE
EVENTS_BYTES = 1 << 16


@functools.cache  # each one brings a class of its own, which only a full collection would give back
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


class FileWatch:
    """One path: the file that stands there now, and its folder, in which another may take its place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._libc = _libc()
        self._file = -1
        self._watched = -1
        with contextlib.suppress(AttributeError):  # a C library without it
            self._file = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file >= 0 and (self._add(path.parent, OF_FOLDER) < 0 or not self.again()):
            self.close()

    def fileno(self) -> int:
        """Readable when something happened; -1: nothing will be told."""
        return self._file

    def again(self) -> bool:
        """Watch the file that stands at the path now, instead of an earlier one. False: it cannot be watched."""
        if self._file < 0:
            return False
        before, self._watched = self._watched, self._add(self._path, OF_FILE)
        if before not in (-1, self._watched):
            self._libc.inotify_rm_watch(self._file, before)
        return self._watched >= 0

    def forget(self) -> None:
        """Take what was told so far as read."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.read(self._file, EVENTS_BYTES)

    def close(self) -> None:
        """Tell no more."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _add(self, path: Path, mask: int) -> int:
        return int(self._libc.inotify_add_watch(self._file, os.fsencode(path), mask))
