"""Whether a job runs here, by the traces that schedulers and training leave: whoever sent the order may be wrong.

Slurm: a step has a `slurmstepd: [job.step]`, whatever the spool is called. Kubernetes: a process in a pod's cgroup.
Azure Batch: a process in a task's folder. Training: a heartbeat file whose process lives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gpuwatch.hands.beats import living_runs
from gpuwatch.hands.processes import Process
from gpuwatch.hands.settings import Work

STEP = re.compile(rb"slurmstepd: \[([0-9._+a-z]+)\]")
BATCH_FOLDER = "/batch/tasks/workitems/"
POD = "kubepods"
POD_HOLDER = "pause"  # holds a pod's namespaces and does nothing


def jobs(seen: Iterable[Process], work: Work, *, now_unix_s: float) -> list[str]:
    """What runs here, each in words; empty: nothing that leaves a trace."""
    found = [words for process in seen if not process.ended() and (words := _job(process, work))]
    fresh_since_unix_s = now_unix_s - work.heartbeat_fresh_s
    found += living_runs(work.heartbeat_directories, fresh_since_unix_s=fresh_since_unix_s, proc=work.proc)
    return found


def _job(process: Process, work: Work) -> str:
    if process.name == "slurmstepd":
        return _step(process, work.proc)
    if BATCH_FOLDER in f"{process.folder}/":
        return f"an Azure Batch task: {process.words()}"
    if POD in process.cgroup and process.program != POD_HOLDER:
        if process.devices and not process.is_friend(work.gpu_friends):
            return f"a pod with a GPU: {process.words()}"
        if work.pods == "any":
            return f"a pod: {process.words()}"
    return ""


def _step(process: Process, proc: Path) -> str:
    """`slurmstepd infinity` holds Slurm's cgroups and is no step; one that cannot be read counts as one."""
    try:
        title = (proc / str(process.pid) / "cmdline").read_bytes()[:200]
    except OSError:
        return ""
    step = STEP.match(title)
    if step is None and b"infinity" in title:
        return ""
    return f"the Slurm step {step[1].decode() if step else process.words()}"
