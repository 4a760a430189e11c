"""Processes that nobody can wake (state D), for how long, and in which wait; and those that nobody buries (state Z).

One look at every process, from /proc/PID/stat alone: cmdline, environ and smaps wait for the process's own memory lock,
and would hang with it. A wait is the same as at the last look while the process has not been switched to meanwhile.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from gpuwatch.model.facts.host import StuckProcess

KERNEL_THREAD = 0x00200000  # PF_KTHREAD, <linux/sched.h>: some of them wait in D by design
MOST_TOLD = 5
MOST_FOLLOWED = 1_000


@dataclass(frozen=True, slots=True)
class States:
    """One look."""

    blocked_count: int
    zombie_count: int
    stuck: tuple[StuckProcess, ...]


class Processes:
    """Remembers who was blocked at the last look."""

    def __init__(self, proc_root: str = "/proc") -> None:
        self._root = proc_root
        self._since: dict[tuple[int, bytes, bytes], float] = {}  # pid, start, switches -> first seen

    def look(self) -> States:
        """Every process once. Raises `OSError` where there is no process list."""
        now_s = time.monotonic()
        blocked_count, zombie_count = 0, 0
        waiting: dict[tuple[int, bytes, bytes], str] = {}
        for name in os.listdir(self._root):  # noqa: PTH208  (thousands)
            if not name.isdecimal():
                continue
            head, _, rest = self._read(name, "stat").rpartition(b")")
            words = rest.split(None, 21)
            if len(words) < 21:
                continue  # it ended meanwhile
            zombie_count += words[0] == b"Z"
            blocked_count += words[0] == b"D"
            if words[0] == b"D" and len(waiting) < MOST_FOLLOWED and not _is_kernels(words[6]):
                key = (int(name), words[19], _switches(self._read(name, "status")))
                waiting[key] = head.partition(b"(")[2].decode("utf-8", "replace")
        self._since = {key: self._since.get(key, now_s) for key in waiting}
        longest = sorted(waiting, key=lambda key: (self._since[key], key))[:MOST_TOLD]
        stuck = tuple(
            StuckProcess(key[0], _printable(waiting[key]), now_s - self._since[key], self._wait_of(key[0]))
            for key in longest
        )
        return States(blocked_count, zombie_count, stuck)

    def _wait_of(self, pid: int) -> str:
        said = _printable(self._read(str(pid), "wchan").decode("ascii", "replace").strip())
        return "" if said == "0" else said

    def _read(self, pid: str, name: str) -> bytes:
        try:
            file = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return b""
        try:
            return os.read(file, 4_096)
        except OSError:
            return b""
        finally:
            os.close(file)


def _is_kernels(flags: bytes) -> bool:
    return flags.isdigit() and len(flags) < 12 and bool(int(flags) & KERNEL_THREAD)


def _switches(status: bytes) -> bytes:
    """`voluntary_ctxt_switches: 150`: grows each time that it waits anew."""
    return status.partition(b"\nvoluntary_ctxt_switches:")[2].partition(b"\n")[0].strip()[:20]


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:64]
