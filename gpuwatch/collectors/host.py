"""What the operating system says of the node: load, memory, disks, mounts, blocked processes, the clock.

Source: /proc, each file once a round. Cheap on purpose and seldom: a node has thousands of processes, so their states
are looked at each fourth round only. A mount that somebody else serves is asked through a small program with a
deadline, because a server that is away keeps whoever asks waiting for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gpuwatch.collectors import Collector, Reading, Sample
from gpuwatch.model.facts.host import Disk, HostFacts, NetworkMount
from gpuwatch.sdk import mounts
from gpuwatch.sdk.disks import Disks
from gpuwatch.sdk.errand import Errands
from gpuwatch.sdk.kernel_clock import KernelClock
from gpuwatch.sdk.kernel_lines import this_boot_id
from gpuwatch.sdk.mount_probe import MountProbe
from gpuwatch.sdk.node_load import CpuShare, available_bytes, booted_unix_s, memory_bytes
from gpuwatch.sdk.process_states import Processes, States
from gpuwatch.sdk.small_file import kernel_file

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MOST_SERVED = 256


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, and what."""

    enabled: bool = True
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    processes_every: Annotated[int, msgspec.Meta(ge=1)] = 4  # rounds between two looks at all processes
    mounts_every: Annotated[int, msgspec.Meta(ge=1)] = 2  # rounds between two looks at disks and mounts
    mount_deadline_s: Annotated[float, msgspec.Meta(gt=0, le=2)] = 2.0
    network_mounts: bool = True  # ask mounts that somebody else serves whether they answer
    clock: bool = True  # ask the kernel whether a time service keeps the clock
    root: str = "/"  # the file system whose fill is told
    proc_root: str = "/proc"
    fstab: str = "/etc/fstab"


class _Reader:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._round = -1
        self._states: States | None = None
        self._processes = Processes(settings.proc_root)
        self._share = CpuShare()
        self._errands = Errands("host")
        self._probe = MountProbe(self._errands, settings.mount_deadline_s)
        self._clock = KernelClock(self._errands)
        self._disk_reader = Disks(
            settings.fstab, self._errands if settings.network_mounts else None, settings.mount_deadline_s
        )
        self._mounts_hash: int | None = None  # of what was last taken apart: it seldom changes
        self._local: list[mounts.Mount] = []
        self._served: list[mounts.Mount] = []
        self._disks: tuple[Disk, ...] = ()
        self._network: tuple[NetworkMount, ...] = ()

    def keep(self, folder: Path, *, ours: bool = True) -> None:
        self._errands.keep(folder, ours=ours)
        self._disk_reader.keep(folder, ours=ours)

    def read(self) -> Reading:
        """One round. A single source that fails is a gap, not a failure."""
        self._round += 1
        gaps: dict[str, str] = {}

        def known(name: str, source: Callable[[], Any]) -> Any:
            try:
                return source()
            except (OSError, ValueError, LookupError) as error:
                gaps[name] = f"{type(error).__name__}: {error}"
                return None

        stat = known("cpu_ratio", lambda: self._proc("stat"))
        busy = None if stat is None else known("cpu_ratio", lambda: self._share.of(stat))
        if busy is None:
            gaps.setdefault("cpu_ratio", "a ratio needs two readings")
        memory = known("memory_total_bytes", lambda: memory_bytes(self._proc("meminfo"))) or {}
        total = known("memory_total_bytes", lambda: memory["MemTotal"])
        available = known("memory_used_bytes", lambda: available_bytes(memory))
        disk = known("root_disk_used_ratio", lambda: os.statvfs(self._settings.root))
        boot_s = known("boot_unix_ns", lambda: booted_unix_s(stat or ""))
        load = known("load1", os.getloadavg)
        if self._round % self._settings.processes_every == 0:
            self._states = known("blocked_process_count", self._processes.look)
        if self._round % self._settings.mounts_every == 0:
            known("disks", self._look_at_mounts)
        ours = known("agent_rss_bytes", _our_own)
        swap = known("swap_total_bytes", lambda: (memory["SwapTotal"], memory["SwapFree"])) or (None, None)
        clock = known("clock_synchronised", self._clock.look) if self._settings.clock else None
        states = self._states
        return Reading(
            facts=HostFacts(
                boot_unix_ns=None if boot_s is None else boot_s * 10**9,
                cpu_count=os.cpu_count(),
                load1=load and load[0],
                cpu_ratio=busy,
                memory_used_bytes=None if total is None or available is None else max(0, total - available),
                memory_total_bytes=total,
                root_disk_used_ratio=None if disk is None else _used_ratio(disk),
                blocked_process_count=None if states is None else states.blocked_count,
                zombie_process_count=None if states is None else states.zombie_count,
                kernel_release=os.uname().release,
                agent_rss_bytes=ours and ours[0],
                agent_cpu_s=ours and ours[1],
                boot_id=this_boot_id() or None,
                uptime_s=known("uptime_s", lambda: time.clock_gettime(time.CLOCK_BOOTTIME)),
                swap_total_bytes=swap[0],
                swap_used_bytes=None if swap[0] is None else max(0, swap[0] - swap[1]),
                memory_stalled_ratio=known("memory_stalled_ratio", self._memory_stalled_ratio),
                oom_kill_count=known("oom_kill_count", self._oom_kill_count),
                stuck_processes=() if states is None else states.stuck,
                disks=self._disks,
                network_mounts=self._network,
                clock_synchronised=None if clock is None else clock.synchronised,
                clock_offset_s=None if clock is None else clock.offset_s,
                clock_max_error_s=None if clock is None else clock.max_error_s,
            ),
            gaps=gaps,
            abandoned_count=self._errands.abandoned_count,
        )

    def close(self) -> None:
        pass

    def _look_at_mounts(self) -> None:
        texts = mounts.texts(self._settings.proc_root)
        if hash(texts) != self._mounts_hash:
            seen = mounts.joined(*texts)
            self._local = [mount for mount in seen if mount.local]
            self._served = mounts.once(mount for mount in seen if mount.served)[:MOST_SERVED]
            self._mounts_hash = hash(texts)
        self._disks = self._disk_reader.look(self._local)
        self._network = self._probe.ask(self._served) if self._settings.network_mounts else ()

    def _memory_stalled_ratio(self) -> float | None:
        """None, without a gap, where the kernel does not measure it."""
        try:
            text = self._proc("pressure/memory")
        except OSError:
            return None
        for line in text.splitlines():
            if line.startswith("full "):
                return min(1.0, max(0.0, float(line.split("avg60=")[1].split()[0]) / 100))
        return None

    def _oom_kill_count(self) -> int | None:
        """None, without a gap, where the kernel is too old to count (before 4.13)."""
        told = self._proc("vmstat").partition("\noom_kill ")[2]
        return int(told.partition("\n")[0]) if told else None

    def _proc(self, name: str) -> str:
        return kernel_file(f"{self._settings.proc_root}/{name}", 1 << 20).decode("utf-8", "replace")


