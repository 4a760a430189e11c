"""One aggregator a ledger: a lock on a file beside it, held for as long as the process lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from gpuwatch.errors import StoreError


def hold(path: Path) -> int:
    """Hold `<file>.lock` for as long as this process lives; the kernel lets go of it even after kill -9.

    Beside the file itself, whatever link leads there: SQLite too keeps what belongs to it there.
    """
    path = real(path)
    lock_path = path.with_name(path.name + ".lock")
    try:
        fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"cannot open {lock_path}",
            why=str(error),
            next_step=f"create the folder {path.parent} and give gpuwatch's user write access to it",
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise StoreError(
            f"another aggregator uses the ledger {path}",
            why=f"process {holder} holds {lock_path}",
            next_step="stop that one first; two aggregators would make two machines for one",
        ) from None
    except OSError as error:
        os.close(fd)
        raise StoreError(
            f"{lock_path} cannot be locked",
            why=str(error),
            next_step="keep the ledger on a local disk: a second aggregator would not be noticed here",
        ) from error
    with contextlib.suppress(OSError):  # a full disk costs the note, not the lock
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def real(path: Path) -> Path:
    """The file itself. Raises `StoreError` for a link that leads to itself."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise StoreError(f"{path} leads nowhere", why=str(error), next_step="name the ledger's file itself") from error
