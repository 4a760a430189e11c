"""Whose work is on the GPUs: GPU -> process -> Slurm job, Kubernetes pod or Azure Batch task, user, account.

Processes by GPU are NVML's, from the agent's own last reading. A process's cgroup names the job (see `sdk/workloads`);
user, account and Batch task stand in chosen variables of its environment. Each process is looked at once and known by
pid and start from then on. The kernel's word comes before the environment's, which anybody may write. What a scheduler
has given to jobs: Slurm's own variable SLURM_JOB_GPUS in a process of the job's cgroup; the kubelet's checkpoint of
device plugins. User names come from /etc/passwd or the job's environment: a name service may hang.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gpuwatch.collectors import Collector, Reading, Sample, Unsupported
from gpuwatch.model.facts.attribution import Allocation, AttributionFacts, GpuProcess
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.sdk.allocations import kubelet_allocations, slurm_jobs
from gpuwatch.sdk.errand import Errands
from gpuwatch.sdk.process_words import shown, variables
from gpuwatch.sdk.processes import start_ticks
from gpuwatch.sdk.workloads import Place, gpu_indices, place_of

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MOST_NEW = 64  # processes, and jobs, looked at for the first time in one round
MOST_ROWS = 256  # of the info series: whoever is on a GPU may call himself by as many names as he starts processes
VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_JOB_USER",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_ID",
    "AZ_BATCH_JOB_ID",
    "AZ_BATCH_TASK_ID",
    "AZ_BATCH_ACCOUNT_NAME",
    "USER",
)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, and where the node's own view is."""

    enabled: bool = True
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    deadline_s: Annotated[float, msgspec.Meta(gt=0)] = 2.0  # of one look into a process's environment
    proc: str = "/proc"
    cgroup: str = "/sys/fs/cgroup"
    passwd: str = "/etc/passwd"
    kubelet_checkpoint: str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    pod_logs: str = "/var/log/pods"


class _Reader:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._errands = Errands("attribution")
        self._nvml: Callable[[str], Any] | None = None
        self._known: dict[tuple[int, int], GpuProcess] = {}  # pid and start -> who it is; its GPUs come with each round
        self._jobs: dict[str, dict[str, str]] = {}  # Slurm job -> the variables of one of its processes
        self._users: dict[int, str] | None = None

    def meet(self, latest: Callable[[str], Any]) -> None:
        """`latest(name)`: the last facts of another source, or None."""
        self._nvml = latest

    def read(self) -> Reading:
        """One round."""
        gaps: dict[str, str] = {}
        nvml = None if self._nvml is None else self._nvml("nvml")
        self._users = None
        if isinstance(nvml, NvmlFacts) and not nvml.gpus and nvml.pci_gpu_count == 0:
            raise Unsupported("no GPUs on this node")
        on_gpus = _gpus_by_pid(nvml, gaps)
        processes = self._processes(on_gpus, gaps)
        allocations = self._allocations(gaps)
        return Reading(
            facts=AttributionFacts(
                processes=processes,
                allocations=allocations,
                idle_allocated=_idle(nvml, allocations) if isinstance(nvml, NvmlFacts) else None,
            ),
            gaps=gaps,
            abandoned_count=self._errands.abandoned_count,
        )

    def keep(self, folder: Path, *, ours: bool = True) -> None:
        """Where looks that never came back are remembered."""
        self._errands.keep(folder, ours=ours)

    def close(self) -> None:
        pass

    def _processes(self, on_gpus: Mapping[int, list[int]], gaps: dict[str, str]) -> tuple[GpuProcess, ...]:
        ids = {pid: ticks for pid in on_gpus if (ticks := start_ticks(pid)) is not None}
        fresh = [pid for pid, ticks in ids.items() if (pid, ticks) not in self._known][:MOST_NEW]
        words = variables(
            self._errands, fresh, VARIABLES, proc=self._settings.proc, deadline_s=self._settings.deadline_s
        )
        for pid in fresh:
            said = words.get(pid, "it was not looked at")
            if isinstance(said, str):
                gaps[f"processes[{pid}].user"] = said
            self._known[pid, ids[pid]] = self._who(pid, ids[pid], {} if isinstance(said, str) else _shown(said))
        self._known = {key: who for key, who in self._known.items() if ids.get(key[0]) == key[1]}
        return tuple(
            msgspec.structs.replace(self._known[pid, ticks], gpus=tuple(sorted(on_gpus[pid])))
            for pid, ticks in sorted(ids.items())
            if (pid, ticks) in self._known
        )

    def _who(self, pid: int, ticks: int, words: Mapping[str, str]) -> GpuProcess:
        place = place_of(_text(f"{self._settings.proc}/{pid}/cgroup"))
        uid = _uid(_text(f"{self._settings.proc}/{pid}/status"))
        workload, job, step = self._job(place, words)
        return GpuProcess(
            pid=pid,
            gpus=(),
            name=shown(_text(f"{self._settings.proc}/{pid}/comm").strip()[:15]),
            uid=uid,
            user=(self._user(uid) if uid else None)  # root may work for somebody
            or words.get("SLURM_JOB_USER")
            or self._user(uid)
            or words.get("USER"),
            workload=workload,
            job=job,
            step=step,
            account=words.get("SLURM_JOB_ACCOUNT") or words.get("AZ_BATCH_ACCOUNT_NAME"),
            partition=words.get("SLURM_JOB_PARTITION"),
            container=place.container,
            started_unix_ns=_started(ticks, self._settings.proc),
        )

    def _job(self, place: Place, words: Mapping[str, str]) -> tuple[str, str | None, str | None]:
        """The kernel's word before the environment's: that one anybody may write."""
        if place.workload == "slurm":
            return "slurm", place.job, place.step
        if place.workload == "kubernetes":
            return "kubernetes", self._pod(place.job or ""), None
        if "AZ_BATCH_JOB_ID" in words:
            return "azure_batch", f"{words['AZ_BATCH_JOB_ID']}/{words.get('AZ_BATCH_TASK_ID', '?')}", None
        if "SLURM_JOB_ID" in words:  # a cluster without Slurm's cgroup plugin
            return "slurm", words["SLURM_JOB_ID"], words.get("SLURM_STEP_ID")
        return "none", None, None

    def _pod(self, uid: str) -> str:
        """`namespace/name` of a pod: the kubelet names its log folders `namespace_name_uid`."""
        try:
            found = next(name for name in os.listdir(self._settings.pod_logs) if name.endswith(f"_{uid}"))  # noqa: PTH208
        except (OSError, StopIteration):
            return uid
        namespace, _, name = found.removesuffix(f"_{uid}").partition("_")
        return f"{namespace}/{name}"

    def _allocations(self, gaps: dict[str, str]) -> tuple[Allocation, ...]:
        settings = self._settings
        jobs = slurm_jobs(settings.cgroup)
        self._jobs = {job: words for job, words in self._jobs.items() if job in jobs}
        unasked = dict([(pids[0], job) for job, pids in jobs.items() if job not in self._jobs and pids][:MOST_NEW])
        said = variables(self._errands, unasked, VARIABLES, proc=settings.proc, deadline_s=settings.deadline_s)
        for pid, job in unasked.items():
            words = said.get(pid, {})
            if isinstance(words, str):
                gaps[f"allocations[{job}]"] = words
            elif words.get("SLURM_JOB_ID") == job:
                self._jobs[job] = _shown(words)
        slurm = [
            Allocation(
                workload="slurm",
                job=job,
                gpus=gpu_indices(words["SLURM_JOB_GPUS"]),
                user=words.get("SLURM_JOB_USER"),
                account=words.get("SLURM_JOB_ACCOUNT"),
            )
            for job, words in sorted(self._jobs.items())
            if words.get("SLURM_JOB_GPUS")
        ]
        pods = [
            Allocation(workload="kubernetes", job=self._pod(uid), gpu_ids=devices)
            for uid, devices in kubelet_allocations(settings.kubelet_checkpoint, gaps)
        ]
        return (*slurm, *pods)

    def _user(self, uid: int | None) -> str | None:
        if self._users is None:
            self._users = {}
            for line in _text(self._settings.passwd, most_bytes=1 << 20).splitlines():
                parts = line.split(":")
                if len(parts) > 2 and parts[2].isdecimal():
                    self._users.setdefault(int(parts[2]), parts[0])
        return None if uid is None else self._users.get(uid)


def _gpus_by_pid(nvml: Any, gaps: dict[str, str]) -> dict[int, list[int]]:
    if not isinstance(nvml, NvmlFacts):
        gaps["processes"] = "NVML has not answered"
        return {}
    found: dict[int, list[int]] = {}
    for gpu in nvml.gpus:
        for pid in gpu.pids:
            found.setdefault(pid, []).append(gpu.index)
    return found


def _idle(nvml: NvmlFacts, allocations: Iterable[Allocation]) -> tuple[int, ...]:
    """GPUs that somebody has and no process is on. One that does not answer is not known to be idle."""
    index_of = {gpu.uuid: gpu.index for gpu in nvml.gpus if gpu.uuid is not None}
    given: set[int] = set()
    for allocation in allocations:
        given.update(allocation.gpus)
        given.update(index_of[name] for name in allocation.gpu_ids if name in index_of)
    return tuple(gpu.index for gpu in nvml.gpus if gpu.index in given and not gpu.pids and gpu.error is None)


def _shown(words: Mapping[str, str]) -> dict[str, str]:
    return {name: shown(value) for name, value in words.items()}


def _text(path: str, most_bytes: int = 16_384) -> str:
    try:
        with Path(path).open("rb", buffering=0) as file:
            return (file.read(most_bytes) or b"").decode("utf-8", "replace")
    except OSError:
        return ""


def _uid(status: str) -> int | None:
    for line in status.splitlines():
        if line.startswith("Uid:"):
            words = line.split()
            return int(words[1]) if len(words) > 1 and words[1].isdecimal() else None
    return None


def _started(ticks: int, proc: str) -> int | None:
    for line in _text(f"{proc}/stat", most_bytes=1 << 20).splitlines():
        if line.startswith("btime ") and line[6:].strip().isdecimal():
            return int(line[6:]) * 10**9 + ticks * 10**9 // TICKS_PER_S
    return None


def metrics(facts: AttributionFacts) -> Iterable[Sample]:
    """One `info` series a GPU and job to join on, and how many GPUs are had and not used."""
    text = "Whose work is on a GPU; join on `gpu`."
    rows = sorted({(index, who) for process in facts.processes for index in process.gpus for who in [_labels(process)]})
    for index, who in rows[:MOST_ROWS]:
        yield Sample(name="gpuwatch_gpu_job_info", help=text, value=1, labels={"gpu": str(index)} | dict(who))
    if facts.idle_allocated is not None:
        text = "GPUs that are allocated to a job while no process is on them."
        yield Sample(name="gpuwatch_gpus_allocated_idle", help=text, value=len(facts.idle_allocated))


def _labels(process: GpuProcess) -> tuple[tuple[str, str], ...]:
    return (
        ("workload", process.workload),
        ("job", process.job or ""),
        ("user", process.user or ""),
        ("account", process.account or ""),
    )


def open_reader(settings: Settings) -> _Reader:
    """A reader of this machine."""
    return _Reader(settings)


COLLECTOR = Collector(facts=AttributionFacts, settings=Settings, open=open_reader, metrics=metrics)
