"""What /proc/stat and /proc/meminfo say of the whole node, proc(5). Each is read once a look: on a node of 200
processors the kernel takes a millisecond to write the first.
"""

from __future__ import annotations

import re

KB = 1024
_MEMORY = re.compile(
    r"^(MemTotal|MemFree|MemAvailable|Buffers|Cached|SwapTotal|SwapFree):\s+([0-9]{1,15}) kB$", re.MULTILINE
)
IDLE, WAITING = 3, 4  # places in the line of /proc/stat
WITHOUT_GUESTS = 8  # the two behind are counted in the first two as well


class CpuShare:
    """The share of processor time that was in use between two looks."""

    def __init__(self) -> None:
        self._total, self._idle = 0, 0

    def of(self, stat: str) -> float | None:
        """None at the first look, and where no time has passed. Raises `ValueError` for what is no /proc/stat."""
        words = stat.partition("\n")[0].split()
        if len(words) < 5 or words[0] != "cpu":
            raise ValueError("/proc/stat does not begin with all processors")
        ticks = [int(word) for word in words[1 : 1 + WITHOUT_GUESTS]]
        total, idle = sum(ticks), ticks[IDLE] + (ticks[WAITING] if len(ticks) > WAITING else 0)
        passed, rested = total - self._total, idle - self._idle
        first = self._total == 0
        self._total, self._idle = total, idle
        return None if first or passed <= 0 else min(1.0, max(0.0, 1 - rested / passed))


def booted_unix_s(stat: str) -> int:
    """When the kernel started, by the clock of now. Raises `ValueError` where it is not told."""
    line = stat.partition("\nbtime ")[2].partition("\n")[0].strip()
    if not line.isdecimal() or len(line) > 18:
        raise ValueError("/proc/stat tells no btime")
    return int(line)


def memory_bytes(meminfo: str) -> dict[str, int]:
    """Bytes by the name of the line, of memory, file cache and swap as a whole."""
    return {name: int(kilobytes) * KB for name, kilobytes in _MEMORY.findall(meminfo)}


def available_bytes(memory: dict[str, int]) -> int:
    """What a new process could have. Raises `KeyError`. Kernels before 3.14 do not say: free and file cache."""
    if "MemAvailable" in memory:
        return memory["MemAvailable"]
    return memory["MemFree"] + memory.get("Buffers", 0) + memory.get("Cached", 0)
