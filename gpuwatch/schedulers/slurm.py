"""Slurm, through its own commands: it reads as JSON where the release offers it, else as text; it orders by `scontrol`.

A slot is a node's name in slurm.conf. A job's id here is its try, `JOBID.RESTARTS`, as the heartbeat derives it from
the job's environment: an order meant for one try never reaches the next. See docs/slurm.md.

Once and only once: a requeue shows as a higher restart count and a cancel as the job's end, so an order is not repeated
where its effect is seen. A signal leaves no such mark; it is noted in the job's AdminComment after it was sent. A crash
between the two sends it twice, because a warning lost does more harm than one repeated.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from gpuwatch.clock import Clock, SystemClock
from gpuwatch.errors import SchedulerError
from gpuwatch.schedulers import OUR_TAG, JobAction, SchedulerJob, SchedulerLeaf, SchedulerNode, SchedulerSnapshot
from gpuwatch.sdk.slurm_command import Commands, Refused
from gpuwatch.sdk.slurm_jobs import Job
from gpuwatch.sdk.slurm_nodes import AUTOMATIC, Node
from gpuwatch.sdk.slurm_source import History, Source
from gpuwatch.sdk.slurm_tries import Attempt, Tries

HISTORY_PAUSE_S = 10.0  # the database is not asked more often, however many jobs end
MAX_REASON = 240
_OURS = re.compile(rf"{OUR_TAG} [^\[\]]*\[([^\[\]]+)\](.*)", re.DOTALL)
UNLISTED = "unlisted"
"""Stands on a node that says it holds a job where none is listed on it: begun a moment ago, or hidden from us."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[scheduler.slurm]`."""

    configuration: str = ""  # path of slurm.conf; empty: SLURM_CONF, or where the commands look by themselves
    timeout_s: Annotated[float, msgspec.Meta(gt=0.0)] = 15.0  # for one command; then it is killed and the word unknown
    read: Literal["auto", "json", "text"] = "auto"
    run_is: Literal["name", "job"] = "name"  # what tries of one run have in common, as in its heartbeats
    signal: Annotated[str, msgspec.Meta(pattern="^[A-Z0-9]+$")] = "TERM"  # for job_action "signal"
    signal_to: Literal["steps", "batch", "all"] = "all"  # the steps, the batch script, or both
    accounting: Literal["auto", "yes", "no"] = "auto"  # ended jobs of the last day from sacct
    accounting_interval_s: Annotated[float, msgspec.Meta(gt=0.0)] = 60.0


