"""What knows, judges and acts, joined: no server, no page, and nothing runs before somebody starts it.

The tests tick the same parts by hand, with another clock, cloud and scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuwatch.aggregator.beginning import restored_fleet
from gpuwatch.aggregator.brain import Brain
from gpuwatch.aggregator.examiner import Examiner
from gpuwatch.aggregator.executor import Executor
from gpuwatch.aggregator.expected import expected_gpus
from gpuwatch.aggregator.grants import Grants
from gpuwatch.aggregator.guard import Guard
from gpuwatch.aggregator.incidents import IncidentBook
from gpuwatch.aggregator.ingest import Ingest, Keeper
from gpuwatch.aggregator.jobs import Jobs
from gpuwatch.aggregator.journal import Journal
from gpuwatch.aggregator.lives import Lives
from gpuwatch.aggregator.order_desk import OrderDesk
from gpuwatch.aggregator.people import People
from gpuwatch.aggregator.reach import Reach
from gpuwatch.aggregator.scene import Scene, Stage
from gpuwatch.aggregator.senses import Senses
from gpuwatch.aggregator.settings import Settings
from gpuwatch.aggregator.witnesses import Witness
from gpuwatch.clock import Clock
from gpuwatch.clouds import Cloud, CloudSnapshot
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import PlanMemory
from gpuwatch.runs.track import from_ledger
from gpuwatch.schedulers import Scheduler, SchedulerSnapshot
from gpuwatch.sdk.ed25519 import Signer
from gpuwatch.store.sqlite import Store

RUN_KINDS = (
    "attempt_started",
    "attempt_ended",
    "member_left",
    "step_ended",
    "phase_began",
    "phase_ended",
    "evidence_lost",
    "evidence_back",
    "checkpoint_saved",
    "run_closed",
)


@dataclass(frozen=True)
class Hands:
    """Scheduler and cloud, each with the witness that asks it; None where the settings name none."""

    scheduler: Scheduler | None = None
    cloud: Cloud | None = None
    scheduler_witness: Witness[SchedulerSnapshot] | None = None
    cloud_witness: Witness[CloudSnapshot] | None = None

    @property
    def witnesses(self) -> tuple[Witness[SchedulerSnapshot] | Witness[CloudSnapshot], ...]:
        """Those that there are."""
        return tuple(w for w in (self.scheduler_witness, self.cloud_witness) if w is not None)


def open_hands(settings: Settings, clock: Clock) -> Hands:
    """The leaves that the settings name. Raises what they raise."""
    scheduler: Scheduler | None = None
    cloud: Cloud | None = None
    scheduler_witness: Witness[SchedulerSnapshot] | None = None
    cloud_witness: Witness[CloudSnapshot] | None = None
    if (hand := settings.scheduler) is not None:
        scheduler = hand.leaf.open(hand.settings)
        scheduler_witness = Witness("scheduler", scheduler.snapshot, hand.interval_s, clock)
    if (hand := settings.cloud) is not None:
        cloud = hand.leaf.open(hand.settings)
        cloud_witness = Witness("cloud", cloud.snapshot, hand.interval_s, clock)
    return Hands(scheduler, cloud, scheduler_witness, cloud_witness)


class Core:
    """From a report to an action. What an earlier process knew is taken from the store."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        hands: Hands,
        *,
        secret: bytes,
        keeper: Keeper,
        clock: Clock,
        lag_s: Callable[[], float],
    ) -> None:
        """`lag_s`: how far the server is behind. Raises `StoreError`, and what a wrong key raises."""
        now = Moment(clock.unix_ns(), clock.monotonic_ns())
        self.stage = stage = Stage(Scene(now=now))
        self.fleet = fleet = restored_fleet(settings, store, now)
        self.book = IncidentBook(store)
        self.people = People(store, clock)
        self.guard = Guard(
            hold_file=settings.server.hold_file,
            policies=settings.policies(),
            human_holds=self.people.holds,
            scene=lambda: stage.scene,
        )
        key_file = settings.order_key_file
        self.desk = desk = OrderDesk(None if key_file is None else Signer(key_file))
        reach = Reach(
            fleet=fleet,
            desk=desk,
            guard=self.guard,
            scene=lambda: stage.scene,
            policies=settings.policies(),
            scheduler=hands.scheduler,
            cloud=hands.cloud,
            scheduler_witness=hands.scheduler_witness,
            cloud_witness=hands.cloud_witness,
        )
        self.executor = Executor(store=store, reach=reach, people=self.people, clock=clock, changed=self.wake)
        self.grants = Grants(
            secret=secret,
            store=store,
            fleet=fleet,
            stage=stage,
            guard=self.guard,
            policies=settings.policies(),
            memory=lambda: PlanMemory(actions=self.executor.memory()),
            clock=clock,
        )
        report_rules = {name: rule for name, rule in settings.rules.items() if rule[0].on == "report"}
        examiner = Examiner(report_rules)
        self.ingest = ingest = Ingest(
            fleet=fleet,
            secret=secret,
            keeper=keeper,
            examine=examiner.findings,
            clock=clock,
            wake=self.wake,
            replies=desk.replies,
        )
        self.journal = Journal(store, now)
        jobs = Jobs(
            fleet.machine_at,
            lambda slot: expected_gpus(settings.pools[settings.place(slot).pool]),
            store.lines_of("attempt_started", "node_held", "node_let_go"),
        )
        senses = Senses(
            settings=settings,
            clock=clock,
            started=now,
            fleet=fleet,
            journal=self.journal,
            book=self.book,
            jobs=jobs,
            lives=Lives(settings, store.lines_of("life_started", "life_ended")),
            runs=from_ledger(store.lines_of(*RUN_KINDS)),
            executor=self.executor,
            scheduler_witness=hands.scheduler_witness,
            cloud_witness=hands.cloud_witness,
            lag_s=lag_s,
            heard_monotonic_ns=lambda: ingest.last_heard_monotonic_ns,
            order_key=desk.key,
        )
        self.brain = Brain(
            settings=settings,
            clock=clock,
            senses=senses,
            fleet=fleet,
            journal=self.journal,
            book=self.book,
            run_is_open=jobs.is_open,
            people=self.people,
            guard=self.guard,
            executor=self.executor,
            granted=self.grants.slots,
            stage=stage,
        )

    def wake(self) -> None:
        """Something was seen or done that should not wait for the next tick."""
        self.brain.wake()
