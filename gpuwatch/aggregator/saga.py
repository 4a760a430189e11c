"""One action as a row of steps, with everything that must be known to go on with it after `kill -9`. Pure.

Each step is written down as intended before it begins and as done when its effect was seen; the effect's key is the
action's id and the step's name, so a step that is done again after a crash is the same step, not a second one.
"""

from __future__ import annotations

import msgspec

from gpuwatch.model.ledger import ActionStep
from gpuwatch.model.order import Order
from gpuwatch.model.plan import Action, Done
from gpuwatch.model.states import SICK, Health
from gpuwatch.model.verdict import Verdict

DRAIN, END_JOB, EMPTY = "drain", "end_job", "empty"
CREATE, JOIN, VALIDATE, ADOPT, RESUME, RELEASE = "create", "join", "validate", "adopt", "resume", "release"
REIMAGE = "reimage"
SIGN, ORDER = "sign", "order"
ENDED = "ended"  # restart_job: the attempt is over
UNDO_RESUME, UNDO_CREATE = "undo_resume", "undo_create"
UNDO_REPAIR = "undo_repair"  # it stays out, and is no longer being repaired

_EMPTYING = (DRAIN, END_JOB, EMPTY)
_ORDERS: dict[tuple[str, str], tuple[str, ...]] = {
    ("replace", "grow_first"): (*_EMPTYING, CREATE, JOIN, VALIDATE, ADOPT, RESUME, RELEASE),
    ("replace", "release_first"): (*_EMPTYING, RELEASE, CREATE, JOIN, VALIDATE, ADOPT, RESUME),
    ("reimage", ""): (*_EMPTYING, REIMAGE, JOIN, VALIDATE, RESUME),
    ("repair", ""): (*_EMPTYING, SIGN, ORDER, JOIN, VALIDATE, RESUME),
    ("drain", ""): _EMPTYING,
    ("restart_job", ""): (END_JOB, ENDED),
    ("resume", ""): (RESUME,),
}
_EMPTIED = frozenset({"replace", "reimage", "repair", "drain"})  # actions that begin with a node's jobs
_URGENT = frozenset({Health.DEAD, Health.DRIVER_FAILED})
ABOUT_THE_NEW = frozenset({JOIN, VALIDATE, ADOPT, UNDO_CREATE})
"""Steps that are told of the new machine, not of the one that is replaced."""


