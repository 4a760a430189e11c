"""What waits for a person: nothing goes on until somebody acts. Each with its reason, since when, and who waits.

Not what a person wants so (the HOLD file, a hold, a foreign drain, modes that only watch), nor what passes by itself (a
cool-down, the next checkpoint), nor what has an alert of its own (our blindness, a shared cause).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from gpuwatch.aggregator.saga import EMPTY, END_JOB, Saga
from gpuwatch.aggregator.scene import Scene, Stage
from gpuwatch.aggregator.standing import Standing
from gpuwatch.clock import Clock
from gpuwatch.errors import StoreError
from gpuwatch.model.incident import Incident
from gpuwatch.model.ledger import ActionStep, HoldNoted, LedgerLine
from gpuwatch.model.plan import Action, Hold
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import OUT, Health, Lifecycle

KINDS = ("hold", "action_step")
JOB, APPROVAL, FAILED, UNUSED = "job", "approval", "failed", "unused"
OF_POOL = frozenset({"budget", "domain", "group_owner", "inspector"})
"""Holds whose cause is one for the whole pool: one need, however many nodes wait."""
PASSING_S = {"budget": 300.0, "domain": 300.0, UNUSED: 1800.0}
"""What may pass by itself, since a node that is out may soon be back: a need only after so long."""
OF_NODE = frozenset(
    ("person", "attempts", "quarantined", "expired", "drained", "job_action", "drain_unknown", "repair_unproven")
)
NOT_NEEDED = frozenset(
    {
        *("observe", "recommend"),  # there a person does everything, and the incident's own alert says what
        *("hold_file", "human_hold", "foreign_drain", "hands_off"),  # a person wants it so
        *("cool_down", "checkpoint", "in_progress", "maintenance"),  # it passes by itself
        *("blind", "shared_cause"),  # these have alerts of their own
        *("absent", "not_in_slot"),  # nothing runs there and nothing is lost: its incident tells
    }
)
FRESH_S = 1.0
LINGER_S = 30.0  # a hold that is gone for a tick is no end of it
_WATCHING = (Mode.OBSERVE, Mode.RECOMMEND)


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that somebody must decide or do."""

    reason: str
    pool: str
    because: str
    slots: tuple[str, ...]  # who waits: slots, or `run:<run>`
    fault: str = ""  # empty where the reason is the pool's
    faults: tuple[str, ...] = ()  # of all who wait
    machine: str = ""
    jobs: tuple[str, ...] = ()  # on it, where their end is waited for
    action_id: str = ""  # what is to be approved
    out: tuple[str, ...] = ()  # slots of the pool that are out, where the budget is used up by them
    since_unix_ns: int = 0

    def key(self) -> tuple[str, str]:
        """What makes it the same need, over restarts too."""
        return (self.reason, self.fault or (f"pool {self.pool}" if self.reason in OF_POOL else self.slots[0]))


class Follows(Protocol):
    """The ledger, as one who follows it sees it."""

    def last_row_id(self) -> int:
        """Where the ledger ends."""

    def lines_of(self, *kinds: str) -> list[LedgerLine]:
        """Every line of these kinds."""

    def lines_after(self, row_id: int) -> tuple[int, list[LedgerLine]]:
        """What was written after a row."""


class Knows(Protocol):
    """Whoever carries actions out."""

    def sagas(self) -> list[Saga]:
        """Every action that is remembered, oldest first."""


class Told(Protocol):
    """Whoever keeps the incidents."""

    def get(self, fault: str) -> Incident | None:
        """One incident."""


