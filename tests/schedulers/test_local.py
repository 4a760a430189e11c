"""The scheduler of files: gang jobs, drains that have an owner, emptiness that is confirmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.errors import SchedulerError
from gpuwatch.schedulers import SchedulerJob, SchedulerNode
from gpuwatch.schedulers.local import LocalScheduler, Settings
from gpuwatch.sdk.local_files import read_json, write_json

SLOTS = ("gpu1", "gpu2", "gpu3")


class Clock:
    """Two clocks, set by hand."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000_000_000_000

    def unix_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def forward(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


class Cluster:
    """A scheduler, and node processes played by hand."""

    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self.directory = directory
        self.scheduler = LocalScheduler(Settings(directory=directory, slots=SLOTS), self.clock)
        for slot in SLOTS:
            self.beat(slot, f"m-{slot}")

    def beat(self, slot: str, machine: str) -> None:
        write_json(self.directory / "alive" / f"{slot}@{machine}.json", {"monotonic_ns": self.clock.monotonic_ns()})

    def node(self, slot: str) -> SchedulerNode:
        return next(node for node in self.scheduler.snapshot().nodes if node.slot == slot)

    def jobs(self) -> tuple[SchedulerJob, ...]:
        return self.scheduler.snapshot().jobs

    def exits(self, slot: str, attempt: str, code: int) -> None:
        write_json(self.directory / "steps" / slot / f"{attempt}.exit", {"exit_code": code})

    def order(self, slot: str, attempt: str) -> dict[str, object]:
        return read_json(self.directory / "steps" / slot / f"{attempt}.json") or {}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_a_gang_starts_on_free_slots_and_orders_each_node_its_rank(cluster: Cluster) -> None:
    cluster.scheduler.submit("opt", command=("train", "{rank}", "{ranks}", "{attempt}"), slot_count=2)
    (job,) = cluster.jobs()
    assert (job.attempt, job.state, job.slots) == ("opt.1", "running", ("gpu1", "gpu2"))
    assert cluster.order("gpu2", "opt.1") == {"machine": "m-gpu2", "command": ["train", "1", "2", "opt.1"]}
    assert cluster.node("gpu1").state == "allocated"
    assert cluster.node("gpu3").state == "idle"


def test_a_drained_slot_takes_no_new_work_and_is_empty_only_when_its_node_says_so(cluster: Cluster) -> None:
    cluster.scheduler.submit("opt", command=("train",), slot_count=2)
    cluster.jobs()
    cluster.scheduler.drain("gpu1", reason="node dead", action_id="d1")
    assert cluster.node("gpu1").state == "draining"
    cluster.scheduler.act_on_job("opt.1", "requeue", action_id="q1")
    assert cluster.node("gpu1").state == "draining"  # ended, but its process has not left yet
    cluster.exits("gpu1", "opt.1", 143)
    assert cluster.node("gpu1").state == "drained"
    cluster.exits("gpu2", "opt.1", 143)
    assert cluster.jobs()[-1].slots == ("gpu2", "gpu3")


def test_requeue_once_is_once(cluster: Cluster) -> None:
    cluster.scheduler.submit("opt", command=("train",), slot_count=1)
    cluster.jobs()
    cluster.scheduler.act_on_job("opt.1", "requeue", action_id="q1")
    cluster.exits("gpu1", "opt.1", 143)
    assert cluster.jobs()[-1].attempt == "opt.2"
    cluster.scheduler.act_on_job("opt.2", "requeue", action_id="q1")
    assert cluster.jobs()[-1].state == "running"


def test_a_job_that_forbids_cancel_is_not_cancelled(cluster: Cluster) -> None:
    cluster.scheduler.submit("opt", command=("train",), slot_count=1)
    cluster.jobs()
    with pytest.raises(SchedulerError, match="does not allow cancel"):
        cluster.scheduler.act_on_job("opt.1", "cancel", action_id="c1")


@pytest.mark.parametrize("act", ["drain", "resume"])
def test_a_foreign_drain_is_left_alone(cluster: Cluster, act: str) -> None:
    write_json(cluster.directory / "nodes" / "gpu1.json", {"drain": "maintenance by ops", "machine": ""})
    with pytest.raises(SchedulerError, match="drained by another"):
        if act == "drain":
            cluster.scheduler.drain("gpu1", reason="xid 79", action_id="d")
        else:
            cluster.scheduler.resume("gpu1", action_id="r")
    assert cluster.node("gpu1").drain_owner == "foreign"


def test_a_silent_node_is_down_and_a_new_machine_fills_the_slot_only_when_adopted(cluster: Cluster) -> None:
    assert cluster.node("gpu1").machine == "m-gpu1"
    cluster.clock.forward(6)
    cluster.beat("gpu1", "m-new")
    assert cluster.node("gpu1").state == "down"
    cluster.scheduler.adopt("gpu1", "m-new", action_id="a")
    assert (cluster.node("gpu1").state, cluster.node("gpu1").machine) == ("idle", "m-new")


@pytest.mark.parametrize(("codes", "cause", "pending"), [((0, 0), "completed", False), ((0, 1), "failed", True)])
def test_an_attempt_ends_when_all_its_nodes_report(
    cluster: Cluster, codes: tuple[int, int], cause: str, pending: bool
) -> None:
    cluster.scheduler.submit("opt", command=("train",), slot_count=2)
    cluster.jobs()
    cluster.exits("gpu1", "opt.1", codes[0])
    assert cluster.jobs()[0].state == "running"
    cluster.exits("gpu2", "opt.1", codes[1])
    jobs = cluster.jobs()
    assert (jobs[0].state, jobs[0].end_cause) == ("ended", cause)
    assert (len(jobs) == 2) is pending


def test_a_finish_that_was_asked_for_is_planned(cluster: Cluster) -> None:
    cluster.scheduler.submit("opt", command=("train",), slot_count=1)
    cluster.jobs()
    cluster.scheduler.finish("opt")
    assert cluster.order("gpu1", "opt.1")["finish"] is True
    cluster.exits("gpu1", "opt.1", 0)
    (job,) = cluster.jobs()
    assert (job.state, job.planned, job.exit_code) == ("ended", True, 0)