class SlurmScheduler:
    """See the module. What it remembers in memory only makes its words better; every order is safe without."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._commands = Commands(timeout_s=settings.timeout_s, configuration=settings.configuration)
        self._source = Source(self._commands, settings.read)
        self._history = History(
            self._commands,
            clock,
            use=settings.accounting,
            interval_s=settings.accounting_interval_s,
            pause_s=HISTORY_PAUSE_S,
        )
        self._attempts = Tries(by_name=settings.run_is == "name")
        self._signalled: set[str] = set()  # action ids

    def snapshot(self) -> SchedulerSnapshot:
        jobs = self._source.jobs()  # before the nodes: a job that ends in between is still listed, none is missed
        nodes = self._source.nodes()
        ended = self._attempts.learn(jobs, nodes)
        tries = self._history.tries(self._attempts.newest, hurry=ended)
        here: dict[str, list[str]] = {}
        for job in jobs:
            for name in job.nodes if job.running or job.leaving else ():
                here.setdefault(name, []).append(job.attempt)
        return SchedulerSnapshot(
            nodes=tuple(_node_fact(node, here.get(node.name, [])) for node in nodes),
            jobs=tuple(_job_fact(attempt) for attempt in self._attempts.attempts(jobs, tries)),
        )

    def drain(self, slot: str, *, reason: str, action_id: str) -> None:
        node = self._source.node(slot)
        self._ours_or_nobodys(node)
        if node.drained and _action(node) == action_id:
            return
        printable = "".join(mark if mark.isprintable() else " " for mark in reason.removeprefix(OUR_TAG))
        because = " ".join(printable.translate({ord("["): "(", ord("]"): ")"}).split())[:MAX_REASON]
        words = f"{OUR_TAG} {because} [{action_id}]"
        self._commands.run("scontrol", "update", f"nodename={slot}", "state=drain", f"reason={words}")
        after = self._source.node(slot)  # Slurm cannot be told "only if nobody else did": so look who it is now
        self._ours_or_nobodys(after)
        if not after.drained or _action(after) != action_id:
            raise SchedulerError(f"the drain of {slot} did not take: {_told(after)}", retry=True)

    def resume(self, slot: str, *, action_id: str) -> None:  # noqa: ARG002
        node = self._source.node(slot)
        self._ours_or_nobodys(node)
        if not node.drained and not node.says("DOWN"):
            return
        if node.says("INVAL", "INVALID", "INVALID_REG"):
            raise SchedulerError(
                f"{slot} cannot be resumed yet: {_told(node)}",
                retry=True,
                why="its slurmd registered with less than slurm.conf promises: too few GPUs, CPUs or memory",
                next_step=f"see slurmctld's log for what {slot} lacks; the resume follows by itself once it is there",
            )
        if node.says("NOT_RESPONDING") or not _action(node):
            raise SchedulerError(
                f"{slot} cannot be resumed yet: {_told(node)}",
                retry=True,
                why="its slurmd does not answer the controller",
                next_step=f"start slurmd on the machine that fills {slot}; the resume follows by itself",
            )
        self._commands.run("scontrol", "update", f"nodename={slot}", "state=resume")
        after = self._source.node(slot)
        self._ours_or_nobodys(after)
        if after.drained or after.says("DOWN"):
            raise SchedulerError(f"the resume of {slot} did not take: {_told(after)}", retry=True)

    def act_on_job(self, job: str, action: JobAction, *, action_id: str) -> None:
        found = self._source.job(job)
        if found is None:
            return  # that try is over
        if action == "requeue":
            if not found.requeue or not found.batch:
                raise SchedulerError(
                    f"job {job} does not allow requeue",
                    why="it was submitted with --no-requeue" if found.batch else "only batch jobs can be requeued",
                    next_step="end it by hand, or choose another job_action in the pool's policy",
                )
            self._once(job, "scontrol", "requeue", found.address)
        elif action == "cancel":
            self._once(job, "scancel", found.address)
        else:
            self._signal(found, action_id)

    def adopt(self, slot: str, machine: str, *, action_id: str) -> None:
        """Nothing to do: Slurm finds a node by its name, and the new machine's slurmd registers under it."""

    def _ours_or_nobodys(self, node: Node) -> None:
        if (node.drained or node.taken_down) and not _action(node):
            raise SchedulerError(
                f"{node.name} is drained by another: {node.reason or 'no reason given'!r}"
                + (f" ({node.reason_by})" if node.reason_by else ""),
                why="a drain that is not ours is neither written over nor lifted",
                next_step="ask its owner, or resume the node by hand first",
            )

    def _once(self, job: str, *words: str) -> None:
        """An order that shows in the job. Slurm's no is no failure if the job has gone the way it should."""
        try:
            self._commands.run(*words)
        except Refused:
            if self._source.job(job) is not None:
                raise
        self._attempts.ordered(job)

    def _signal(self, found: Job, action_id: str) -> None:
        mark = f"{OUR_TAG} signalled ({action_id})"
        if mark in found.note:
            return
        if "SUSPENDED" in found.state:  # scancel would ask again and again until it is killed
            raise SchedulerError(
                f"job {found.attempt} is suspended: Slurm hands it no signal",
                retry=True,
                next_step="it gets the signal once it goes on; requeue and cancel reach it at once",
            )
        if action_id not in self._signalled:
            aim = {"steps": (), "batch": ("--batch",), "all": ("--full",)}[self._settings.signal_to]
            self._commands.run("scancel", f"--signal={self._settings.signal}", *aim, found.address)
            self._signalled.add(action_id)
            self._attempts.ordered(found.attempt)
        note = f"{found.note}; {mark}" if found.note else mark
        if self._source.job(found.attempt) is not None:  # it may have ended by that very signal
            self._commands.run("scontrol", "update", f"jobid={found.address}", f"admincomment={note}")


def _node_fact(node: Node, jobs: list[str]) -> SchedulerNode:
    here = tuple(dict.fromkeys(jobs or ([UNLISTED] if node.holds_job else [])))
    ours = bool(_action(node))
    reason = node.reason
    if node.rebooting and "reboot" not in reason.lower():
        reason = f"reboot ordered{': ' if reason else ''}{reason}"
    word = node.word(occupied=bool(here))
    if word == "down" and ours and not node.says("NOT_RESPONDING", "NO_RESPOND"):
        # Its slurmd is back; Slurm lets it return by itself only from its own reason, which our drain has replaced.
        word = "draining" if here else "drained"
    return SchedulerNode(
        slot=node.name,
        state=word,
        reason=reason,
        drain_owner=("gpuwatch" if ours else "foreign") if node.drained or node.taken_down else "",
        jobs=here,
    )


def _job_fact(attempt: Attempt) -> SchedulerJob:
    return SchedulerJob(
        job=attempt.attempt,
        run=attempt.run,
        attempt=attempt.attempt,
        state=attempt.state,
        slots=attempt.nodes,
        started_unix_ns=attempt.started_unix_ns,
        ended_unix_ns=attempt.ended_unix_ns,
        exit_code=attempt.exit_code,
        end_cause=attempt.cause,
        planned=attempt.planned,
        may_requeue=attempt.may_requeue,
        may_cancel=True,  # no job of Slurm's forbids it: the pool's policy alone says whether
        team=attempt.account or None,
        user=attempt.user or None,
        gpus_per_slot=attempt.gpus_per_node,
        suspended=attempt.suspended,
    )


def _action(node: Node) -> str:
    """The action that drained it, out of our reason; empty: not our drain. Slurm may add words of its own to ours; a
    person who adds theirs has taken it over."""
    found = _OURS.fullmatch(node.reason)
    added = found[2].lstrip(" ,:;").lower() if found else ""
    return found[1] if found and (not added or added.startswith(AUTOMATIC)) else ""


def _told(node: Node) -> str:
    return "+".join(node.state) + (f" ({node.reason})" if node.reason else "")


def _open(settings: Settings) -> SlurmScheduler:
    return SlurmScheduler(settings, SystemClock())


SCHEDULER = SchedulerLeaf(settings=Settings, open=_open, by_name=True)
