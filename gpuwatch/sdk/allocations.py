"""What schedulers have given away on this node: Slurm's cgroups, the kubelet's checkpoint of device plugins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuwatch.sdk.small_file import small_json

MOST_FOLDERS = 5_000
DEEPEST = 7  # slurm/uid_/job_/step_/user/task_ and one more
_JOB = re.compile(r"^job_(\d+)$")
_ROOTS = ("system.slice", "slurm", "cpuset/slurm", "memory/slurm", "freezer/slurm", "devices/slurm", "")


def slurm_jobs(cgroup: str) -> dict[str, list[int]]:
    """Slurm job -> processes of its cgroup, slurmstepd's own left out where a task folder has some."""
    found: dict[str, list[int]] = {}
    for root in _roots(cgroup):
        for folder, job in _job_folders(root):
            tasks, others = _pids(folder)
            if tasks or others:
                found.setdefault(job, []).extend(tasks or others)
    return found


def kubelet_allocations(path: str, gaps: dict[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """Pod uid -> device ids of NVIDIA GPUs, as the kubelet would restore them after a restart. Empty without one."""
    try:
        entries = small_json(path, dict[str, Any])["Data"]["PodDeviceEntries"] or []
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        gaps["allocations"] = f"{path} cannot be read: {type(error).__name__}"
        return []
    found: dict[str, list[str]] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and str(entry.get("ResourceName", "")).startswith("nvidia.com/"):
            found.setdefault(str(entry.get("PodUID", "")), []).extend(_devices(entry.get("DeviceIDs")))
    return [(uid, tuple(devices)) for uid, devices in sorted(found.items()) if uid and devices]


def _devices(ids: Any) -> Iterator[str]:
    """By NUMA node in newer kubelets, one list in older ones. A time-shared GPU is `GPU-…::2`."""
    lists = ids.values() if isinstance(ids, dict) else [ids]
    for names in lists:
        for name in names if isinstance(names, list) else ():
            yield str(name).partition("::")[0]


def _roots(cgroup: str) -> Iterator[str]:
    for name in _ROOTS:
        path = f"{cgroup}/{name}".rstrip("/")
        try:
            for entry in os.scandir(path):
                inside = entry.name if name in ("system.slice", "") else ""
                if inside.endswith("slurmstepd.scope") and entry.is_dir(follow_symlinks=False):
                    yield entry.path
        except OSError:
            continue
        if name.endswith("slurm"):
            yield path
            return  # the other hierarchies of version 1 say the same


def _job_folders(root: str) -> Iterator[tuple[str, str]]:
    """`job_N`, directly below or below `uid_N`."""
    for folder in (root, *(f"{root}/{name}" for name in _names(root) if name.startswith("uid_"))):
        for name in _names(folder):
            match = _JOB.match(name)
            if match is not None:
                yield f"{folder}/{name}", match[1]


def _pids(folder: str) -> tuple[list[int], list[int]]:
    """Processes in task folders, and all others."""
    tasks: list[int] = []
    others: list[int] = []
    left = MOST_FOLDERS
    for place, folders, files in os.walk(folder):
        left -= 1
        if left < 0:
            break
        if place.count("/") - folder.count("/") >= DEEPEST:
            folders.clear()
        if "cgroup.procs" in files:
            try:
                numbers = [int(word) for word in Path(place, "cgroup.procs").read_text().split() if word.isdecimal()]
            except (OSError, UnicodeDecodeError):
                continue
            (tasks if "/task_" in place else others).extend(numbers)
    return tasks, others


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
