"""What the operating system says of the node: load, memory, disk, processes that cannot be woken.

Source: psutil, and /proc where psutil would read far more than is asked. Cheap on purpose and seldom: a node has
thousands of processes, so their states are looked at each fourth round only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from gpuwatch.collectors import Collector, Reading, Sample
from gpuwatch.model.facts.host import HostFacts

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often."""

    enabled: bool = True
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    processes_every: Annotated[int, msgspec.Meta(ge=1)] = 4  # rounds between two looks at all processes
    root: str = "/"  # the file system whose fill is told


class _Reader:
    def __init__(self, settings: Settings) -> None:
        import psutil  # here, not at the top: a node that has this collector off does not pay for it

        self._psutil = psutil
        self._settings = settings
        self._round = -1
        self._states: tuple[int, int] | None = None

    def read(self) -> Reading:
        """One round. A single source that fails is a gap, not a failure."""
        self._round += 1
        gaps: dict[str, str] = {}

        def known(name: str, source: Any) -> Any:
            try:
                return source()
            except (OSError, ValueError, IndexError, self._psutil.Error) as error:
                gaps[name] = f"{type(error).__name__}: {error}"
                return None

        percent = known("cpu_ratio", self._psutil.cpu_percent)
        if self._round == 0:
            gaps["cpu_ratio"] = "a ratio needs two readings"
        memory = known("memory_used_bytes", self._psutil.virtual_memory)
        disk = known("root_disk_used_ratio", lambda: os.statvfs(self._settings.root))
        boot_s = known("boot_unix_ns", self._psutil.boot_time)
        load = known("load1", os.getloadavg)
        if self._round % self._settings.processes_every == 0:
            self._states = known("blocked_process_count", _blocked_and_zombies)
        ours = known("agent_rss_bytes", _our_own)
        return Reading(
            facts=HostFacts(
                boot_unix_ns=None if boot_s is None else int(boot_s * 1e9),
                cpu_count=os.cpu_count(),
                load1=load and load[0],
                cpu_ratio=None if percent is None or self._round == 0 else min(1.0, percent / 100),
                memory_used_bytes=None if memory is None else memory.total - memory.available,
                memory_total_bytes=memory and memory.total,
                root_disk_used_ratio=None if disk is None else _used_ratio(disk),
                blocked_process_count=self._states and self._states[0],
                zombie_process_count=self._states and self._states[1],
                kernel_release=os.uname().release,
                agent_rss_bytes=ours and ours[0],
                agent_cpu_s=ours and ours[1],
            ),
            gaps=gaps,
        )

    def close(self) -> None:
        pass


def _used_ratio(disk: os.statvfs_result) -> float | None:
    """As `df` counts: what root alone may use is not free."""
    used = disk.f_blocks - disk.f_bfree
    return used / (used + disk.f_bavail) if used + disk.f_bavail else None


def _blocked_and_zombies() -> tuple[int, int]:
    """Processes in state D and Z. /proc/PID/stat waits for nobody's memory lock, as cmdline and environ would."""
    states = {b"D": 0, b"Z": 0}
    for name in os.listdir("/proc"):  # noqa: PTH208  (thousands)
        if name.isdigit():
            try:
                file = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue  # it ended meanwhile
            try:
                state = os.read(file, 512).rpartition(b")")[2][1:2]
            except OSError:
                continue
            finally:
                os.close(file)
            if state in states:
                states[state] += 1
    return states[b"D"], states[b"Z"]


def _our_own() -> tuple[int, float]:
    """Resident bytes and CPU seconds of the agent and its children."""
    rss_bytes, cpu_s = 0, 0.0
    pids = [os.getpid()]
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208
        try:
            with open(f"/proc/self/task/{task}/children") as file:  # noqa: PTH123
                pids += [int(word) for word in file.read().split()]
        except OSError:
            continue  # this kernel does not list children, or the thread ended
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file_of:  # noqa: PTH123
                words = file_of.read().rpartition(b")")[2].split()
        except OSError:
            continue
        cpu_s += (int(words[11]) + int(words[12])) / TICKS_PER_S
        rss_bytes += int(words[21]) * PAGE_BYTES
    return rss_bytes, cpu_s


_SERIES = {
    # field of HostFacts -> (name, help, counter)
    "boot_unix_ns": ("boot_time_seconds", "When the node booted.", False),
    "cpu_count": ("cpus", "Logical CPUs.", False),
    "load1": ("load1", "Load average over one minute.", False),
    "cpu_ratio": ("cpu_ratio", "Share of CPU time in use.", False),
    "memory_used_bytes": ("memory_used_bytes", "Memory that is not available to a new process.", False),
    "memory_total_bytes": ("memory_total_bytes", "Memory of the node.", False),
    "root_disk_used_ratio": ("root_disk_used_ratio", "Fill of the root file system.", False),
    "blocked_process_count": ("blocked_processes", "Processes in uninterruptible sleep.", False),
    "zombie_process_count": ("zombie_processes", "Processes that ended and that nobody waited for.", False),
    "agent_rss_bytes": ("agent_resident_bytes", "Resident memory of the agent and its children.", False),
    "agent_cpu_s": ("agent_cpu_seconds_total", "CPU time of the agent and its children.", True),
}


def metrics(facts: HostFacts) -> Iterable[Sample]:
    """One series a number that is known."""
    for field, (name, text, counter) in _SERIES.items():
        value = getattr(facts, field)
        if value is not None:
            number = value / 1e9 if field.endswith("_unix_ns") else value
            yield Sample(name=f"gpuwatch_host_{name}", help=text, value=number, counter=counter)


def open_reader(settings: Settings) -> _Reader:
    """A reader of this machine."""
    return _Reader(settings)


COLLECTOR = Collector(facts=HostFacts, settings=Settings, open=open_reader, metrics=metrics)
