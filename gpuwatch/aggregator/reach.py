"""What a step of an action gets, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuwatch.aggregator import saga as s
from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.guard import Guard
from gpuwatch.aggregator.order_desk import OrderDesk
from gpuwatch.aggregator.saga import Saga
from gpuwatch.aggregator.scene import Scene
from gpuwatch.aggregator.witnesses import Witness
from gpuwatch.clouds import Cloud, CloudSnapshot
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.policy import Policy
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.schedulers import Scheduler, SchedulerSnapshot

_REPLACES = frozenset({s.CREATE, s.RELEASE, s.REIMAGE, s.SIGN, s.ORDER})  # steps that mode `drain` does not go to


class Held(Exception):
    """The call may not be made now; the reason is its text."""


@dataclass(frozen=True, slots=True)
class Done:
    """The step's effect was seen."""

    changes: Mapping[str, Any] = field(default_factory=dict)  # fields of the saga
    lifecycles: tuple[tuple[str, Lifecycle], ...] = ()  # machine -> what it is from now on
    because: str = ""
    repaired: tuple[str, ...] = ()  # machines whose kernel events so far are history


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not yet."""

    because: str
    person: bool = False  # for good, until somebody acts: it is written down and paged for


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot be done: give up and undo."""

    because: str
    changes: Mapping[str, Any] = field(default_factory=dict)  # fields of the saga


@dataclass(frozen=True, slots=True)
class Cancelled:
    """It need not or must not be done any more: undo."""

    because: str
    hands_off: bool = False  # somebody else took over this slot: leave it to them


Result = Done | Waiting | Failed | Cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What actions may look at and call, for the life of the process."""

    fleet: Fleet
    guard: Guard
    scene: Callable[[], Scene]
    policies: Mapping[str, Policy]
    desk: OrderDesk = field(default_factory=OrderDesk)
    scheduler: Scheduler | None = None
    cloud: Cloud | None = None
    scheduler_witness: Witness[SchedulerSnapshot] | None = None
    cloud_witness: Witness[CloudSnapshot] | None = None

    def policy(self, saga: Saga) -> Policy:
        """The policy of the action's pool, as it is now."""
        return self.policies.get(saga.action.pool, Policy())


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """One step's reach, and the moment."""

    saga: Saga
    now: Moment
    began: Moment  # when this step began in this process, holds not counted
    reach: Reach
    scene: Scene

    @property
    def policy(self) -> Policy:
        """The policy of the action's pool."""
        return self.reach.policy(self.saga)

    def allow(self, *, harmful: bool) -> None:
        """Raise `Held` unless a call may be made now."""
        action = self.saga.action
        objection = self.reach.guard.objection(
            action.slot, action.pool, harmful=harmful, replaces=self.saga.step in _REPLACES
        )
        view = self.scene.views.get(action.machine)
        told = None if view is None or not harmful else view.facts.get(HandsFacts)
        if not objection and told is not None and told.held:
            objection = f"on the node itself: {told.held[:200]}"
        if objection:
            raise Held(objection)

    def elapsed_s(self) -> float:
        """Seconds in this step."""
        return self.now.age_s(self.began.monotonic_ns)

    def recovered(self) -> bool:
        """The node that was sick is well again."""
        return self.scene.health(self.saga.action.machine) == Health.HEALTHY

    def snapshot(self) -> SchedulerSnapshot | None:
        """The scheduler's answer to a question put after this step began; None: not yet."""
        witness = self.reach.scheduler_witness
        return None if witness is None else witness.fresh(self.began.monotonic_ns)

    def hands(self) -> Scheduler:
        """The scheduler; a saga that needs one is not begun without."""
        if self.reach.scheduler is None:
            raise Held("there is no [scheduler] in the settings")
        return self.reach.scheduler

    def provider(self) -> Cloud:
        """The cloud, likewise."""
        if self.reach.cloud is None:
            raise Held("there is no [cloud] in the settings")
        return self.reach.cloud

    def look_at_cloud(self) -> None:
        """Billing began or ended: know it soon."""
        if self.reach.cloud_witness is not None:
            self.reach.cloud_witness.poke()
