"""The centre as a whole, second by second: what it concludes, what it does, what it writes down, and what it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.aggregator.admission import Refusal
from gpuwatch.errors import StoreError
from gpuwatch.model.facts.training import Beat
from gpuwatch.model.wire import Envelope, Goodbye
from tests.fakes_centre import Agent, Centre


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path)
    yield made
    assert made.store is not None
    made.store.close()


def kill(centre: Centre, slot: str, machine: str = "") -> None:
    """The node's power goes: its agent falls silent, the cloud and the scheduler see it."""
    name = machine or f"m-{slot}"
    centre.agents[name].speaks = False
    centre.cloud.set_state(name, "failed")
    centre.scheduler.down.add(slot)


def heal(centre: Centre, slot: str) -> None:
    centre.scheduler.down.discard(slot)


def train(centre: Centre, *slots: str, job: str = "run.1") -> None:
    centre.scheduler.add_job(job, slots)
    centre.scheduler.jobs[job] = msgspec.structs.replace(
        centre.scheduler.jobs[job], started_unix_ns=centre.clock.unix_ns()
    )
    for rank, slot in enumerate(slots):
        agent = next(a for a in centre.agents.values() if a.slot == slot)
        agent.beats = (beat(centre, rank, len(slots), 0, job),)


def beat(centre: Centre, rank: int, ranks: int, step: int, job: str = "run.1") -> Beat:
    now_ns = centre.clock.unix_ns()
    return Beat(
        run="run",
        attempt=job,
        rank=rank,
        world_size=ranks,
        pid=100 + rank,
        phase="train",
        step=step,
        step_end_unix_ns=now_ns,
        phase_start_unix_ns=now_ns,
        checkpoint_step=0,
        checkpoint_unix_ns=now_ns,
        step_s=1.0,
        alive=True,
        sequence=step,
        read_unix_ns=now_ns,
    )


def step(centre: Centre, number: int, job: str = "run.1") -> None:
    """Every rank that trains finishes a step, and its agent reads it."""
    trainers = [agent for agent in centre.agents.values() if agent.beats]
    for agent in trainers:
        rank = agent.beats[0].rank
        agent.beats = (beat(centre, rank, len(trainers), number, job),)


def reread(centre: Centre) -> None:
    """The agents read the same records again: fresh evidence of no progress."""
    for agent in centre.agents.values():
        agent.beats = tuple(msgspec.structs.replace(b, read_unix_ns=centre.clock.unix_ns()) for b in agent.beats)


def test_everybody_joins_and_comes_into_service(centre: Centre) -> None:
    centre.settle()
    assert centre.opened() == []
    assert centre.harm() == []
    starts = centre.lines("life_started")
    assert {(line.machine, line.source, line.gpu_count) for line in starts} == {
        (f"m-gpu{n:02d}", "provider", 8) for n in range(1, 9)
    }
    healths = [line.health for line in centre.lines("health")]
    assert set(healths) <= {"joining", "healthy", "unknown"}
    assert healths.count("healthy") == 8


def test_a_dead_node_is_replaced_by_exactly_one(centre: Centre) -> None:
    centre.settle()
    train(centre, "gpu01", "gpu02", "gpu03")
    for n in range(1, 30):
        step(centre, n)
        centre.second()
    died_ns = centre.clock.unix_ns()
    kill(centre, "gpu02")
    centre.seconds(40)
    heal(centre, "gpu02")
    centre.seconds(40)
    (opened,) = centre.opened()
    assert (opened.kind, opened.slot, opened.machine) == ("node_dead", "gpu02", "m-gpu02")
    (new,) = centre.cloud.alive("gpu02")
    assert new != "m-gpu02"
    assert centre.states()["gpu02"] == "healthy in_service"
    assert len([line for line in centre.lines("fault_closed") if line.fault == opened.fault]) == 1
    assert centre.book.open == {}
    (end,) = centre.lines("attempt_ended")
    assert (end.attempt, end.ended, end.fault) == ("run.1", "unplanned", opened.fault)
    started = next(line for line in centre.lines("life_started") if line.machine == new)
    assert started.fault == opened.fault
    dead = next(line for line in centre.lines("health") if line.health == "dead")
    assert died_ns - 6e9 <= dead.at_unix_ns <= died_ns  # its last proof of health, not the verdict
    with pytest.raises(Refusal, match="was released") as refusal:
        centre.send(Agent("gpu02", "m-gpu02", centre.clock).report())
    assert refusal.value.code == 403