class Needs:
    """Worked out when asked, at most once a second. Safe to ask from any thread."""

    def __init__(
        self,
        *,
        ledger: Follows,
        stage: Stage,
        executor: Knows,
        book: Told,
        policies: Mapping[str, Policy],
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._stage = stage
        self._executor = executor
        self._book = book
        self._policies = policies
        self._clock = clock
        self._lock = threading.Lock()
        self._row_id = ledger.last_row_id()
        self._held: dict[str, dict[str, HoldNoted]] = {}  # fault -> reason of its hold now -> the first line of it
        self._moved: dict[str, int] = {}  # fault -> its last step
        self._apply(ledger.lines_of(*KINDS))
        self._standing: Standing[tuple[str, str], Need] = Standing(LINGER_S)
        self._first: dict[tuple[str, str], int] = {}  # when it was first told, of what has no date of its own
        self._made_ns: int | None = None
        self._needs: tuple[Need, ...] = ()

    def now(self) -> tuple[Need, ...]:
        """Oldest first. While the ledger cannot be read: as of before."""
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            if self._made_ns is None or now_ns - self._made_ns >= FRESH_S * 1e9:
                with contextlib.suppress(StoreError):  # the page and the metrics must tell of a failing ledger, too
                    self._row_id, lines = self._ledger.lines_after(self._row_id)
                    self._apply(lines)
                scene = self._stage.scene
                if not scene.blind_because:  # while we doubt ourselves everything is held for that: nothing has moved
                    self._needs = self._made(scene, now_ns)
                self._made_ns = now_ns
            return self._needs

    def _made(self, scene: Scene, now_ns: int) -> tuple[Need, ...]:
        sagas = self._executor.sagas()
        found = [*self._jobs(scene, sagas), *_asked(scene), *self._holds(scene)]
        named = {fault for need in found for fault in need.faults}
        found += [need for need in self._failures(sagas) if need.fault not in named]
        found += self._unused(scene, sagas)
        moving = {saga.action.fault for saga in sagas if not saga.outcome}
        standing = self._standing.look(
            {need.key(): need for need in reversed(found)},
            now_ns,
            after_s=lambda key: PASSING_S.get(key[0], 0.0),
            over=lambda key: key[1] in moving or self._closed(key[1]),
        )
        self._first = {need.key(): self._first.get(need.key(), self._clock.unix_ns()) for need in standing}
        return tuple(sorted(map(self._dated, standing), key=lambda need: (need.since_unix_ns, need.key())))

    def _jobs(self, scene: Scene, sagas: Iterable[Saga]) -> Iterable[Need]:
        """Actions that wait for a job which gpuwatch may not end: their step says so in the ledger."""
        for saga in sagas:
            action = saga.action
            held = self._held.get(action.fault, {}).get(JOB)
            if saga.outcome or saga.step not in (END_JOB, EMPTY) or held is None:
                continue
            view = scene.views.get(action.machine)
            jobs = view.scheduler.jobs if view is not None and view.scheduler is not None else ()
            yield _need(JOB, action, held.because, jobs=tuple(jobs))

    def _failures(self, sagas: Iterable[Saga]) -> Iterable[Need]:
        """Actions that failed, until the next is begun or the incident is over."""
        for fault, saga in {saga.action.fault: saga for saga in sagas}.items():
            if saga.outcome == FAILED and not self._closed(fault):
                words = f"{saga.action.kind.replace('_', ' ')} failed: {saga.because}"
                yield _need(FAILED, saga.action, words)

    def _unused(self, scene: Scene, sagas: Iterable[Saga]) -> Iterable[Need]:
        """Machines that are paid for, and that nobody has put to work: what a replacement left behind (Azure's
        CycleCloud, ParallelCluster), or what another hand has started."""
        busy = {saga.action.slot for saga in sagas if not saga.outcome}
        for view in scene.views.values():
            watched = self._policies.get(view.pool, Policy()).mode in _WATCHING
            paid = view.cloud is not None and view.cloud.state in ("running", "starting")
            idle = view.lifecycle is Lifecycle.PROVISIONING and view.slot not in busy
            well = scene.health(view.machine) == Health.HEALTHY
            if idle and paid and not watched and (well or not view.fills_slot):
                why = "the scheduler gives it no work" if view.fills_slot else "another machine fills that slot"
                yield Need(
                    reason=UNUSED,
                    pool=view.pool,
                    because=f"{view.machine} of {view.slot} is paid for, and {why}",
                    slots=(view.slot,),
                    machine=view.machine,
                )

    def _holds(self, scene: Scene) -> Iterable[Need]:
        of_pool: dict[tuple[str, str], list[Hold]] = {}
        for hold in scene.plan.holds:
            if self._policies.get(hold.pool, Policy()).mode in _WATCHING:
                continue  # there a person does everything, and the incident's own alert says what
            if hold.reason in OF_POOL:
                of_pool.setdefault((hold.reason, hold.pool), []).append(hold)
            elif hold.reason in OF_NODE:
                jobs = tuple(run.attempt for run in scene.run_verdicts if hold.slot == f"run:{run.run}")
                yield _need(hold.reason, hold, hold.because, jobs=jobs)
        for (reason, pool), holds in of_pool.items():
            out = {view.slot for view in scene.views.values() if view.pool == pool and view.lifecycle in OUT}
            yield Need(
                reason=reason,
                pool=pool,
                because=holds[0].because,
                slots=tuple(sorted({hold.slot for hold in holds})),
                faults=tuple(sorted({hold.fault for hold in holds if hold.fault})),
                out=tuple(sorted(out)) if reason in PASSING_S else (),
            )

    def _closed(self, fault: str) -> bool:
        incident = self._book.get(fault)
        return incident is not None and incident.closed_unix_ns is not None

    def _dated(self, need: Need) -> Need:
        """With when it began: as the ledger says, so that a restart changes nothing."""
        held = [
            line.at_unix_ns for fault in need.faults if (line := self._held.get(fault, {}).get(need.reason)) is not None
        ]
        moved = [self._moved[fault] for fault in need.faults if fault in self._moved]
        opened = [found.detected_unix_ns for fault in need.faults if (found := self._book.get(fault)) is not None]
        since = min(held, default=0) or max(moved, default=0) or min(opened, default=0) or self._first[need.key()]
        return msgspec.structs.replace(need, since_unix_ns=since)

    def _apply(self, lines: Iterable[LedgerLine]) -> None:
        for line in lines:
            if isinstance(line, ActionStep):
                self._held.pop(line.fault, None)
                self._moved[line.fault] = line.at_unix_ns
            elif isinstance(line, HoldNoted) and line.fault:
                before = self._held.get(line.fault, {})
                kept = {JOB, line.reason} if line.reason != "hands_off" else {line.reason}
                now = {reason: first for reason, first in before.items() if reason in kept}
                first = now.get(line.reason, line)
                now[line.reason] = msgspec.structs.replace(first, because=line.because)
                self._held[line.fault] = now


def _asked(scene: Scene) -> Iterable[Need]:
    for action in scene.plan.actions:
        if action.kind == "ask_approval":
            yield _need(APPROVAL, action, action.because, action_id=action.action_id)


def _need(reason: str, of: Action | Hold, because: str, *, jobs: tuple[str, ...] = (), action_id: str = "") -> Need:
    return Need(
        reason=reason,
        pool=of.pool,
        because=because,
        slots=(of.slot,),
        fault=of.fault,
        faults=(of.fault,) if of.fault else (),
        machine=of.machine,
        jobs=jobs,
        action_id=action_id,
    )
