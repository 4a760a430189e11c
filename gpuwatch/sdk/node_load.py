"""What /proc/stat and /proc/meminfo say of the whole node, proc(5). Each is read once a look: on a node of 200
processors the kernel takes a millisecond to write the first.
"""

from __future__ import annotations

KB = 1024
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
    """Each line's bytes by its name. Lines that hold no number are left out."""
    found: dict[str, int] = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal() and len(words[0]) < 16:
            found[name] = int(words[0]) * (KB if words[1:] == ["kB"] else 1)
    return found


def available_bytes(memory: dict[str, int]) -> int:
    """What a new process could have. Raises `KeyError`. Kernels before 3.14 do not say: free and file cache."""
    if "MemAvailable" in memory:
        return memory["MemAvailable"]
    return memory["MemFree"] + memory.get("Buffers", 0) + memory.get("Cached", 0)