def test_silence_alone_never_kills(centre: Centre) -> None:
    centre.settle()
    train(centre, "gpu01", "gpu02")
    centre.agents["m-gpu02"].speaks = False
    scene = centre.seconds(600)
    assert scene.health("m-gpu02") == "suspect"
    assert centre.opened() == []
    assert centre.harm() == []


def test_cut_off_from_all_agents_and_back_nobody_is_dead_and_nothing_is_drained(centre: Centre) -> None:
    centre.settle()
    train(centre, "gpu01", "gpu02", "gpu03")
    for agent in centre.agents.values():
        agent.speaks = False
    scene = centre.seconds(300)
    assert "no agent at all has been heard" in scene.blind_because
    for number, agent in enumerate(centre.agents.values()):  # they come back one after the other
        agent.speaks = True
        if number % 3 == 0:
            centre.seconds(4)
    centre.seconds(120)
    assert set(centre.states().values()) == {"healthy in_service"}
    assert centre.harm() == []
    assert centre.opened() == []
    assert "dead" not in {line.health for line in centre.lines("health")}


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_the_wall_clock_steps_an_hour_and_ticks_go_on(step_s: float, centre: Centre) -> None:
    centre.settle()
    train(centre, "gpu01", "gpu02")
    ticks = centre.stage.scene.tick_count
    centre.clock.step_s(step_s)
    centre.seconds(120)
    assert centre.stage.scene.tick_count == ticks + 120
    assert set(centre.states().values()) == {"healthy in_service"}
    assert centre.harm() == []
    assert centre.opened() == []


def test_a_lost_gpu_is_acted_on_within_a_second_of_its_report(centre: Centre) -> None:
    centre.settle()
    train(centre, "gpu01", "gpu02")
    agent = centre.agents["m-gpu02"]
    agent.xid(79)
    report = agent.report()
    centre.send(report)
    centre.clock.pass_s(0.2)
    centre.brain.tick()
    (opened,) = centre.opened()
    assert opened.slot == "gpu02"
    assert [saga.action.kind for saga in centre.executor.open()] == ["replace"]
    centre.seconds(60)
    assert len(centre.cloud.alive("gpu02")) == 1
    assert centre.cloud.alive("gpu02") != ["m-gpu02"]
    assert centre.ingest.event_count == 1


def test_a_driver_that_comes_back_closes_its_incident_by_itself(centre: Centre) -> None:
    centre.settle()
    agent = centre.agents["m-gpu03"]
    agent.nvml = Envelope("nvml", 0, 0.0, "hung", "nvmlDeviceGetCount hangs", since_unix_ns=centre.clock.unix_ns())
    (centre.folder / "HOLD").touch()
    centre.seconds(40)
    (opened,) = centre.opened()
    assert opened.kind == "driver_failed"
    hold = next(h for h in centre.stage.scene.plan.holds if h.slot == "gpu03")
    assert hold.reason == "hold_file"
    agent.nvml = None
    centre.seconds(30)
    assert centre.book.open == {}
    assert centre.harm() == []


def test_observe_holds_with_a_because_and_touches_nothing(tmp_path: Path) -> None:
    centre = Centre(tmp_path, mode="observe")
    centre.settle()
    kill(centre, "gpu04")
    scene = centre.seconds(60)
    assert scene.health("m-gpu04") == "dead"
    (hold,) = scene.plan.holds
    assert (hold.slot, hold.reason) == ("gpu04", "observe")
    assert "would replace it" in hold.because
    assert centre.harm() == []
    assert len(centre.lines("hold")) == 1  # told once, not each second


