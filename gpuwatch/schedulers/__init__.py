"""PLAN <-> SCHEDULER. One per file; leaf line `SCHEDULER = SchedulerLeaf(...)`.

In: slots, job ids, an action id. Out: what the scheduler says, with whose drain it is.
Never write over another's drain reason; resume only our own. A failed or empty answer raises: unknown is not idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

S = TypeVar("S")

OUR_TAG = "gpuwatch:"  # every drain reason of ours begins with it

NodeState = Literal["idle", "allocated", "draining", "drained", "down", "unknown"]
JobAction = Literal["signal", "requeue", "cancel"]


class SchedulerNode(msgspec.Struct, frozen=True, kw_only=True):
    """One slot as the scheduler sees it."""

    slot: str
    state: NodeState
    reason: str = ""
    drain_owner: Literal["", "gpuwatch", "foreign"] = ""
    jobs: tuple[str, ...] = ()
    machine: str = ""  # where the scheduler knows which machine fills the slot


class SchedulerJob(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one run, live or ended within the last day."""

    job: str  # the scheduler's id
    run: str  # the same over requeues
    attempt: str  # new at each start
    state: Literal["pending", "running", "ended"]
    slots: tuple[str, ...] = ()
    started_unix_ns: int | None = None
    ended_unix_ns: int | None = None
    exit_code: int | None = None
    end_cause: str = ""  # completed | requeued | cancelled | failed | node_failed | time_limit | …
    planned: bool = False  # the end was ordered before it happened, by owner, operator or plan
    may_requeue: bool = False
    may_signal: bool = True
    may_cancel: bool = False
    team: str | None = None
    user: str | None = None
    gpus_per_slot: int | None = None
    suspended: bool = False  # it runs, holds its slots, and stands still by somebody's order


class SchedulerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the scheduler lists."""

    nodes: tuple[SchedulerNode, ...]
    jobs: tuple[SchedulerJob, ...]


class Scheduler(Protocol):
    """One cluster's scheduler."""

    def snapshot(self) -> SchedulerSnapshot:
        """All nodes and jobs. Raises `SchedulerError`; never answers empty for "could not ask"."""

    def drain(self, slot: str, *, reason: str, action_id: str) -> None:
        """Take no new work. Reason gets our tag. A slot that another drained is left alone and raises."""

    def resume(self, slot: str, *, action_id: str) -> None:
        """Take work again. Only our own drains; a foreign or a changed one raises."""

    def act_on_job(self, job: str, action: JobAction, *, action_id: str) -> None:
        """Signal, requeue or cancel, never beyond what the job allows. The same action id again does nothing."""

    def adopt(self, slot: str, machine: str, *, action_id: str) -> None:
        """From now on this machine fills the slot (a no-op where the scheduler finds it by name)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLeaf(Generic[S]):
    """A scheduler's door: its settings, and how to open it."""

    settings: type[S]
    open: Callable[[S], Scheduler]
    proven: bool = True
    by_name: bool = False  # work goes to whichever machine bears the slot's name: the old one must be gone before
