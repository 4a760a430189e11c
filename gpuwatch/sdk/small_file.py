"""One small file, read whole, whatever lies in its place.

A pipe keeps its reader waiting for ever, a device or a file that has grown fills the memory, brackets within brackets
use up the stack: what a program finds on a disk is not always what it wrote.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

MOST_BYTES = 4 << 20
PIECE_BYTES = 32 << 10
T = TypeVar("T")


def small_file(path: str | Path, most_bytes: int = MOST_BYTES, *, owners: tuple[int, ...] = ()) -> bytes:
    """Its bytes. `owners`: whose it may be, and then no link is followed; empty: anybody's.

    Raises `OSError`, and `ValueError` for what is no plain file, is larger, or belongs to somebody else.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (os.O_NOFOLLOW if owners else 0)
    file = os.open(path, flags)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no plain file")
        if owners and status.st_uid not in owners:
            raise ValueError(f"it belongs to user {status.st_uid}")
        data = _read(file, most_bytes + 1)
    finally:
        os.close(file)
    if len(data) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes} bytes")
    return data


def kernel_file(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The first bytes of a file that the kernel writes while it is read, such as in /proc. Raises `OSError`."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _read(file, most_bytes)
    finally:
        os.close(file)


def _read(file: int, most_bytes: int) -> bytes:
    """In pieces: room for the most that there may be would be taken from the system and given back each time."""
    data = os.read(file, min(PIECE_BYTES, most_bytes))
    piece = data
    while piece and len(data) < most_bytes:
        piece = os.read(file, min(PIECE_BYTES, most_bytes - len(data)))
        data += piece
    return data


def from_json(data: bytes, kind: type[T]) -> T:
    """What it says. Raises `ValueError` for whatever is not of this kind."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def small_json(path: str | Path, kind: type[T], most_bytes: int = MOST_BYTES) -> T:
    """Both. Raises `OSError` and `ValueError`."""
    return from_json(small_file(path, most_bytes), kind)
