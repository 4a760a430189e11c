"""How the SQLite file is opened: to be written by the aggregator, or only read by a report."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from gpuwatch.store.lock import real

BUSY_MS = 5_000


def to_write(path: Path) -> sqlite3.Connection:
    """Write-ahead log, and each transaction on the disk: an acknowledged event must survive a power cut."""
    raw = sqlite3.connect(path, timeout=BUSY_MS / 1e3, check_same_thread=False, isolation_level=None)
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("PRAGMA synchronous=FULL")
    return raw


def to_read(path: Path) -> sqlite3.Connection:
    """Never writes, and needs no right to: a report is made by whoever may read the file.

    Beside a running aggregator SQLite reads its write-ahead log. Where none lies there, nobody writes: the file is
    then read as it is, because SQLite would want to make files beside it.
    """
    path = real(path)
    rest = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
    address = f"file:{quote(str(path.absolute()))}?mode=ro{rest}"
    return sqlite3.connect(address, uri=True, timeout=BUSY_MS / 1e3, check_same_thread=False, isolation_level=None)
