"""Every try of every job, out of what the controller shows, and the little that must be remembered for it.

The controller shows only a job's present try. That an earlier one ended is seen from the restart count; why it ended,
from the nodes that it ran on: was one of them down, it was the node. So what ran where is kept for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gpuwatch.sdk.slurm_history import Try
from gpuwatch.sdk.slurm_jobs import Job
from gpuwatch.sdk.slurm_nodes import Node

EARLIER_TRIES = 3  # of a requeued job: more than can begin and end between two answers
REMEMBERED = 50_000
NAME_BYTES = 127  # so much of a run's name has room in its heartbeat file


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try. `planned`: its end was ordered. `nodes` is empty where nobody remembers them."""

    attempt: str
    run: str
    state: Literal["pending", "running", "ended"]
    nodes: tuple[str, ...] = ()
    started_unix_ns: int | None = None
    ended_unix_ns: int | None = None
    exit_code: int | None = None
    cause: str = ""
    planned: bool = False
    may_requeue: bool = False
    account: str = ""
    user: str = ""
    gpus_per_node: int | None = None
    suspended: bool = False


class Tries:
    """`learn` each answer, then ask for `attempts`. Without its memory it knows less, and nothing wrong."""

    def __init__(self, *, by_name: bool) -> None:
        self._by_name = by_name
        self._seen: dict[str, Job] = {}  # attempt -> as it last ran
        self._live: set[str] = set()  # attempts that ran at the last answer
        self._struck: set[str] = set()  # attempts that ran on a node which was then seen down
        self._ordered: dict[str, None] = {}  # attempts that we told to end, seen at work by us or not
        self._newest: dict[int, tuple[int, bool]] = {}

    @property
    def newest(self) -> Mapping[int, tuple[int, bool]]:
        """Job id -> the restart count of its newest known try, and whether that has ended."""
        return self._newest

    def ordered(self, attempt: str) -> None:
        """We told this try to end."""
        self._ordered[attempt] = None

    def learn(self, jobs: Iterable[Job], nodes: Iterable[Node]) -> bool:
        """Take in one answer. True: a try has ended since the last one."""
        fresh = False
        before, self._live = self._live, set()
        for job in jobs:
            if job.running:
                other = self._seen.pop(job.attempt, None)  # the newest last
                if other is None or job.attempt not in self._live:
                    self._seen[job.attempt] = job
                else:  # another component of the same heterogeneous job
                    both = dict.fromkeys((*other.nodes, *job.nodes))
                    self._seen[job.attempt] = replace(other, nodes=tuple(both))
                self._live.add(job.attempt)
            known = self._newest.pop(job.id, None)
            self._newest[job.id] = now = (job.restarts, job.ended is not None)
            fresh = fresh or known not in (None, now)
        down = {node.name for node in nodes if node.says("DOWN")}
        known_now = (before | self._live) & self._seen.keys()
        self._struck |= {name for name in known_now if down.intersection(self._seen[name].nodes)}
        for attempt in list(self._seen)[: max(0, len(self._seen) - REMEMBERED)]:
            del self._seen[attempt]
        for attempt in list(self._ordered)[: max(0, len(self._ordered) - REMEMBERED)]:
            del self._ordered[attempt]
        for number in list(self._newest)[: max(0, len(self._newest) - REMEMBERED)]:
            del self._newest[number]
        self._struck &= self._seen.keys()
        return fresh

    def attempts(self, jobs: Iterable[Job], history: Iterable[Try]) -> tuple[Attempt, ...]:
        """Waiting, at work, and ended within the last day. Components of one heterogeneous job are one try."""
        found: dict[str, Attempt] = {}
        told = set()
        for item in history:
            told.add(item.job.attempt)
            _add(found, self._attempt(item.job, "ended", item.cause, item.planned))
        for job in jobs:
            ended = job.ended
            if ended is not None:
                if job.attempt not in told:
                    _add(found, self._attempt(job, "ended", *ended))
            else:  # what leaves its nodes does not always say yet whether for the queue or for good
                _add(found, self._attempt(job, "running" if job.running else "pending"))
            if job.running or (job.waiting and not job.leaving):  # until it has left, its times are those of before
                for restarts in range(max(0, job.restarts - EARLIER_TRIES), job.restarts):
                    earlier = self._earlier(job, restarts)
                    if earlier.attempt not in told:
                        found.setdefault(earlier.attempt, earlier)
        return tuple(found.values())

    def _run(self, job: Job) -> str:
        name = job.name.encode("utf-8", "replace")[:NAME_BYTES].decode("utf-8", "ignore") if self._by_name else ""
        return name or str(job.leader or job.id)

    def _attempt(
        self, job: Job, state: Literal["pending", "running", "ended"], cause: str = "", planned: bool = False
    ) -> Attempt:
        return Attempt(
            attempt=job.attempt,
            run=self._run(job),
            state=state,
            nodes=job.nodes,
            started_unix_ns=None if state == "pending" else job.started_unix_ns,  # of one that waits it is a plan
            ended_unix_ns=job.ended_unix_ns if state == "ended" else None,
            exit_code=job.exit_code if state == "ended" else None,
            cause=cause,
            planned=planned or (state == "ended" and job.attempt in self._ordered),
            may_requeue=job.requeue and job.batch,
            account=job.account,
            user=job.user,
            gpus_per_node=job.gpus_per_node,
            suspended=job.suspended,
        )

    def _earlier(self, job: Job, restarts: int) -> Attempt:
        """A try before the present one. It ended when the job was queued again; of one before that nobody knows."""
        attempt = f"{job.leader or job.id}.{restarts}"
        seen = self._seen.get(attempt)
        struck, ordered = attempt in self._struck, attempt in self._ordered
        return Attempt(
            attempt=attempt,
            run=self._run(job),
            state="ended",
            nodes=() if seen is None else seen.nodes,
            started_unix_ns=None if seen is None else seen.started_unix_ns,
            ended_unix_ns=job.submitted_unix_ns if restarts == job.restarts - 1 else None,
            cause="node_failed" if struck and not ordered else "requeued",
            planned=ordered or (seen is not None and not struck),  # Slurm itself requeues only for a failed node
            account=job.account,
            user=job.user,
            gpus_per_node=None if seen is None else seen.gpus_per_node,
        )


def _add(found: dict[str, Attempt], new: Attempt) -> None:
    """Another component of the same heterogeneous job adds its nodes; while one of them runs, the job runs."""
    old = found.get(new.attempt)
    if old is not None:
        order = ("running", "pending", "ended")
        first, second = sorted((old, new), key=lambda item: order.index(item.state))
        new = replace(first, nodes=tuple(dict.fromkeys((*old.nodes, *new.nodes))))
        if first.state == "ended" and second.cause != "completed" and first.cause == "completed":
            new = replace(second, nodes=new.nodes)
    found[new.attempt] = new
