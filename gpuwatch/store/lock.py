"""One aggregator a ledger: a lock on a file beside it, held for as long as the process lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from gpuwatch.errors import StoreError


def hold(path: Path) -> int:
    """Hold `<file>.lock` for as long as this process lives; the kernel lets go of it even after kill -9."""
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
    except OSError:
        holder = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise StoreError(
            f"another aggregator uses the ledger {path}",
            why=f"process {holder} holds {lock_path}",
            next_step="stop that one first; two aggregators would make two machines for one",
        ) from None
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd
