"""Jobs out of `scontrol -o show job`, `squeue --json` (21.08 to 22.05) and `scontrol show job --json` (23.02 on)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuwatch.errors import SchedulerError
from gpuwatch.sdk import slurm_values as values
from gpuwatch.sdk.slurm_nodes import listed

_KEY = re.compile(r"(?:^| )([A-Za-z][\w/:]*)=")
_ID = re.compile(r"(?:^| )((?:Array|Het|Pack)\w+)=(\S+)")
_NOTE = re.compile(r" AdminComment=(.*?) {1,2}(?:SystemComment|Comment|StdErr)=", re.DOTALL)
_NAMED = re.compile(r"(JobId=\d+ .*?)JobName=(.*?) ((?:HetJobIdSet=\S+ )?UserId=.*)", re.DOTALL)
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
HOLDING = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "SIGNALING", "STOPPED", "POWER_UP_NODE"})
LEAVING = frozenset({"COMPLETING", "STAGE_OUT"})
ENDED: Mapping[str, tuple[str, bool]] = {  # state -> our word for the cause, whether somebody ordered it
    "COMPLETED": ("completed", False),
    "CANCELLED": ("cancelled", True),
    "FAILED": ("failed", False),
    "TIMEOUT": ("time_limit", False),
    "DEADLINE": ("time_limit", False),
    "NODE_FAIL": ("node_failed", False),
    "PREEMPTED": ("preempted", False),
    "OUT_OF_MEMORY": ("out_of_memory", False),
    "BOOT_FAIL": ("boot_failed", False),
    "LAUNCH_FAILED": ("failed", False),
    "RECONFIG_FAIL": ("failed", False),
    "REVOKED": ("cancelled", True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job, array task or component of a heterogeneous job, in its present try."""

    id: int
    name: str
    state: tuple[str, ...]  # in capitals; releases before 23.02 show one word, COMPLETING hides the others
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    array: tuple[int, int] | None = None  # of a task: the array's id and its number in it
    leader: int = 0  # the id that its processes see: of a heterogeneous job the first component's
    batch: bool = True
    requeue: bool = False
    submitted_unix_ns: int | None = None
    started_unix_ns: int | None = None
    ended_unix_ns: int | None = None
    exit_code: int | None = None
    account: str = ""
    user: str = ""
    gpus_per_node: int | None = None
    note: str = ""  # AdminComment

    @property
    def attempt(self) -> str:
        """As the heartbeat in the job derives it: `SLURM_JOB_ID.SLURM_RESTART_COUNT`."""
        return f"{self.leader or self.id}.{self.restarts}"

    @property
    def address(self) -> str:
        """What to call it in an order, so that no other task is meant: a task's own id may be the whole array's too."""
        return f"{self.array[0]}_{self.array[1]}" if self.array else str(self.leader or self.id)

    @property
    def ended(self) -> tuple[str, bool] | None:
        """Its cause of end and whether that was ordered; None while it is not over, or not told yet why."""
        if WAITING.intersection(self.state):
            return None
        return next((ENDED[word] for word in self.state if word in ENDED), None)

    @property
    def waiting(self) -> bool:
        """In the queue. A try before this one may still be on its way off its nodes."""
        return bool(WAITING.intersection(self.state))

    @property
    def running(self) -> bool:
        """It has its nodes and has not ended."""
        return bool(HOLDING.intersection(self.state)) and self.ended is None and not self.waiting

    @property
    def suspended(self) -> bool:
        """It has its nodes and is kept from working."""
        return self.running and bool({"SUSPENDED", "STOPPED"}.intersection(self.state))

    @property
    def leaving(self) -> bool:
        """Over, but not yet off all its nodes."""
        return bool(LEAVING.intersection(self.state))


def from_text(answer: str) -> tuple[Job, ...]:
    """Of `scontrol -o show job`: one line a job. Raises `SchedulerError` for anything else, nothing included."""
    if answer.strip() == "No jobs in the system":
        return ()
    if not answer.strip():
        raise SchedulerError("scontrol -o show job printed nothing: that is no answer", retry=True)
    if not answer.endswith("\n"):
        raise SchedulerError(f"scontrol -o show job was cut off: {answer[-80:]!r}", retry=True)
    lines = re.split(r"\n(?=JobId=\d)|\n+\Z", answer)  # a job's name may hold a line's end
    return tuple(_from_line(line) for line in lines if line.strip())


def _from_line(line: str) -> Job:
    found = _fields(line)
    try:
        job_id, state = int(found["JobId"].split()[0]), found["JobState"]
        nodes = values.names(found.get("NodeList", ""))
    except (KeyError, ValueError):
        raise SchedulerError(
            f"scontrol -o show job makes no sense: {line[:80]!r}",
            retry=True,
            next_step="run it by hand as the aggregator's user",
        ) from None
    asked = found.get("TresPerNode") or found.get("Gres", "")
    # What it is called in an order stands before all that its owner may write: no name leads an order to another's job.
    ids = {mark[1]: mark[2] for mark in _ID.finditer(line.partition(" JobName=")[0])}
    note = _NOTE.search(line)
    return Job(
        id=job_id,
        name=found.get("JobName", ""),
        state=values.words(state),
        restarts=values.number(found.get("Restarts")) or 0,
        nodes=nodes,
        array=_array(values.number(ids.get("ArrayJobId")), values.number(ids.get("ArrayTaskId"))),
        leader=values.number(ids.get("HetJobId") or ids.get("PackJobId")) or 0,
        batch=found.get("BatchFlag", "1") != "0",
        requeue=found.get("Requeue") == "1",
        submitted_unix_ns=values.unix_ns(found.get("SubmitTime")),
        started_unix_ns=values.unix_ns(found.get("StartTime")),
        ended_unix_ns=values.unix_ns(found.get("EndTime")),
        exit_code=values.exit_code(found.get("ExitCode")),
        account=values.text(found.get("Account")),
        user=values.text(found.get("UserId", "").partition("(")[0]),
        gpus_per_node=values.gpus_per_node(found.get("AllocTRES") or found.get("TRES", ""), asked, len(nodes)),
        note=values.text(note[1]) if note else "",
    )


def _fields(line: str) -> dict[str, str]:
    """Key=value pairs; of a key that comes twice the first counts. A name may hold blanks, `=`, and other keys' names:
    what a name pretends to be does not count."""
    named = _NAMED.match(line)
    rest = named[1] + named[3] if named else line
    marks = list(_KEY.finditer(rest))
    found = {"JobName": named[2] if named else ""}
    ends = [mark.start() for mark in marks[1:]] + [len(rest)]
    for mark, end in zip(marks, ends, strict=False):
        found.setdefault(mark[1], rest[mark.end() : end].strip())
    return found


def _array(job: int | None, task: int | None) -> tuple[int, int] | None:
    return (job, task) if job and task is not None else None


def from_json(answer: str) -> tuple[Job, ...]:
    """Of `squeue --json` or `scontrol show job --json`. Raises `SchedulerError`; an empty list is an answer."""
    return tuple(_from_item(item) for item in listed(answer, "jobs"))


def _from_item(item: Mapping[str, Any]) -> Job:
    job_id = values.number(item.get("job_id"))
    state = item.get("job_state")
    try:
        nodes = values.names(values.text(item.get("nodes")))
    except ValueError:
        nodes, job_id = (), None
    if job_id is None or not state:
        raise SchedulerError(
            f"the JSON list of jobs makes no sense: {str(item)[:80]!r}",
            retry=True,
            next_step="run it by hand as the aggregator's user; set scheduler.slurm.read = 'text'",
        )
    words = values.words(state)
    running = bool(HOLDING.intersection(words))
    return Job(
        id=job_id,
        name=item["name"]
        if isinstance(item.get("name"), str)
        else "",  # as its processes see it: a job may be called None
        state=words,
        restarts=values.number(item.get("restart_cnt")) or 0,
        nodes=nodes,
        array=_array(values.number(item.get("array_job_id")), values.number(item.get("array_task_id"))),
        leader=values.number(item.get("het_job_id")) or 0,
        batch=item.get("batch_flag") is not False,
        requeue=item.get("requeue") is True,
        submitted_unix_ns=values.unix_ns(item.get("submit_time")),
        started_unix_ns=values.unix_ns(item.get("start_time")),
        ended_unix_ns=None if running else values.unix_ns(item.get("end_time")),  # until then it is the time limit's
        exit_code=values.exit_code(item.get("exit_code")),
        account=values.text(item.get("account")),
        user=values.text(item.get("user_name")),
        gpus_per_node=values.gpus_per_node(
            values.text(item.get("tres_alloc_str")), values.text(item.get("tres_per_node")), len(nodes)
        ),
        note=values.text(item.get("admin_comment")),
    )
