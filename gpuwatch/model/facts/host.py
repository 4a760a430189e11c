"""What the operating system says of the node."""

from __future__ import annotations

import msgspec


class StuckProcess(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process that waits in the kernel and cannot be woken, not even by SIGKILL."""

    pid: int
    name: str
    stuck_s: float  # at least: since the agent first saw it in this very wait
    waits: str = ""  # the kernel's wait channel


class Disk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A local file system."""

    mount: str
    device: str
    kind: str  # ext4, xfs, ...
    used_ratio: float | None = None  # as `df` counts
    inode_used_ratio: float | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    read_only: bool = False
    read_only_by: str = ""  # kernel: after an error | remounted: it was writable in this boot | fstab: against it
    roles: tuple[str, ...] = ()  # root, var, tmp, state: what of the system lies on it


class NetworkMount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file system that somebody else serves: over the network, or from a process."""

    mount: str
    source: str  # `server:/export`
    kind: str  # nfs4, lustre, fuse.x, ...
    answer: str  # ok | hung | failed | not_asked
    reason: str = ""
    since_unix_ns: int | None = None  # hung or failed since


class HostFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Load, memory, disks, mounts, blocked processes, the clock."""

    boot_unix_ns: int | None = None
    cpu_count: int | None = None
    load1: float | None = None
    cpu_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    root_disk_used_ratio: float | None = None
    blocked_process_count: int | None = None  # state D
    zombie_process_count: int | None = None
    kernel_release: str | None = None
    agent_rss_bytes: int | None = None
    agent_cpu_s: float | None = None
    boot_id: str | None = None
    uptime_s: float | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    memory_stalled_ratio: float | None = None  # of the last minute: every process waited for memory
    oom_kill_count: int | None = None  # since boot
    stuck_processes: tuple[StuckProcess, ...] = ()  # of user programs, the longest first, at most a few
    disks: tuple[Disk, ...] = ()
    network_mounts: tuple[NetworkMount, ...] = ()
    clock_synchronised: bool | None = None  # the kernel's word, which the time service sets
    clock_offset_s: float | None = None  # what the time service still corrects
    clock_max_error_s: float | None = None


FACTS = HostFacts
