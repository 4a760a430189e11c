"""A whole replacement by the real executor through the real Azure client: killed after each step, and failing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.aggregator import settings as aggregator_settings
from gpuwatch.aggregator.executor import Executor
from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.guard import Guard
from gpuwatch.aggregator.heard import Heard, Received
from gpuwatch.aggregator.people import People
from gpuwatch.aggregator.reach import Reach
from gpuwatch.aggregator.scene import Scene
from gpuwatch.aggregator.witnesses import Witness
from gpuwatch.clouds.azure_vmss import AzureVmss, Settings
from gpuwatch.model.ledger import LifecycleChanged
from gpuwatch.model.plan import Action
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.wire import Envelope
from gpuwatch.sdk.azure_arm import Arm, open_client
from gpuwatch.store.sqlite import Store
from tests.arm_server import RESOURCE_GROUP, SUBSCRIPTION, ArmServer, ImdsServer, ScaleSet, error
from tests.fakes_hands import FakeClock, FakeScheduler

SLOT = "gpu000001"
POLICY = Policy(mode=Mode.REPLACE, job_action="requeue", drain_deadline_s=60, empty_deadline_s=300, join_deadline_s=600)


class Killed(BaseException):
    """kill -9 at this instant."""


class Mortal:
    """Stands before an object and dies after the calls that the test chose."""

    def __init__(self, inner: Any, names: tuple[str, ...], after: Callable[[str], None]) -> None:
        self._inner, self._names, self._after = inner, names, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._names:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            self._after(name)
            return result

        return call


class World:
    """What outlives an aggregator: Azure, the scheduler, the disk. `boot` is a new process."""

    def __init__(self, azure: ArmServer, folder: Path) -> None:
        azure.sets["gpu"] = ScaleSet("gpu", 4)
        self.azure, self.folder = azure, folder
        self.clock = FakeClock()
        self.old = azure.gpu.machine("1")
        self.scheduler = FakeScheduler((SLOT, "gpu000002"))
        self.scheduler.machines[SLOT] = self.old
        self.scheduler.add_job("run.1", (SLOT, "gpu000002"))
        file = folder / "aggregator.toml"
        (folder / "secret").write_text("0" * 32)
        file.write_text(f'[server]\nsecret_file = "secret"\n[pools.p]\nnodes = ["{SLOT}"]\ngpus = 8\ngroup = "gpu"\n')
        self.settings = aggregator_settings.load(file)
        self.after: Callable[[str], None] = lambda _name: None
        self.store: Store | None = None
        self.boot()

    def boot(self) -> None:
        self.close()
        self.store = store = Store(self.folder / "ledger.db", sole=True)
        self.cloud = self._open()
        self.fleet = Fleet(self.settings)
        for line in store.lines_of("lifecycle"):
            if isinstance(line, LifecycleChanged) and line.lifecycle == "retired":
                self.fleet.retire(line.machine)
        if not self.fleet.is_retired(self.old):
            self.fleet.join(self.old, SLOT, 0).lifecycle = Lifecycle.IN_SERVICE
        mortal: Any = Mortal(store, ("save_saga",), lambda name: self.after(name))
        people = People(mortal, self.clock)
        guard = Guard(
            hold_file=self.folder / "HOLD", policies={"p": POLICY}, human_holds=people.holds, scene=self.scene
        )
        self.witnesses = (
            Witness("scheduler", self.scheduler.snapshot, 5.0, self.clock),
            Witness("cloud", self.cloud.snapshot, 5.0, self.clock),
        )
        calls: Any = Mortal(self.cloud, ("create", "release"), lambda name: self.after(name))
        reach = Reach(
            fleet=self.fleet,
            guard=guard,
            scene=self.scene,
            policies={"p": POLICY},
            scheduler=self.scheduler,
            cloud=calls,
            scheduler_witness=self.witnesses[0],
            cloud_witness=self.witnesses[1],
        )
        self.executor = Executor(store=mortal, reach=reach, people=people, clock=self.clock)

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

    def begin(self) -> None:
        self.executor.begin(
            Action(
                action_id="a1",
                kind="replace",
                slot=SLOT,
                machine=self.old,
                pool="p",
                because="node is dead",
                fault="f1",
                takes_out=True,
                cause="dead",
            ),
            urgent=True,
        )

    def scene(self) -> Scene:
        verdicts = {
            record.machine: Verdict(
                slot=SLOT,
                machine=record.machine,
                health=Health.DEAD if record.machine == self.old else Health.HEALTHY,
                because="the test says so",
            )
            for record in self.fleet.machines()
        }
        return Scene(now=self.clock.now(), verdicts=verdicts, runs=(), run_verdicts=(), blind_because="")

    def run(self, rounds: int = 80) -> None:
        """Five seconds of the world a round: the witnesses look, a running new machine reports, the actions go on."""
        for _ in range(rounds):
            self.clock.pass_s(5.0)
            for witness in self.witnesses:
                witness.ask_once()
            word = self.witnesses[1].last()
            for item in word.answer.machines if word is not None else ():
                if item.slot == SLOT and item.action_id and item.state in ("running", "failed"):
                    record = self.fleet.join(item.machine, SLOT, self.clock.monotonic_ns())
                    record.cloud_record = item
                    if item.state == "running" and not item.because:
                        record.heard = self._report()
            if word is not None:
                self.fleet.absorb_cloud(word.answer, word.asked.monotonic_ns)
            self.executor.advance_all()
            if not self.executor.open():
                return

    def _report(self) -> Heard:
        received = Received(Envelope("nvml", self.clock.unix_ns(), 0.1, "ok"), self.clock.monotonic_ns())
        return Heard(
            boot="b",
            agent_id="a",
            sequence=1,
            interval_s=5.0,
            last=self.clock.now(),
            sent_unix_ns=0,
            sent_monotonic_ns=0,
            skew_ns=0,
            sources={"nvml": received},
        )

    def _open(self) -> AzureVmss:
        settings = Settings(subscription_id=SUBSCRIPTION, resource_group=RESOURCE_GROUP, groups=("gpu",))
        client = open_client(
            subscription_id=SUBSCRIPTION,
            endpoint=self.azure.url,
            credential="managed_identity",
            client_id="",
            ca_file=self.azure.ca_file,
            timeout_s=5.0,
        )
        arm = Arm(
            client,
            endpoint=self.azure.url,
            subscription_id=SUBSCRIPTION,
            resource_group=RESOURCE_GROUP,
            credential="managed_identity",
            clock=self.clock,
        )
        return AzureVmss(settings, arm, self.clock)


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ArmServer]:
    server, imds = ArmServer(tmp_path), ImdsServer()
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", imds.url)
    yield server
    server.stop()
    imds.stop()


def test_killed_after_each_persisted_step_and_each_call_one_new_machine_comes_of_it(
    azure: ArmServer, tmp_path: Path
) -> None:
    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(azure, folder)
        count, where = 0, ""

        def die(name: str, number: int = number) -> None:
            nonlocal count, where
            count += 1
            if count == number + 1:
                where = name
                raise Killed

        world.after = die
        try:
            world.begin()
            world.run()
        except Killed:
            world.boot()
            world.begin()
            world.run()
        (saga,) = world.executor.sagas()
        told = f"killed {number}: {where}: {saga.outcome} {saga.because}"
        for _ in range(4):  # a process that did not ask for the deletion leaves the rest of it to Azure
            world.cloud.snapshot()
        assert saga.outcome == "done", told
        assert azure.gpu.created == ["4"], told
        assert sorted(azure.gpu.vms) == ["0", "2", "3", "4"], told
        assert azure.gpu.capacity == 4, told
        assert world.scheduler.machines[SLOT] == azure.gpu.machine("4"), told
        assert world.scheduler.drains[SLOT] == "", told
        world.close()
        if not where:
            assert number > 18
            return


def test_no_room_in_azure_leaves_the_slot_drained_and_the_old_machine_where_it_is(
    azure: ArmServer, tmp_path: Path
) -> None:
    world = World(azure, tmp_path)
    azure.gpu.grows = False
    world.begin()
    world.run()
    (saga,) = world.executor.sagas()
    assert saga.outcome == "failed"
    assert "AllocationFailed" in saga.because
    assert sorted(azure.gpu.vms) == ["0", "1", "2", "3"]
    assert world.scheduler.drains[SLOT] != ""
    world.close()


def test_a_new_machine_that_failed_is_given_back(azure: ArmServer, tmp_path: Path) -> None:
    world = World(azure, tmp_path)
    made: list[str] = []

    def spoil(name: str) -> None:
        if azure.gpu.created and not made:
            made.append(azure.gpu.machine("4"))
            azure.gpu.say("4", "Failed", code="OSProvisioningTimedOut")
            azure.gpu.forget_wanted()

    world.after = spoil
    world.begin()
    world.run()
    (saga,) = world.executor.sagas()
    assert saga.outcome == "failed"
    assert "OSProvisioningTimedOut" in saga.because
    assert saga.new_machine == made[0]
    assert sorted(azure.gpu.vms) == ["0", "1", "2", "3"]
    assert azure.gpu.capacity == 4
    world.close()


def test_credentials_that_expire_in_the_middle_only_delay_it(azure: ArmServer, tmp_path: Path) -> None:
    world = World(azure, tmp_path)
    refused: list[str] = []

    def expired(request: Any) -> Any:
        if request.method != "GET" and len(refused) < 5:
            refused.append(request.method)
            return error(401, "ExpiredAuthenticationToken", "expired")
        return None

    azure.before = expired
    world.begin()
    world.run()
    azure.before = lambda _request: None
    (saga,) = world.executor.sagas()
    assert (saga.outcome, len(refused), azure.gpu.created) == ("done", 5, ["4"])
    world.close()