def _used_ratio(disk: os.statvfs_result) -> float | None:
    """As `df` counts: what root alone may use is not free."""
    used = disk.f_blocks - disk.f_bfree
    return used / (used + disk.f_bavail) if used + disk.f_bavail else None


def _our_own() -> tuple[int, float]:
    """Resident bytes and CPU seconds of the agent and its children."""
    rss_bytes, cpu_s = 0, 0.0
    pids = [os.getpid()]
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208
        try:
            pids += [int(word) for word in kernel_file(f"/proc/self/task/{task}/children").split()]
        except OSError:
            continue  # this kernel does not list children, or the thread ended
    for pid in pids:
        try:
            words = kernel_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
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
    "memory_stalled_ratio": (
        "memory_stalled_ratio",
        "Share of the last minute in which all waited for memory.",
        False,
    ),
    "swap_total_bytes": ("swap_total_bytes", "Swap of the node.", False),
    "swap_used_bytes": ("swap_used_bytes", "Swap in use.", False),
    "oom_kill_count": ("oom_kills_total", "Processes that the kernel killed for memory, since boot.", True),
    "root_disk_used_ratio": ("root_disk_used_ratio", "Fill of the root file system.", False),
    "blocked_process_count": ("blocked_processes", "Processes in uninterruptible sleep.", False),
    "zombie_process_count": ("zombie_processes", "Processes that ended and that nobody waited for.", False),
    "clock_synchronised": ("clock_synchronised", "Whether a time service keeps the clock.", False),
    "clock_offset_s": ("clock_offset_seconds", "What the time service still corrects.", False),
    "clock_max_error_s": (
        "clock_max_error_seconds",
        "The most that the clock may be off.",
        False,
    ),
    "agent_rss_bytes": ("agent_resident_bytes", "Resident memory of the agent and its children.", False),
    "agent_cpu_s": ("agent_cpu_seconds_total", "CPU time of the agent and its children.", True),
}


def metrics(facts: HostFacts) -> Iterable[Sample]:
    """One series a number that is known; of each disk and each mount that somebody else serves a few."""
    for field, (name, text, counter) in _SERIES.items():
        value = getattr(facts, field)
        if value is not None:
            number = value / 1e9 if field.endswith("_unix_ns") else float(value)
            yield Sample(name=f"gpuwatch_host_{name}", help=text, value=number, counter=counter)
    if facts.blocked_process_count is not None:
        longest_s = max((process.stuck_s for process in facts.stuck_processes), default=0.0)
        text = "How long the longest stuck process has been so, as far as the agent saw."
        yield Sample(name="gpuwatch_host_longest_stuck_seconds", help=text, value=longest_s)
    for disk in facts.disks:
        labels = {"mount": disk.mount}
        for name, text, share in (
            ("disk_used_ratio", "Fill of a local file system.", disk.used_ratio),
            ("disk_inodes_used_ratio", "Share of its inodes in use.", disk.inode_used_ratio),
            ("disk_read_only", "Whether it cannot be written.", float(disk.read_only)),
        ):
            if share is not None:
                yield Sample(name=f"gpuwatch_host_{name}", help=text, value=share, labels=labels)
    for mount in facts.network_mounts:
        if mount.answer != "not_asked":
            text = "Whether a mount that somebody else serves answers."
            labels = {"mount": mount.mount, "source": mount.source}
            answers = float(mount.answer == "ok")
            yield Sample(name="gpuwatch_host_mount_answers", help=text, value=answers, labels=labels)


def open_reader(settings: Settings) -> _Reader:
    """A reader of this machine."""
    return _Reader(settings)


COLLECTOR = Collector(facts=HostFacts, settings=Settings, open=open_reader, metrics=metrics)
