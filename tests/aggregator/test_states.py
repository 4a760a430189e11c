"""Small parts with tables: lifecycles without our doing, lives, holds of jobs, incidents and when they are over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.aggregator import casebook
from gpuwatch.aggregator.incidents import IncidentBook
from gpuwatch.aggregator.jobs import Jobs
from gpuwatch.aggregator.lifecycle import next_lifecycle
from gpuwatch.aggregator.lives import Lives
from gpuwatch.aggregator.settings import ClusterSettings, PoolSettings, ServerSettings, Settings
from gpuwatch.clouds import CloudMachine, CloudSnapshot
from gpuwatch.model.ledger import (
    AttemptEnded,
    AttemptStarted,
    FaultClosed,
    FaultNote,
    FaultOpened,
    HealthChanged,
    LedgerLine,
    LifecycleChanged,
    LifeEnded,
    LifeStarted,
    Member,
    NodeHeld,
    NodeLetGo,
)
from gpuwatch.model.run import RunView
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.verdict import Judgement, RunVerdict, Verdict
from gpuwatch.model.view import CloudSays, FleetView, NodeView, SchedulerSays
from gpuwatch.schedulers import SchedulerJob, SchedulerSnapshot

S = 10**9
NOW_NS = 1_700_000_000 * S


def view(lifecycle: Lifecycle = Lifecycle.IN_SERVICE, **changes: Any) -> NodeView:
    usual: dict[str, Any] = {
        "slot": "gpu01",
        "machine": "m1",
        "boot": "b1",
        "pool": "p",
        "lifecycle": lifecycle,
        "expected_gpu_count": 8,
        "last_report_monotonic_ns": 90 * S,
    }
    return NodeView(**(usual | changes))


def says(state: str, owner: str = "", jobs: tuple[str, ...] = (), at_s: float = 100.0) -> SchedulerSays:
    return SchedulerSays(state=state, received_monotonic_ns=int(at_s * S), reason="why", drain_owner=owner, jobs=jobs)


IN, OUT = Lifecycle.IN_SERVICE, Lifecycle.DRAINED
NEW, GOING = Lifecycle.PROVISIONING, Lifecycle.DRAINING


@pytest.mark.parametrize(
    ("lifecycle", "health", "scheduler", "expected"),
    [
        pytest.param(NEW, Health.HEALTHY, says("idle"), IN, id="joins"),
        pytest.param(NEW, Health.HEALTHY, says("allocated", jobs=("j",)), IN, id="joins-with-a-job-on-it"),
        pytest.param(NEW, Health.HEALTHY, says("down"), None, id="not-while-the-scheduler-says-down"),
        pytest.param(NEW, Health.HEALTHY, None, None, id="not-before-the-scheduler-has-spoken"),
        pytest.param(NEW, Health.UNKNOWN, says("idle"), None, id="not-before-it-is-healthy"),
        pytest.param(IN, Health.HEALTHY, says("idle"), None, id="stays"),
        pytest.param(IN, Health.DEAD, says("down"), None, id="down-is-a-witness-no-lifecycle"),
        pytest.param(IN, Health.HEALTHY, says("draining", "foreign", ("j",)), GOING, id="others-drain"),
        pytest.param(GOING, Health.HEALTHY, says("drained", "foreign"), OUT, id="others-drained"),
        pytest.param(OUT, Health.HEALTHY, says("drained", "foreign"), None, id="others-keep-it"),
        pytest.param(OUT, Health.HEALTHY, says("idle"), IN, id="somebody-resumed-it"),
        pytest.param(IN, Health.HEALTHY, says("draining", "gpuwatch", ("j",)), GOING, id="a-drain-of-ours-forgotten"),
        pytest.param(GOING, Health.DEAD, says("down", "gpuwatch"), OUT, id="our-drain-became-empty"),
        pytest.param(OUT, Health.DEAD, says("drained", "gpuwatch"), None, id="our-drain-stays"),
        pytest.param(OUT, Health.DEAD, says("idle", at_s=10.0), None, id="a-word-older-than-the-change"),
        pytest.param(Lifecycle.REPLACING, Health.DEAD, says("idle"), None, id="ours-is-ours"),
        pytest.param(Lifecycle.QUARANTINED, Health.HEALTHY, says("idle"), None, id="quarantine-is-for-people"),
    ],
)
def test_lifecycles_that_nobody_ordered(
    lifecycle: Lifecycle, health: Health, scheduler: SchedulerSays | None, expected: Lifecycle | None
) -> None:
    change = next_lifecycle(
        view(lifecycle, scheduler=scheduler), health, fills_slot=True, witnessed=True, changed_monotonic_ns=50 * S
    )
    assert (change and change[0]) == expected


def test_a_machine_that_waits_for_its_slot_does_not_come_into_service_by_itself() -> None:
    waiting = view(NEW, scheduler=says("idle"))
    assert not next_lifecycle(waiting, Health.HEALTHY, fills_slot=False, witnessed=True, changed_monotonic_ns=0)


@pytest.mark.parametrize(
    ("because", "last_report_s", "expected"),
    [
        pytest.param("surplus", 10.0, Lifecycle.RETIRED, id="scaled-in"),
        pytest.param("unexplained", 10.0, None, id="unexplained-is-judged-not-forgotten"),
        pytest.param("surplus", 99.0, None, id="its-agent-speaks-still"),
    ],
)
def test_gone_from_the_cloud(because: str, last_report_s: float, expected: Lifecycle | None) -> None:
    gone = CloudSays(state="gone", received_monotonic_ns=100 * S, absent_because=because)
    seen = view(cloud=gone, last_report_monotonic_ns=int(last_report_s * S))
    change = next_lifecycle(seen, Health.ABSENT, fills_slot=True, witnessed=True, changed_monotonic_ns=0)
    assert (change and change[0]) == expected


def test_a_machine_that_is_being_deleted_is_not_retired_before_it_is_gone() -> None:
    leaving = CloudSays(state="releasing", received_monotonic_ns=100 * S, absent_because="scaled_in")
    seen = view(cloud=leaving, last_report_monotonic_ns=10 * S)
    assert not next_lifecycle(seen, Health.ABSENT, fills_slot=True, witnessed=True, changed_monotonic_ns=0)


def settings(**pool: Any) -> Settings:
    return Settings(
        server=ServerSettings(secret_file=Path("secret")),
        cluster=ClusterSettings(),
        pools={"p": PoolSettings(**pool)},
        places={},
        rest="p",
        cloud=None,
        scheduler=None,
        rules={},
        fleet_rules={},
    )


def machine(name: str = "m1", **changes: Any) -> CloudMachine:
    usual: dict[str, Any] = {
        "machine": name,
        "slot": "gpu01",
        "group": "g",
        "state": "running",
        "sku": "big",
        "gpu_count": 8,
        "started_unix_ns": NOW_NS,
    }
    return CloudMachine(**(usual | changes))


def test_lives_are_written_once_from_the_providers_record() -> None:
    lives = Lives(settings(region="eastus"), [])
    listed = CloudSnapshot(machines=(machine(action_id="a1/create"),), groups=())
    (start, lifecycle) = lives.of_cloud(listed, lambda key: "f1" if key == "a1/create" else None, NOW_NS + 5 * S)
    assert isinstance(start, LifeStarted)
    assert (start.source, start.fault, start.region, start.sku, start.gpu_count) == (
        "provider",
        "f1",
        "eastus",
        "big",
        8,
    )
    assert isinstance(lifecycle, LifecycleChanged)
    assert lifecycle.lifecycle == "provisioning"
    assert lives.of_cloud(listed, lambda _: None, NOW_NS + 9 * S) == []
    ended = CloudSnapshot(machines=(machine(state="gone", ended_unix_ns=NOW_NS + 60 * S),), groups=())
    (end,) = lives.of_cloud(ended, lambda _: None, NOW_NS + 70 * S)
    assert isinstance(end, LifeEnded)
    assert end.source == "provider"
    assert 60 * S - 3600 < end.at_unix_ns - NOW_NS <= 60 * S
    assert lives.of_cloud(ended, lambda _: None, NOW_NS + 80 * S) == []
    again = Lives(settings(), [start, lifecycle, end])  # after a restart
    assert again.of_cloud(ended, lambda _: None, NOW_NS + 90 * S) == []


def test_what_an_old_machine_did_before_we_came_is_not_provisioning() -> None:
    lives = Lives(settings(), [])
    listed = CloudSnapshot(machines=(machine(started_unix_ns=NOW_NS - 90 * 86_400 * S),), groups=())
    lifecycle = lives.of_cloud(listed, lambda _: None, NOW_NS)[1]
    assert isinstance(lifecycle, LifecycleChanged)
    assert lifecycle.lifecycle == "in_service"


def job(name: str, state: Any, slots: tuple[str, ...] = (), **changes: Any) -> SchedulerJob:
    return SchedulerJob(job=name, run="run", attempt=name, state=state, slots=slots, gpus_per_slot=8, **changes)


def snapshot(*jobs: SchedulerJob) -> SchedulerSnapshot:
    return SchedulerSnapshot(nodes=(), jobs=jobs)


def test_a_run_that_waits_holds_what_it_had_until_another_gets_it() -> None:
    machines = {"gpu01": "m1", "gpu02": "m2"}
    jobs = Jobs(lambda slot, _at: machines.get(slot), lambda _slot: 8, [])
    running = job("run.1", "running", ("gpu01", "gpu02"))
    jobs.facts(snapshot(running))
    first = jobs.holds(snapshot(running), NOW_NS)
    assert {(line.machine, type(line)) for line in first} == {("m1", NodeHeld), ("m2", NodeHeld)}  # type: ignore[union-attr]
    requeued = job("run.1", "ended", ("gpu01", "gpu02"), end_cause="requeued")
    waiting = snapshot(requeued, job("run.2", "pending"))
    jobs.facts(waiting)
    assert jobs.holds(waiting, NOW_NS) == []
    other = msgspec.structs.replace(job("other.1", "running", ("gpu02",)), run="other")
    taken = snapshot(requeued, job("run.2", "pending"), other)
    jobs.facts(taken)
    second = jobs.holds(taken, NOW_NS)
    assert {(type(line), line.run, line.machine) for line in second} == {  # type: ignore[union-attr]
        (NodeLetGo, "run", "m2"),
        (NodeHeld, "other", "m2"),
    }
    over = snapshot(requeued)
    jobs.facts(over)
    assert {line.machine for line in jobs.holds(over, NOW_NS)} == {"m1", "m2"}  # type: ignore[union-attr]


def test_an_attempts_members_are_those_it_began_with() -> None:
    machines = {"gpu01": "m1"}
    jobs = Jobs(lambda slot, _at: machines.get(slot), lambda _slot: None, [])
    jobs.facts(snapshot(job("run.1", "running", ("gpu01",))))
    machines["gpu01"] = "m9"  # replaced meanwhile
    (fact,) = jobs.facts(snapshot(job("run.1", "ended", ("gpu01",), end_cause="requeued")))
    assert fact.members == (Member(machine="m1", gpu_thousandths=8000),)
    written = AttemptStarted(at_unix_ns=1, run="run", attempt="run.1", members=fact.members)
    again = Jobs(lambda slot, _at: machines.get(slot), lambda _slot: None, [written])
    (fact,) = again.facts(snapshot(job("run.1", "ended", ("gpu01",), end_cause="requeued")))
    assert fact.members[0].machine == "m1"


@pytest.mark.parametrize(
    ("exit_code", "cause", "planned", "ended"),
    [
        (0, "completed", False, "exit0"),
        (1, "failed", False, "unplanned"),
        (None, "requeued", False, "unplanned"),
        (None, "cancelled", True, "planned"),
        (0, "cancelled", True, "planned"),
    ],
)
def test_how_an_attempt_ended(exit_code: int | None, cause: str, planned: bool, ended: str) -> None:
    jobs = Jobs(lambda _slot, _at: "m1", lambda _slot: 8, [])
    over = job("run.1", "ended", ("gpu01",), end_cause=cause, exit_code=exit_code, planned=planned)
    assert jobs.facts(snapshot(over))[0].ended == ended


class Ledger:
    """A ledger in memory."""

    def __init__(self, *lines: LedgerLine) -> None:
        self.lines = list(lines)

    def last_row_id(self) -> int:
        return len(self.lines)

    def lines_of(self, *kinds: str) -> list[LedgerLine]:
        return [line for line in self.lines if line.__struct_config__.tag in kinds]

    def lines_after(self, row_id: int) -> tuple[int, list[LedgerLine]]:
        return len(self.lines), self.lines[row_id:]


def opened(fault: str = "f1", machine: str | None = "m1", run: str | None = None) -> FaultOpened:
    return FaultOpened(
        at_unix_ns=NOW_NS,
        fault=fault,
        kind="node_dead" if machine else "run_stalled",
        onset_unix_ns=NOW_NS - 9 * S,
        cause="dead",
        because="two witnesses",
        machine=machine,
        slot="gpu01" if machine else None,
        run=run,
        pool="p",
    )


def test_an_incident_is_told_by_the_ledger_whoever_wrote_it() -> None:
    ledger = Ledger(opened())
    book = IncidentBook(ledger)
    ledger.lines.append(
        HealthChanged(
            at_unix_ns=NOW_NS - 9 * S, machine="m1", slot="gpu01", health="dead", because="two witnesses", fault="f1"
        )
    )
    ledger.lines.append(FaultNote(at_unix_ns=NOW_NS + S, fault="f1", text="kim approved it"))
    book.follow()
    found = book.get("f1")
    assert found is not None
    assert [entry.text for entry in found.timeline] == [
        "from here on gpu01 counts as dead",
        "detected: two witnesses",
        "kim approved it",
    ]
    assert book.open == {"m1": "f1"}
    assert IncidentBook(ledger).get("f1") == found  # after a restart
    ledger.lines.append(FaultClosed(at_unix_ns=NOW_NS + 2 * S, fault="f1", because="replaced"))
    book.follow()
    assert book.open == {}
    assert book.free_id("f1") == "f1-2"


def known(verdicts: tuple[Verdict, ...] = (), **changes: Any) -> casebook.Known:
    usual: dict[str, Any] = {
        "fleet": FleetView(nodes=(view(),)),
        "judgement": Judgement(nodes=verdicts),
        "busy": {},
        "replaced": {},
        "run_is_open": lambda _run: True,
        "now_unix_ns": NOW_NS,
    }
    return casebook.Known(**(usual | changes))


def verdict(health: Health, **changes: Any) -> Verdict:
    return Verdict(slot="gpu01", machine="m1", health=health, because="so it is", since_unix_ns=NOW_NS, **changes)


@pytest.mark.parametrize(
    ("health", "cause", "opens"),
    [
        (Health.DEAD, "dead", True),
        (Health.DRIVER_FAILED, "probe_hung", True),
        (Health.DEGRADED, "xid_63", True),
        (Health.ABSENT, "absent_unexplained", True),
        (Health.ABSENT, "absent_scaled_in", False),
        (Health.SUSPECT, "agent_silent", False),
        (Health.UNKNOWN, "", False),
    ],
)
def test_only_a_verdict_that_condemns_opens_an_incident(health: Health, cause: str, opens: bool) -> None:
    book = IncidentBook(Ledger())
    lines = casebook.openings(book, known((verdict(health, cause=cause, kind="k"),)))
    assert bool(lines) is opens
    if opens:
        assert isinstance(lines[0], FaultOpened)
        assert lines[0].fault == f"k-gpu01-{NOW_NS // S}"
        book.apply(lines)
        assert casebook.openings(book, known((verdict(Health.DEAD),))) == []  # the same fault, only worse


def test_a_stall_whose_node_is_found_out_later_is_one_fault() -> None:
    book = IncidentBook(Ledger(opened("f1", machine=None, run="run")))
    run = RunView(
        run="run",
        attempt="run.1",
        machines=("m1",),
        ranks=(),
        world_size=8,
        step=1,
        phase="train",
        moved_monotonic_ns=0,
    )
    seen = known((verdict(Health.DEAD),), fleet=FleetView(nodes=(view(run=run),), runs=(run,)))
    book.apply(casebook.openings(book, seen))
    assert book.open == {"m1": "f1", "run:run": "f1"}


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        pytest.param({"verdicts": (verdict(Health.HEALTHY),)}, "healthy and in service again", id="well-again"),
        pytest.param({"verdicts": (verdict(Health.SUSPECT),)}, "", id="not-yet"),
        pytest.param({"verdicts": (verdict(Health.HEALTHY),), "busy": {"f1": "a1"}}, "", id="an-action-goes-on"),
        pytest.param({"replaced": {"f1": "m9"}}, "m9 took the place of m1", id="replaced"),
        pytest.param({"fleet": FleetView(nodes=())}, "has left the fleet", id="gone"),
    ],
)
def test_when_a_nodes_incident_is_over(changes: dict[str, Any], because: str) -> None:
    book = IncidentBook(Ledger(opened()))
    lines = casebook.closings(book, known(changes.pop("verdicts", ()), **changes))
    assert (because in lines[0].because) if because else lines == []  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("step_end_s", "stalled", "over"),
    [
        pytest.param(-20.0, False, False, id="no-step-since"),
        pytest.param(5.0, False, True, id="a-step-since"),
        pytest.param(5.0, True, False, id="stalled-again"),
    ],
)
def test_when_a_stalled_runs_incident_is_over(step_end_s: float, stalled: bool, over: bool) -> None:
    run = RunView(
        run="run",
        attempt="run.2",
        machines=("m1",),
        ranks=(),
        world_size=8,
        step=41,
        phase="train",
        moved_monotonic_ns=0,
        step_end_unix_ns=NOW_NS + int(step_end_s * S),
    )
    again = RunVerdict(
        run="run", attempt="run.2", kind="k", because="", onset_unix_ns=0, since_unix_ns=0, since_monotonic_ns=0
    )
    book = IncidentBook(Ledger(opened("f1", machine=None, run="run")))
    fleet = FleetView(nodes=(), runs=(run,))
    lines = casebook.closings(book, known(fleet=fleet, judgement=Judgement(nodes=(), runs=(again,) if stalled else ())))
    assert bool(lines) is over


def test_an_end_that_we_ordered_belongs_to_the_fault_it_was_ordered_for() -> None:
    book = IncidentBook(Ledger(opened()))
    end = AttemptEnded(at_unix_ns=NOW_NS, run="run", attempt="run.1", ended="planned", cause="requeued")
    (blamed,) = casebook.blame_ends(book, [end], {"run.1": "f1"})
    assert isinstance(blamed, AttemptEnded)
    assert (blamed.fault, blamed.ended) == ("f1", "unplanned")
    assert casebook.blame_ends(book, [end], {}) == [end]
