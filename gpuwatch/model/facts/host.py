"""What the operating system says of the node."""

from __future__ import annotations

import msgspec


class HostFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Load, memory, disk and blocked processes."""

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


FACTS = HostFacts
