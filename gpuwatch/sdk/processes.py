"""Looks at another process through /proc: whether it is still the same one, and what it waits for."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When it began, in clock ticks since boot: with the pid, its identity. None: it is gone, or a zombie."""
    words = _status_words(pid)
    return None if words is None or words[0] in (b"Z", b"X") else int(words[19])


def is_alive(pid: int, ticks: int) -> bool:
    """Whether this very process is still there; a process that was given the same pid later is not it."""
    return start_ticks(pid) == ticks


def kill_once(pid: int, ticks: int) -> None:
    """One SIGKILL to this very process. A process inside a driver call dies when the call returns, if it ever does."""
    if is_alive(pid, ticks):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def what_it_waits_for(pid: int) -> str:
    """State, wait channel and, where rights allow, the innermost kernel frames; for a person to read."""
    words = _status_words(pid)
    if words is None:
        return "the process is gone"
    channel = _read(f"/proc/{pid}/wchan")
    text = f"state {words[0].decode()}, wait channel {channel if channel not in ('', '0') else 'not told'}"
    stack = [line.partition("] ")[2].partition("+")[0] for line in _read(f"/proc/{pid}/stack").splitlines()]
    frames = [frame for frame in stack if frame]
    return f"{text}, kernel stack {' < '.join(frames[:6])}" if frames else text


def thread_waits_for(native_id: int) -> str:
    """The same for one of our own threads."""
    channel = _read(f"/proc/self/task/{native_id}/wchan")
    return f"wait channel {channel}" if channel not in ("", "0") else "wait channel not told"


def _status_words(pid: int) -> list[bytes] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