class Saga(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one action, stored at each boundary between steps."""

    action: Action
    steps: tuple[str, ...]
    at: int = 0  # index of the present step
    intended: bool = False  # the present step is written down: its effect may have happened
    outcome: str = ""  # done | failed | cancelled; empty while open
    because: str = ""  # why it ended so, or why it is being undone
    undoing: str = ""  # failed | cancelled: how it ends once what was begun is undone
    started_unix_ns: int = 0
    step_unix_ns: int = 0  # when the present step began
    new_machine: str = ""
    group: str = ""
    urgent: bool = False  # the node cannot work on, or its results may be wrong: do not wait for the drain deadline
    soft: bool = False  # let the jobs end by themselves
    acted: tuple[str, ...] = ()  # jobs that were signalled, requeued or cancelled
    drained: bool = False  # our drain stands in the scheduler
    passed: tuple[str, ...] = ()  # steps that are done
    boot: str = ""  # reimage, repair: the boot that is to end
    order: Order | None = None  # repair: as it is signed; none where it failed before any hands saw one

    @property
    def step(self) -> str:
        """The present step; empty when it has ended."""
        return "" if self.outcome else self.steps[self.at]

    def key(self, step: str = "") -> str:
        """Idempotency key of a step's effect."""
        return f"{self.action.action_id}/{step or self.step}"


def begin(
    action: Action, *, order: str, now_unix_ns: int, group: str = "", urgent: bool = False, soft: bool = False
) -> Saga:
    """The saga of an action. `order`: the pool's `replace_order`."""
    steps = _ORDERS[(action.kind, order if action.kind == "replace" else "")]
    return Saga(
        action=action,
        steps=steps,
        started_unix_ns=now_unix_ns,
        step_unix_ns=now_unix_ns,
        group=group,
        urgent=urgent,
        soft=soft,
    )


def passed(saga: Saga, now_unix_ns: int) -> Saga:
    """The present step is done: on to the next, or the end."""
    done = (*saga.passed, saga.step)
    if saga.at + 1 < len(saga.steps):
        return msgspec.structs.replace(saga, at=saga.at + 1, intended=False, step_unix_ns=now_unix_ns, passed=done)
    outcome = saga.undoing or "done"
    return msgspec.structs.replace(saga, outcome=outcome, step_unix_ns=now_unix_ns, passed=done)


def worsened(saga: Saga, verdict: Verdict | None, now_unix_ns: int) -> Saga:
    """What was begun for a milder fault goes on as the worse one asks that came meanwhile (NVIDIA/NVSentinel#1439): no
    drain deadline, no waiting for jobs that were left to end by themselves. It never becomes milder.
    """
    if verdict is None or verdict.health not in SICK or saga.undoing or saga.action.kind not in _EMPTIED:
        return saga
    urgent, soft = saga.urgent or is_urgent(verdict), saga.soft and verdict.soft
    if (urgent, soft) == (saga.urgent, saga.soft):
        return saga
    saga = msgspec.structs.replace(saga, urgent=urgent, soft=soft)
    if saga.step == EMPTY and not saga.acted and not soft:
        at = saga.steps.index(END_JOB)
        return msgspec.structs.replace(saga, at=at, intended=False, step_unix_ns=now_unix_ns)
    return saga


def is_urgent(verdict: Verdict) -> bool:
    """Whether the node cannot work on, or its results may be wrong."""
    return verdict.health in _URGENT or verdict.data_suspect


def undo(saga: Saga, how: str, because: str, now_unix_ns: int) -> Saga:
    """Give up (`how`: failed | cancelled) and take back what was begun, or end at once where there is nothing."""
    if saga.undoing:  # the undoing itself failed: that is the end, and said
        both = f"{saga.because}; and then: {because}"
        return msgspec.structs.replace(saga, outcome="failed", because=both, step_unix_ns=now_unix_ns)
    steps: tuple[str, ...] = ()
    if saga.new_machine and ADOPT not in saga.passed:
        steps = (UNDO_CREATE,)  # never leave a machine that is billed and used by nobody
    elif saga.drained and how == "cancelled":
        steps = (UNDO_RESUME,)
    elif saga.action.kind in ("reimage", "repair") and EMPTY in saga.passed:
        steps = (UNDO_REPAIR,)
    if not steps:
        return msgspec.structs.replace(saga, outcome=how, because=because, step_unix_ns=now_unix_ns)
    return msgspec.structs.replace(saga, steps=steps, at=0, undoing=how, because=because, step_unix_ns=now_unix_ns)


def step_line(saga: Saga, step: str, state: str, at_unix_ns: int, because: str = "") -> ActionStep:
    """The ledger's line about one step of it."""
    new = (step in ABOUT_THE_NEW or (step == CREATE and state == "done")) and saga.new_machine
    return ActionStep(
        at_unix_ns=at_unix_ns,
        action_id=saga.action.action_id,
        kind=saga.action.kind,
        step=step,
        state=state,  # type: ignore[arg-type]
        slot=saga.action.slot,
        machine=saga.new_machine if new else saga.action.machine,
        fault=saga.action.fault,
        because=because,
    )


def remembered(saga: Saga, started_monotonic_ns: int | None) -> Done:
    """What the planner must know of it."""
    action = saga.action
    never_given = saga.outcome == "failed" and saga.order is None
    return Done(
        action_id=action.action_id,
        kind=action.kind,
        slot=action.slot,
        machine=action.machine,
        cause=action.cause,
        fault=action.fault,
        started_unix_ns=saga.started_unix_ns,
        started_monotonic_ns=started_monotonic_ns,
        ended=bool(saga.outcome),
        outcome=saga.outcome,
        order="" if never_given else action.order,
    )
