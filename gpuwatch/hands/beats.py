"""Whether a training process that writes a heartbeat (docs/heartbeat.md) lives on this node. In doubt it does."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuwatch.training.heartbeat import (
    FILE_BYTES,
    HEADER,
    HEADER_CRC_OFFSET,
    MAGIC,
    PHASES,
    RECORD,
    RECORD_OFFSET,
    SUFFIX,
    pid_namespace,
)

MOST_FILES = 4096


def living_runs(folders: Iterable[str], *, fresh_since_unix_s: float, proc: Path) -> Iterator[str]:
    """In words, each process whose heartbeat file is there, not `done`, and which lives; or, where its pid means
    nothing here (a container), whose file has changed since then."""
    namespace = pid_namespace()
    for folder in folders:
        try:
            names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(SUFFIX))
        except OSError:
            continue
        if len(names) > MOST_FILES:  # every user may write there: nobody hides a run behind files of theirs
            yield f"more heartbeat files in {folder} than are looked at ({len(names)})"
        for name in names[:MOST_FILES]:
            found = _read(Path(folder) / name)
            if found is not None and (words := _words(*found, namespace, fresh_since_unix_s, proc)):
                yield words


def _read(path: Path) -> tuple[bytes, os.stat_result] | None:
    """The whole file and its state; None: it is no heartbeat."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data, found = os.read(file, FILE_BYTES), os.fstat(file)
    except OSError:
        return None
    finally:
        os.close(file)
    whole = len(data) == FILE_BYTES and data.startswith(MAGIC)
    checked = zlib.crc32(data[:HEADER_CRC_OFFSET]) == int.from_bytes(data[HEADER_CRC_OFFSET:RECORD_OFFSET], "little")
    return (data, found) if whole and checked else None


def _words(data: bytes, found: os.stat_result, namespace: int, fresh_since_unix_s: float, proc: Path) -> str:
    _, _, _, pid, rank, _, _, ticks, _, _, run, _, _, _, written_in = HEADER.unpack_from(data)
    phase = RECORD.unpack_from(data, RECORD_OFFSET)[1]
    if phase < len(PHASES) and PHASES[phase] == "done":
        return ""
    told = run.partition(b"\0")[0].decode("utf-8", "replace")
    words = f"a training process: rank {rank} of {told} (pid {pid})"
    if written_in and namespace and written_in != namespace:
        return f"{words}, in a container" if found.st_mtime >= fresh_since_unix_s else ""
    try:
        status = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        owner = (proc / str(pid)).stat().st_uid
    except OSError:
        return ""
    if found.st_uid not in (0, owner):  # or every user could keep every node from being repaired
        return ""
    same = ticks in (0, int(status[19]))
    return words if same and status[0] not in (b"Z", b"X") else ""
