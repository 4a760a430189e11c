"""Whose work is on the GPUs: process, job, user, and who has GPUs and uses none."""

from __future__ import annotations

import msgspec


class GpuProcess(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One process with a context on one or more GPUs. None: not known; the envelope's gaps say why."""

    pid: int
    gpus: tuple[int, ...]  # indices of this boot
    name: str = ""  # the kernel's name of the process, at most 15 characters
    uid: int | None = None
    user: str | None = None
    workload: str = "none"  # slurm | kubernetes | azure_batch | none
    job: str | None = None  # Slurm job id, pod `namespace/name` (else its uid), Batch `job/task`
    step: str | None = None
    account: str | None = None
    partition: str | None = None
    container: str | None = None  # the runtime's id of the container
    started_unix_ns: int | None = None


class Allocation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """GPUs that a scheduler has given to a job on this node."""

    workload: str
    job: str
    gpus: tuple[int, ...] = ()  # indices, where they are told as such
    gpu_ids: tuple[str, ...] = ()  # UUIDs, where they are told as such
    user: str | None = None
    account: str | None = None


class AttributionFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Processes by GPU, allocations, and the GPUs that are allocated while no process is on them."""

    processes: tuple[GpuProcess, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    idle_allocated: tuple[int, ...] | None = None  # indices; None: not known


FACTS = AttributionFacts
