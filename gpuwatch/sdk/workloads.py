"""Which job a process belongs to, from the path of its cgroup. Pure: the path is a fact of the kernel, no library call.

Seen paths (v1 and v2, systemd and cgroupfs drivers):

    /system.slice/slurmstepd.scope/job_4711/step_0/user/task_0        Slurm, cgroup/v2
    /slurm/uid_1000/job_4711/step_batch/task_0                        Slurm, cgroup/v1
    /system.slice/gpu01_slurmstepd.scope/job_7/step_extern            Slurm, several slurmd on one machine
    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f2e…_….slice/cri-containerd-<64 hex>.scope
    /kubepods/besteffort/pod1f2e-…/<64 hex>                           Kubernetes, cgroupfs
    /docker/<64 hex>, /system.slice/docker-<64 hex>.scope             a container of nobody's scheduler
"""

from __future__ import annotations

import re

import msgspec

_SLURM = re.compile(r"(?:^|/)(?:[^/]*slurmstepd\.scope|slurm(?:_[^/]+)?(?:/uid_\d+)?)/job_(\d+)(?:/step_([^/]+))?")
_POD = re.compile(r"(?:^|[/-])pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?=[./]|$)", re.IGNORECASE)
_STATIC_POD = re.compile(r"(?:^|[/-])pod([0-9a-f]{32})(?=[./]|$)")
_CONTAINER = re.compile(r"(?:^|[/-])([0-9a-f]{64})(?:\.scope)?(?=/|$)")


class Place(msgspec.Struct, frozen=True):
    """Where a process runs."""

    workload: str = "none"  # slurm | kubernetes | none
    job: str | None = None  # Slurm job id, or the pod's uid
    step: str | None = None
    container: str | None = None


def place_of(cgroup: str) -> Place:
    """From the text of /proc/PID/cgroup, all of its lines. Below `user.slice` a user names the folders himself: what
    stands there says nothing of a scheduler."""
    paths = [line.split(":", 2)[2] for line in cgroup.splitlines() if line.count(":") >= 2]
    paths = [f"{path}/".partition("/user.slice/")[0].removesuffix("/") for path in paths]
    container = next((found[1] for path in paths for found in _CONTAINER.finditer(path)), None)
    for path in paths:
        slurm = _SLURM.search(path)
        if slurm is not None:
            return Place("slurm", slurm[1], slurm[2], container)
    for path in paths:
        pod = _POD.search(path) or (_STATIC_POD.search(path) if "kubepods" in path else None)
        if pod is not None:
            return Place("kubernetes", pod[1].replace("_", "-").lower(), None, container)
    return Place(container=container)


def gpu_indices(text: str) -> tuple[int, ...]:
    """`0,1,4-6` as SLURM_JOB_GPUS writes it; empty for anything else."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            return ()
        top = int(last) if dash else int(first)
        if top - int(first) > 1024 or top > 1024:
            return ()
        found += range(int(first), top + 1)
    return tuple(found)
