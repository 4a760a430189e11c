"""A machine speaks only for itself: whatever slot it names, the slot's own machine is judged and treated as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.clouds import Receipt
from gpuwatch.model.facts.training import Beat
from tests.fakes_centre import Agent, Centre
from tests.fakes_hands import START_UNIX_NS

S = 10**9
Change = Callable[[Centre], None]


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, nodes=4)
    yield made
    assert made.store is not None
    made.store.close()


def claimant(centre: Centre, slot: str) -> Agent:
    """A machine with a valid token of its own, on nobody's list, that says it is in this slot."""
    agent = Agent(slot, "m-evil", centre.clock)
    centre.agents[agent.machine] = agent
    return agent


def test_a_sick_claimant_gets_nothing_done_to_the_slot(centre: Centre) -> None:
    centre.settle()
    evil = claimant(centre, "gpu03")
    centre.seconds(10)
    evil.xid(79)
    centre.seconds(90)
    assert centre.harm() == []
    assert centre.fleet.current("gpu03") is centre.fleet.get("m-gpu03")
    assert [(hold.machine, hold.reason) for hold in centre.stage.scene.plan.holds] == [("m-evil", "not_in_slot")]
    assert len(centre.lines("hold")) == 1  # said once, not at every tick
    centre.agents["m-gpu03"].xid(79)  # and the slot's own machine is still treated
    centre.seconds(90)
    assert "drain" in {name for name, _ in centre.scheduler.calls}
    assert len(centre.cloud.alive("gpu03")) == 1


def test_a_healthy_claimant_hides_nothing(centre: Centre) -> None:
    centre.settle()
    claimant(centre, "gpu03")
    centre.seconds(10)
    centre.agents["m-gpu03"].xid(79)
    centre.second()
    centre.seconds(5)
    assert [line.machine for line in centre.opened()] == ["m-gpu03"]


@pytest.mark.parametrize("known", ["scheduler and cloud", "cloud"])
def test_a_claimant_that_comes_first_gives_way_to_the_listed_machine(known: str, centre: Centre) -> None:
    if known == "cloud":
        centre.scheduler.machines = dict.fromkeys(centre.scheduler.machines, "")
    evil = claimant(centre, "gpu03")
    centre.send(evil.report())
    centre.seconds(75)
    evil.xid(79)
    centre.seconds(90)
    assert centre.fleet.current("gpu03") is centre.fleet.get("m-gpu03")
    assert centre.harm() == []


@pytest.mark.parametrize("slot", ["gpu03", "nobodys-slot"])
def test_a_machine_that_names_another_slot_stays_where_the_cloud_has_it(slot: str, centre: Centre) -> None:
    centre.settle()
    centre.agents["m-gpu01"].slot = slot
    centre.seconds(30)
    assert set(centre.states()) == {"gpu01", "gpu02", "gpu03", "gpu04"}
    for number in (1, 3):
        filler = centre.fleet.current(f"gpu{number:02d}")
        assert filler is not None
        assert filler.machine == f"m-gpu{number:02d}"
        assert filler.fills_slot


def test_without_a_cloud_an_agent_may_still_move_to_a_free_slot(centre: Centre) -> None:
    for record in (centre.fleet.join("m-a", "s1", 0), centre.fleet.join("m-b", "s1", 0)):
        assert record.slot == "s1"
    first, second = centre.fleet.get("m-a"), centre.fleet.get("m-b")
    assert first is not None
    assert second is not None
    assert (first.fills_slot, second.fills_slot) == (True, False)
    assert centre.fleet.move(first, "s2")
    assert (first.fills_slot, first.slot) == (True, "s2")
    assert centre.fleet.current("s1") is second  # who waited there takes it
    assert second.fills_slot
    assert not centre.fleet.move(first, "s1")


def test_heartbeats_of_a_machine_that_takes_no_part_are_not_the_runs(centre: Centre) -> None:
    centre.scheduler.add_job("run.1", ("gpu01",))
    evil = centre.agents["m-gpu02"]
    good = centre.agents["m-gpu01"]
    for step in range(1, 14):
        now_ns = centre.clock.unix_ns()
        beat = Beat(
            run="run", attempt="run.1", rank=0, world_size=1, pid=1, phase="train", step=step, sequence=step,
            step_end_unix_ns=now_ns, phase_start_unix_ns=START_UNIX_NS, checkpoint_step=None,
            checkpoint_unix_ns=None, read_unix_ns=now_ns, alive=True,
        )  # fmt: skip
        good.beats = (beat,)
        forged = msgspec.structs.replace(beat, pid=2, step=999, sequence=999, phase_start_unix_ns=now_ns)
        evil.beats = (forged, msgspec.structs.replace(forged, rank=7, step=0))
        centre.seconds(5)
    (run,) = centre.stage.scene.runs
    assert run.machines == ("m-gpu01",)
    assert run.step is not None
    assert 10 <= run.step <= 13


def gives(machine: str) -> Change:
    def change(centre: Centre) -> None:
        def create(*, slot: str, group: str, action_id: str) -> Receipt:
            return Receipt(action_id=action_id, state="done", machine=machine)

        centre.cloud.create = create  # type: ignore[method-assign]

    return change


@pytest.mark.parametrize("machine", ["m-gpu01", "m-gpu02", "m-long-gone"])
def test_a_cloud_that_gives_a_machine_that_is_not_new_costs_nobody_a_machine(machine: str, centre: Centre) -> None:
    centre.settle()
    centre.fleet.retire("m-long-gone")
    gives(machine)(centre)
    centre.agents["m-gpu01"].xid(79)
    centre.seconds(200)
    assert [name for name, _ in centre.cloud.calls if name == "release"] == []
    assert all(len(centre.cloud.alive(f"gpu{n:02d}")) == 1 for n in range(1, 5))
    assert {saga.outcome for saga in centre.executor.sagas()} == {"failed"}
    assert centre.states()["gpu02"] == "healthy in_service"


def test_a_new_machine_that_stands_elsewhere_takes_no_place(centre: Centre) -> None:
    centre.settle()
    centre.new_agents_speak = False
    made = centre.cloud.create

    def create(*, slot: str, group: str, action_id: str) -> Receipt:
        receipt = made(slot=slot, group=group, action_id=action_id)
        centre.cloud.listed[receipt.machine] = msgspec.structs.replace(
            centre.cloud.listed[receipt.machine], slot="elsewhere"
        )
        centre.agents[receipt.machine] = Agent("elsewhere", receipt.machine, centre.clock)
        return receipt

    centre.cloud.create = create  # type: ignore[method-assign]
    centre.agents["m-gpu01"].xid(79)
    centre.seconds(120)
    (saga,) = centre.executor.open()
    assert saga.step in ("create", "join")
    assert "elsewhere" in centre.executor.waiting[saga.action.action_id]
    centre.seconds(900)
    assert "adopt" not in {name for name, _ in centre.scheduler.calls}
    assert centre.cloud.listed[saga.new_machine].ended_unix_ns is not None  # given back: it was used by nobody
