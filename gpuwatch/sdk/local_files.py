"""Small files that survive `kill -9`: written whole or not at all, and locks that end with their process.

Shared by the `local` cloud and the `local` scheduler, whose only memory they are.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's object; None where there is no file. A file that is no JSON raises `ValueError`."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no object")
    return found


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace the file in one rename, so that a reader or a crash sees the old or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w") as file:
        json.dump(value, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone among processes for as long as the block lasts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock, or None if another process holds it. Closing it lets go; so does dying.

    Handing the descriptor to a child keeps the lock for as long as that child lives, whatever becomes of us: this is
    how "is it running?" is answered without trusting a pid that may have been given to somebody else.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle
