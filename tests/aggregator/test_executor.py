"""Actions are carried out once, whatever happens in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.aggregator.executor import Executor
from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.guard import Guard
from gpuwatch.aggregator.heard import Heard, Received
from gpuwatch.aggregator.people import People
from gpuwatch.aggregator.reach import Reach
from gpuwatch.aggregator.scene import Scene
from gpuwatch.aggregator.settings import ClusterSettings, Place, PoolSettings, ServerSettings, Settings
from gpuwatch.aggregator.witnesses import Witness
from gpuwatch.errors import CloudError, StoreError
from gpuwatch.model.ledger import ActionStep, HoldNoted, LifecycleChanged
from gpuwatch.model.plan import Action
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.run import RunView
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.verdict import RunVerdict, Verdict
from gpuwatch.model.view import NodeView
from gpuwatch.model.wire import Envelope
from gpuwatch.store.sqlite import Store
from tests.fakes import node_view
from tests.fakes_hands import FakeClock, FakeCloud, FakeScheduler

SLOT = "gpu01"
OLD = "old-1"
POLICY = Policy(mode=Mode.REPLACE, job_action="requeue", drain_deadline_s=60, empty_deadline_s=30, join_deadline_s=120)


class Killed(BaseException):
    """kill -9 at this instant."""


class Dying:
    """Stands before an object and dies at the boundary that the test chose: before a call, or after it."""

    def __init__(self, inner: Any, boundary: Callable[[str], None]) -> None:
        self._inner = inner
        self._boundary = boundary

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name in ("snapshot", "sagas", "approvals", "human_holds", "lines_of"):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._boundary(f"before {name}")
            result = found(*args, **kwargs)
            self._boundary(f"after {name}")
            return result

        return call


class World:
    """What outlives an aggregator (cloud, scheduler, disk), and the aggregator that is running now."""

    def __init__(self, folder: Path, policy: Policy = POLICY) -> None:
        self.folder = folder
        self.policy = policy
        self.clock = FakeClock()
        self.cloud = FakeCloud(self.clock)
        self.cloud.add(OLD, SLOT)
        self.scheduler = FakeScheduler((SLOT, "gpu02"))
        self.scheduler.machines[SLOT] = OLD
        self.scheduler.down.add(SLOT)
        self.scheduler.add_job("run.1", (SLOT, "gpu02"))
        self.old_health = Health.DEAD
        self.old_soft = False
        self.new_health = Health.HEALTHY
        self.new_reports = True
        self.blind = ""
        self.runs: tuple[RunView, ...] = ()
        self.views: dict[str, NodeView] = {}
        self.run_verdicts: tuple[RunVerdict, ...] = ()
        self.boundary: Callable[[str], None] = lambda _where: None
        self.store: Any = None
        self.boot()

    def boot(self) -> None:
        """A new aggregator process on the same disk."""
        if self.store is not None:
            self.store.close()
        settings = Settings(
            server=ServerSettings(secret_file=self.folder / "secret"),
            cluster=ClusterSettings(),
            pools={"p": PoolSettings(gpus=8, policy=self.policy)},
            places={SLOT: Place("p")},
            rest="p",
            cloud=None,
            scheduler=None,
            rules={},
            fleet_rules={},
        )
        self.store = Store(self.folder / "ledger.db", sole=True)
        self.fleet = Fleet(settings)
        self.fleet.join(OLD, SLOT, 0).lifecycle = Lifecycle.IN_SERVICE
        for line in self.store.lines_of("lifecycle"):
            if line.lifecycle == "retired":
                self.fleet.retire(line.machine)
            else:
                self.fleet.join(line.machine, SLOT, 0).lifecycle = Lifecycle(line.lifecycle)
        dying_store = Dying(self.store, self._at)
        people = People(dying_store, self.clock)  # type: ignore[arg-type]
        self.people = people
        guard = Guard(
            hold_file=self.folder / "HOLD", policies={"p": self.policy}, human_holds=people.holds, scene=self.scene
        )
        self.witness = Witness("scheduler", self.scheduler.snapshot, 5.0, self.clock)
        reach = Reach(
            fleet=self.fleet,
            guard=guard,
            scene=self.scene,
            policies={"p": self.policy},
            scheduler=Dying(self.scheduler, self._at),
            cloud=Dying(self.cloud, self._at),
            scheduler_witness=self.witness,
            cloud_witness=Witness("cloud", self.cloud.snapshot, 5.0, self.clock),
        )
        self.executor = Executor(store=dying_store, reach=reach, people=people, clock=self.clock)  # type: ignore[arg-type]

    def _at(self, where: str) -> None:
        self.boundary(where)

    def scene(self) -> Scene:
        verdicts = {OLD: msgspec.structs.replace(self._verdict(OLD, self.old_health), soft=self.old_soft)}
        for record in self.fleet.machines():
            if record.machine != OLD:
                verdicts[record.machine] = self._verdict(record.machine, self.new_health)
        return Scene(
            now=self.clock.now(),
            verdicts=verdicts,
            runs=self.runs,
            views=self.views,
            run_verdicts=self.run_verdicts,
            blind_because=self.blind,
        )

    def _verdict(self, machine: str, health: Health) -> Verdict:
        return Verdict(slot=SLOT, machine=machine, health=health, because="the test says so")

    def round(self, seconds: float = 1.0) -> None:
        """One second of the world, then of the aggregator."""
        self.clock.pass_s(seconds)
        self.witness.ask_once()
        for machine in self.cloud.listed.values():
            if machine.action_id and machine.ended_unix_ns is None and self.new_reports:
                record = self.fleet.join(machine.machine, SLOT, self.clock.monotonic_ns())
                envelope = Envelope("nvml", self.clock.unix_ns(), 0.1, "ok")
                record.heard = Heard(
                    boot="b",
                    agent_id="a",
                    sequence=1,
                    interval_s=5.0,
                    last=self.clock.now(),
                    sent_unix_ns=0,
                    sent_monotonic_ns=0,
                    skew_ns=0,
                    sources={"nvml": Received(envelope, self.clock.monotonic_ns())},
                )
        self.executor.advance_all()

    def rounds(self, count: int, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.round(seconds)

    def run_to_the_end(self, limit: int = 60) -> None:
        for _ in range(limit):
            self.round()
            if not self.executor.open():
                return

    @property
    def saga(self) -> Any:
        return self.executor.sagas()[0]

    def steps_done(self) -> list[str]:
        return [line.step for line in self.store.lines_of("action_step") if line.state == "done"]

    def lifecycle(self, machine: str) -> str:
        lines = [line for line in self.store.lines_of("lifecycle") if line.machine == machine]
        return lines[-1].lifecycle if lines else ""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def action(kind: str = "replace", **changes: Any) -> Action:
    usual: dict[str, Any] = {
        "action_id": "a1",
        "kind": kind,
        "slot": SLOT,
        "machine": OLD,
        "pool": "p",
        "because": "node is dead",
        "fault": "f1",
        "takes_out": True,
        "cause": "dead",
    }
    return Action(**(usual | changes))


def test_a_replacement_from_drain_to_release(world: World) -> None:
    assert world.executor.begin(action(), urgent=True)
    world.run_to_the_end()
    assert world.steps_done() == [
        "drain",
        "end_job",
        "empty",
        "create",
        "join",
        "validate",
        "adopt",
        "resume",
        "release",
    ]
    assert world.saga.outcome == "done"
    (new,) = world.cloud.alive(SLOT)
    assert world.scheduler.machines[SLOT] == new
    assert world.scheduler.drains[SLOT] == ""
    assert world.scheduler.jobs["run.1"].end_cause == "requeued"
    assert world.fleet.current(SLOT) is world.fleet.get(new)
    assert world.fleet.is_retired(OLD)
    assert (world.lifecycle(OLD), world.lifecycle(new)) == ("retired", "in_service")
    lifecycles = [(line.machine == OLD, line.lifecycle) for line in world.store.lines_of("lifecycle")]
    assert lifecycles == [
        (True, "draining"),
        (True, "drained"),
        (True, "replacing"),
        (False, "validating"),
        (False, "in_service"),
        (True, "retired"),
    ]
    (done,) = world.executor.memory()
    assert (done.ended, done.outcome, done.cause) == (True, "done", "dead")


def test_a_machine_that_the_cloud_is_still_deleting_is_asked_after_until_it_is_gone(world: World) -> None:
    world.cloud.set_state(OLD, "releasing", "scaled_in")
    world.fleet.absorb_cloud(world.cloud.snapshot(), world.clock.monotonic_ns())
    record = world.fleet.get(OLD)
    assert record is not None
    assert record.cloud is not None
    assert record.cloud.state == "releasing"
    world.executor.begin(action(), urgent=True)
    world.run_to_the_end()
    assert [name for name, _ in world.cloud.calls] == ["create", "release"]


def test_release_first_frees_the_place_before_it_asks_for_a_new_machine(tmp_path: Path) -> None:
    world = World(tmp_path, msgspec.structs.replace(POLICY, replace_order="release_first"))
    world.executor.begin(action(), urgent=True)
    world.run_to_the_end()
    assert [name for name, _ in world.cloud.calls] == ["release", "create"]
    assert world.saga.outcome == "done"
    assert len(world.cloud.alive(SLOT)) == 1


def test_the_same_action_twice_is_one_action(world: World) -> None:
    assert world.executor.begin(action(), urgent=True)
    assert not world.executor.begin(action(), urgent=True)
    world.run_to_the_end()
    assert not world.executor.begin(action(), urgent=True)
    world.boot()
    assert not world.executor.begin(action(), urgent=True)
    world.rounds(3)
    assert len(world.cloud.alive(SLOT)) == 1


@pytest.mark.parametrize("order", ["grow_first", "release_first"])
def test_killed_at_any_instant_it_makes_exactly_one_new_machine(order: str, tmp_path: Path) -> None:
    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder, msgspec.structs.replace(POLICY, replace_order=order))
        count = 0
        where = ""

        def die(place: str, number: int = number) -> None:
            nonlocal count, where
            if count == number:
                where = place
                count += 1
                raise Killed(place)
            count += 1

        world.boundary = die
        try:
            world.executor.begin(action(), urgent=True)
            world.run_to_the_end()
        except Killed:
            world.clock.pass_s(20)
            world.boot()
            world.executor.begin(action(), urgent=True)  # the plan is made again from what is still sick
            world.run_to_the_end()
        told = f"killed {number}: {where}"
        made = [m for m in world.cloud.listed.values() if m.action_id]
        assert len(made) == 1, told
        assert world.cloud.alive(SLOT) == [made[0].machine], told
        assert world.scheduler.machines[SLOT] == made[0].machine, told
        assert world.scheduler.drains[SLOT] == "", told
        assert world.saga.outcome == "done", told
        assert len(world.scheduler.acted) == 1, told
        assert world.fleet.current(SLOT) is world.fleet.get(made[0].machine), told
        assert world.fleet.is_retired(OLD), told
        world.store.close()
        if not where:
            assert number > 30
            return


def test_a_node_that_recovers_before_the_new_machine_is_made_is_given_back(world: World) -> None:
    world.scheduler.obeys = False  # so that it waits to become empty
    world.executor.begin(action())
    world.rounds(3)
    assert world.scheduler.drains[SLOT] != ""
    world.old_health = Health.HEALTHY
    world.run_to_the_end()
    assert world.saga.outcome == "cancelled"
    assert world.scheduler.drains[SLOT] == ""
    assert world.cloud.calls == []
    assert world.lifecycle(OLD) == "in_service"


def test_a_node_that_recovers_after_it_was_intended_is_still_replaced(world: World) -> None:
    def die(where: str) -> None:
        if where == "before create":
            raise Killed

    world.boundary = die
    world.executor.begin(action(), urgent=True)
    with pytest.raises(Killed):
        world.run_to_the_end()
    world.boundary = lambda _where: None
    world.old_health = Health.HEALTHY
    world.boot()
    world.run_to_the_end()
    assert world.saga.outcome == "done"
    assert len(world.cloud.alive(SLOT)) == 1


@pytest.mark.parametrize("hold", ["file", "person", "blind", "mode"])
def test_nothing_harmful_is_called_while_held(hold: str, world: World) -> None:
    if hold == "file":
        (world.folder / "HOLD").write_text("maintenance of the fabric")
    elif hold == "person":
        world.people.hold(SLOT, "kim", "debugging")
    elif hold == "blind":
        world.blind = "our wall clock stepped"
    else:
        world.policy = msgspec.structs.replace(POLICY, mode=Mode.OBSERVE)
        world.boot()
    world.executor.begin(action(), urgent=True)
    world.rounds(5, seconds=300)  # far beyond every deadline: a hold does not count against them
    assert world.scheduler.calls == []
    assert world.cloud.calls == []
    (held,) = world.store.lines_of("hold")
    assert isinstance(held, HoldNoted)
    assert held.fault == "f1"
    if hold == "file":
        assert "maintenance of the fabric" in held.because
        (world.folder / "HOLD").unlink()
    elif hold == "person":
        assert held.because == f"a person holds {SLOT}: kim: debugging"
        world.people.lift(SLOT, "kim")
    elif hold == "blind":
        world.blind = ""
    else:
        world.policy = POLICY
        world.boot()
    world.run_to_the_end()
    assert world.saga.outcome == "done"


def test_a_hold_between_the_steps_stops_before_the_next_call(world: World) -> None:
    world.scheduler.obeys = False
    world.executor.begin(action(), urgent=True)
    world.rounds(3)
    (world.folder / "HOLD").touch()
    world.scheduler.end_job("run.1", "failed")
    world.rounds(10, seconds=100)
    assert world.cloud.calls == []
    (world.folder / "HOLD").unlink()
    world.run_to_the_end()
    assert world.saga.outcome == "done"


def test_a_person_who_resumes_the_node_is_left_alone(world: World) -> None:
    world.scheduler.obeys = False
    world.executor.begin(action(), urgent=True)
    world.rounds(3)
    world.scheduler.drains[SLOT] = ""
    world.rounds(2)
    assert world.saga.outcome == "cancelled"
    assert "somebody resumed the node" in world.people.holds()[SLOT]
    assert ("resume", "a1/undo_resume") not in world.scheduler.calls


def test_a_foreign_drain_is_never_touched(world: World) -> None:
    world.scheduler.drains[SLOT] = "kim: bad DIMM"
    world.executor.begin(action(), urgent=True)
    world.rounds(3)
    assert world.saga.outcome == "failed"
    assert "drained by another" in world.saga.because
    assert world.scheduler.drains[SLOT] == "kim: bad DIMM"


def test_a_healthy_job_gets_its_drain_deadline(world: World) -> None:
    world.old_health = Health.DEGRADED
    world.executor.begin(action(), urgent=False)
    world.rounds(59)
    assert world.scheduler.acted == []
    assert "may go on" in world.executor.waiting["a1"]
    world.rounds(3)
    assert [(job, what) for job, what, _ in world.scheduler.acted] == [("run.1", "requeue")]


@pytest.mark.parametrize("kind", ["replace", "drain"])
@pytest.mark.parametrize(
    ("health", "killed"), [(Health.DEGRADED, False), (Health.DRIVER_FAILED, False), (Health.DRIVER_FAILED, True)]
)
def test_what_gets_worse_on_the_way_goes_on_as_the_worse_one(
    tmp_path: Path, kind: str, health: Health, killed: bool
) -> None:
    """A soft fault lets the job end by itself; a GPU that is lost then does not wait for a job that hangs for ever."""
    world = World(tmp_path)
    world.old_health, world.old_soft = Health.DEGRADED, True
    world.executor.begin(action(kind), soft=True)
    world.rounds(300)
    assert world.scheduler.acted == []
    assert "run.1 is still there" in world.executor.waiting["a1"]
    world.old_health, world.old_soft = health, False
    world.round()
    if killed:
        world.boot()
    world.rounds(3)
    if health is Health.DEGRADED:  # hard, and it may work on: the usual drain deadline
        assert "may go on for" in world.executor.waiting["a1"]
        world.old_soft = True
        world.rounds(65)  # it never becomes milder again
    assert [(job, what) for job, what, _ in world.scheduler.acted] == [("run.1", "requeue")]
    world.run_to_the_end()
    assert world.saga.outcome == "done"
    assert len(world.cloud.alive(SLOT)) == 1
    world.store.close()


def test_a_drain_deadline_is_not_waited_for_once_the_node_is_dead(world: World) -> None:
    world.old_health = Health.DEGRADED
    world.executor.begin(action(), urgent=False)
    world.rounds(5)
    assert "may go on" in world.executor.waiting["a1"]
    world.old_health = Health.DEAD
    world.rounds(2)
    assert [what for _, what, _ in world.scheduler.acted] == ["requeue"]


def test_a_job_that_still_steps_on_a_sick_node_is_not_ended_early(world: World) -> None:
    world.executor.begin(action(), urgent=True)
    for _ in range(10):
        world.runs = (
            RunView(
                run="run",
                attempt="run.1",
                machines=(OLD,),
                ranks=(),
                world_size=8,
                step=1,
                phase="train",
                moved_monotonic_ns=world.clock.monotonic_ns(),
                usual_step_s=2.0,
            ),
        )
        world.round()
    assert world.scheduler.acted == []
    world.rounds(8)  # it has not moved since: three usual steps
    assert len(world.scheduler.acted) == 1


def test_short_steps_are_not_taken_for_standing_still_between_two_reports(world: World) -> None:
    world.views = {OLD: node_view(SLOT, interval_s=5.0)}
    run = RunView(
        run="run",
        attempt="run.1",
        machines=(OLD,),
        ranks=(),
        world_size=8,
        step=1,
        phase="train",
        moved_monotonic_ns=world.clock.monotonic_ns(),
        usual_step_s=0.2,
    )
    world.runs = (run,)
    world.executor.begin(action(), urgent=True)
    world.rounds(10)  # two reports' time: three steps have long passed
    assert world.scheduler.acted == []
    world.rounds(6)
    assert len(world.scheduler.acted) == 1


@pytest.mark.parametrize(
    ("job_action", "may_requeue", "waits"),
    [
        pytest.param("requeue", False, "does not allow requeue", id="never-beyond-what-the-job-allows"),
        pytest.param("wait", True, "is still there", id="policy-waits"),
    ],
)
def test_jobs_that_may_not_be_ended_are_waited_for(
    job_action: Any, may_requeue: bool, waits: str, tmp_path: Path
) -> None:
    world = World(tmp_path, msgspec.structs.replace(POLICY, job_action=job_action))
    world.scheduler.add_job("run.1", (SLOT,), may_requeue=may_requeue)
    world.executor.begin(action(), urgent=True)
    world.rounds(50, seconds=100)
    assert world.scheduler.acted == []
    assert waits in world.executor.waiting["a1"]
    assert [(line.reason, line.fault) for line in world.store.lines_of("hold")] == [("job", "f1")]  # once
    assert world.executor.stuck() == [world.saga]
    world.scheduler.end_job("run.1", "completed", 0)
    world.run_to_the_end()
    assert world.saga.outcome == "done"


def test_a_node_that_cannot_become_empty_goes_down_with_its_machine(world: World) -> None:
    world.scheduler.obeys = False
    world.executor.begin(action(), urgent=True)
    world.rounds(28)
    assert world.saga.step == "empty"
    world.rounds(10)
    assert world.saga.outcome == "done"
    told = [line for line in world.store.lines_of("action_step") if line.step == "empty" and line.state == "done"]
    assert "the machine goes with it" in told[0].because


def test_a_drain_ends_drained_and_makes_no_machine(world: World) -> None:
    world.executor.begin(action("drain"), urgent=True)
    world.run_to_the_end()
    assert world.saga.outcome == "done"
    assert world.lifecycle(OLD) == "drained"
    assert world.cloud.calls == []
    world.executor.begin(action("resume", action_id="a2", takes_out=False))
    world.run_to_the_end()
    assert world.scheduler.drains[SLOT] == ""
    assert world.lifecycle(OLD) == "in_service"


def test_a_stalled_run_is_restarted_and_its_node_stays(world: World) -> None:
    stalled = RunVerdict(
        run="run",
        attempt="run.1",
        kind="run_stalled",
        because="",
        onset_unix_ns=0,
        since_unix_ns=0,
        since_monotonic_ns=0,
    )
    world.run_verdicts = (stalled,)
    world.executor.begin(action("restart_job", run="run", attempt="run.1", takes_out=False))
    world.run_to_the_end()
    assert world.saga.outcome == "done"
    assert world.scheduler.jobs["run.1"].end_cause == "requeued"
    assert world.scheduler.drains[SLOT] == ""
    assert world.lifecycle(OLD) == ""


def test_a_run_that_moves_again_is_not_restarted(world: World) -> None:
    world.executor.begin(action("restart_job", run="run", attempt="run.1", takes_out=False))
    world.rounds(2)
    assert world.saga.outcome == "cancelled"
    assert world.scheduler.acted == []


def test_a_new_machine_that_never_reports_is_released_and_the_action_fails(world: World) -> None:
    world.new_reports = False
    world.executor.begin(action(), urgent=True)
    world.rounds(10)
    assert world.saga.step == "join"
    world.rounds(125)
    assert world.saga.outcome == "failed"
    assert "has not reported yet" in world.saga.because
    assert world.cloud.alive(SLOT) == [OLD]  # nothing new is billed
    assert world.lifecycle(OLD) == "drained"
    assert world.scheduler.drains[SLOT] != ""


def test_a_new_machine_that_is_sick_itself_is_released(world: World) -> None:
    world.new_health = Health.DRIVER_FAILED
    world.executor.begin(action(), urgent=True)
    world.run_to_the_end()
    assert world.saga.outcome == "failed"
    assert "driver_failed itself" in world.saga.because
    assert world.cloud.alive(SLOT) == [OLD]


def test_a_cloud_that_has_no_capacity_is_asked_again_until_the_deadline(world: World) -> None:
    world.cloud.fails = [CloudError("no capacity", retry=True)] * 2
    world.executor.begin(action(), urgent=True)
    world.run_to_the_end()
    assert world.saga.outcome == "done"
    assert [name for name, _ in world.cloud.calls] == ["create", "create", "create", "release"]


def test_a_cloud_that_refuses_for_good_fails_the_action(world: World) -> None:
    world.cloud.fails = [CloudError("quota is 0", why="the subscription has none")]
    world.executor.begin(action(), urgent=True)
    world.run_to_the_end()
    assert world.saga.outcome == "failed"
    assert "quota is 0" in world.saga.because
    assert world.cloud.alive(SLOT) == [OLD]


def test_a_pending_creation_is_asked_with_the_same_key(world: World) -> None:
    world.cloud.pending_count = 3
    world.executor.begin(action(), urgent=True)
    world.run_to_the_end()
    assert {key for name, key in world.cloud.calls if name == "create"} == {"a1/create"}
    assert world.saga.outcome == "done"


def test_nothing_begins_that_cannot_be_written_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: Any, **_kwargs: Any) -> None:
        raise StoreError("cannot write", why="the disk is full")

    monkeypatch.setattr(world.store, "save_saga", full)
    with pytest.raises(StoreError):
        world.executor.begin(action(), urgent=True)
    world.rounds(2)
    assert world.scheduler.calls == []


def test_every_step_was_intended_before_it_was_done(world: World) -> None:
    world.executor.begin(action(), urgent=True)
    world.run_to_the_end()
    intended: set[str] = set()
    for line in world.store.lines_of("action_step"):
        assert isinstance(line, ActionStep)
        if line.state == "intended":
            intended.add(line.step)
        else:
            assert line.step in intended
    assert all(isinstance(line, LifecycleChanged) for line in world.store.lines_of("lifecycle"))