def test_approve_asks_and_acts_when_a_person_agreed(tmp_path: Path) -> None:
    centre = Centre(tmp_path, mode="approve")
    centre.settle()
    kill(centre, "gpu04")
    scene = centre.seconds(60)
    (ask,) = scene.plan.actions
    assert ask.kind == "ask_approval"
    assert centre.harm() == []
    centre.people.approve(ask.action_id, "kim", 3600)
    centre.seconds(10)
    heal(centre, "gpu04")
    centre.seconds(60)
    assert centre.states()["gpu04"] == "healthy in_service"
    assert len(centre.cloud.alive("gpu04")) == 1


def test_an_aggregator_that_is_restarted_goes_on_and_says_nothing_twice(centre: Centre) -> None:
    centre.settle()
    before = [type(line).__name__ for line in centre.lines("health", "lifecycle", "life_started", "spare_quota")]
    centre.boot()
    centre.seconds(150)
    after = [type(line).__name__ for line in centre.lines("health", "lifecycle", "life_started", "spare_quota")]
    assert after == before
    assert centre.harm() == []


def test_killed_in_the_middle_of_a_replacement_it_makes_one_machine(centre: Centre) -> None:
    centre.settle()
    kill(centre, "gpu02")
    while not any(saga.step == "join" for saga in centre.executor.open()):
        centre.second()
    centre.boot()
    heal(centre, "gpu02")
    centre.seconds(120)
    assert len([m for m in centre.cloud.listed.values() if m.slot == "gpu02"]) == 2
    assert centre.states()["gpu02"] == "healthy in_service"
    assert centre.book.open == {}


def test_a_reboot_over_a_restart_is_seen(centre: Centre) -> None:
    centre.settle()
    assert centre.store is not None
    centre.store.keep(seen=[record.last_seen() for record in centre.fleet.machines()])
    centre.boot()
    centre.agents["m-gpu05"].reboot("another-boot")
    scene = centre.seconds(30)
    assert scene.health("m-gpu05") == "suspect"
    assert "rebooted by itself" in scene.verdicts["m-gpu05"].because


def test_a_goodbye_is_no_death(centre: Centre) -> None:
    centre.settle()
    agent = centre.agents["m-gpu06"]
    centre.send(agent.report(Goodbye("upgrade")))
    agent.speaks = False
    scene = centre.seconds(200)
    assert scene.health("m-gpu06") not in ("dead", "suspect")
    assert centre.opened() == []


def test_many_nodes_with_one_fault_are_held_together(centre: Centre) -> None:
    centre.settle()
    for slot in ("gpu01", "gpu02", "gpu03", "gpu04"):
        centre.agents[f"m-{slot}"].nvml = Envelope("nvml", 0, 0.0, "hung", "hangs", since_unix_ns=1)
    scene = centre.seconds(200)
    # Whoever was condemned before it was seen that many are, waits where he is: no job is ended, no machine is made.
    assert {hold.reason for hold in scene.plan.holds} == {"shared_cause"}
    assert {name for name, _ in centre.harm()} <= {"drain"}
    assert all("shared cause" in because for because in centre.executor.waiting.values())


def test_a_full_disk_stops_new_harm_and_passes(centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
    centre.settle()
    store = centre.store
    assert store is not None
    real = store.append

    def full(_lines: Any) -> None:
        raise StoreError("cannot append to the ledger", why="the disk is full")

    monkeypatch.setattr(store, "append", full)
    kill(centre, "gpu02")
    scene = centre.seconds(60)
    assert "the disk is full" in scene.blind_because
    assert centre.harm() == []
    monkeypatch.setattr(store, "append", real)
    centre.seconds(10)
    heal(centre, "gpu02")
    centre.seconds(60)
    assert len(centre.opened()) == 1
    assert centre.states()["gpu02"] == "healthy in_service"


def test_a_stalled_run_is_started_again_and_no_node_is_taken_out(centre: Centre) -> None:
    centre.settle()
    train(centre, "gpu01", "gpu02", "gpu03")
    for n in range(1, 40):
        step(centre, n)
        centre.second()
    for _ in range(240):
        reread(centre)
        centre.second()
        if centre.scheduler.acted:
            break
    (opened,) = centre.opened()
    assert (opened.kind, opened.run, opened.machine) == ("run_stalled", "run", None)
    assert [(job, what) for job, what, _ in centre.scheduler.acted] == [("run.1", "requeue")]
    assert centre.cloud.calls == []
    train(centre, "gpu01", "gpu02", "gpu03", job="run.2")
    for n in range(30, 60):
        step(centre, n, "run.2")
        centre.second()
    assert centre.book.open == {}
    ends = centre.lines("attempt_ended")
    assert [(line.attempt, line.ended, line.fault) for line in ends] == [("run.1", "unplanned", opened.fault)]
    assert set(centre.states().values()) == {"healthy in_service"}


def test_a_drained_node_that_somebody_resumes_is_left_to_them(tmp_path: Path) -> None:
    centre = Centre(tmp_path, mode="drain")
    centre.settle()
    agent = centre.agents["m-gpu03"]
    agent.nvml = Envelope("nvml", 0, 0.0, "hung", "hangs", since_unix_ns=1)
    centre.seconds(60)
    assert centre.states()["gpu03"] == "driver_failed drained"
    centre.scheduler.drains["gpu03"] = ""
    scene = centre.seconds(200)
    assert "somebody" in centre.people.holds()["gpu03"]
    assert centre.scheduler.drains["gpu03"] == ""
    assert [hold.reason for hold in scene.plan.holds if hold.slot == "gpu03"] == ["human_hold"]
    agent.nvml = None
    centre.seconds(30)
    assert centre.people.holds() == {}
    assert centre.book.open == {}


def test_what_the_scheduler_allocates_is_held_until_somebody_else_gets_it(centre: Centre) -> None:
    centre.settle()
    train(centre, "gpu01", "gpu02")
    centre.seconds(4)
    assert {(line.run, line.machine) for line in centre.lines("node_held")} == {("run", "m-gpu01"), ("run", "m-gpu02")}
    centre.scheduler.end_job("run.1", "completed", 0, centre.clock.unix_ns())
    centre.seconds(4)
    assert {line.machine for line in centre.lines("node_let_go")} == {"m-gpu01", "m-gpu02"}
    (end,) = centre.lines("attempt_ended")
    assert end.ended == "exit0"


def test_a_machine_that_vanished_is_replaced_only_while_its_group_wants_it(centre: Centre) -> None:
    centre.settle()
    centre.agents["m-gpu02"].speaks = False
    centre.cloud.set_state("m-gpu02", "gone", "unexplained")
    centre.scheduler.down.add("gpu02")
    scene = centre.seconds(90)
    assert scene.health("m-gpu02") == "absent"
    assert [hold.reason for hold in scene.plan.holds] == ["absent"]  # nobody knows how many the group wants
    assert centre.cloud.calls == []
    centre.cloud.target_count = 8
    centre.seconds(10)
    heal(centre, "gpu02")
    centre.seconds(90)
    assert [name for name, _ in centre.cloud.calls] == ["create"]  # what is gone is not released again
    assert centre.states()["gpu02"] == "healthy in_service"
    assert centre.book.open == {}


def test_a_machine_that_was_scaled_in_leaves_without_an_incident(centre: Centre) -> None:
    centre.settle()
    centre.agents["m-gpu02"].speaks = False
    centre.cloud.set_state("m-gpu02", "gone", "scaled_in")
    centre.scheduler.down.add("gpu02")
    centre.seconds(120)
    assert centre.fleet.is_retired("m-gpu02")
    assert centre.opened() == []
    assert centre.harm() == []
