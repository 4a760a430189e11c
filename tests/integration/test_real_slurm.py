"""The slurm leaf against a real Slurm of several virtual nodes: drains, jobs, other hands, a controller in trouble."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from gpuwatch.clock import SystemClock
from gpuwatch.errors import SchedulerError
from gpuwatch.schedulers import SchedulerJob, SchedulerNode
from gpuwatch.schedulers.slurm import Settings, SlurmScheduler
from tests.slurm_cluster import SlurmCluster, until

pytestmark = [pytest.mark.needs("slurmctld", "slurmd", "munged", "scontrol", "root"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def whole() -> Iterator[SlurmCluster]:
    made = SlurmCluster()
    try:
        made.ready()
        yield made
    finally:
        made.stop()


@pytest.fixture
def slurm(whole: SlurmCluster) -> SlurmCluster:
    whole.clear()
    return whole


Form = Literal["auto", "json", "text"]


def leaf(slurm: SlurmCluster, read: Form = "text", timeout_s: float = 10.0) -> SlurmScheduler:
    return SlurmScheduler(Settings(configuration=str(slurm.conf), read=read, timeout_s=timeout_s), SystemClock())


def node(scheduler: SlurmScheduler, slot: str) -> SchedulerNode:
    return next(found for found in scheduler.snapshot().nodes if found.slot == slot)


def attempt(scheduler: SlurmScheduler, name: str) -> SchedulerJob | None:
    return next((job for job in scheduler.snapshot().jobs if job.attempt == name), None)


def live(scheduler: SlurmScheduler) -> list[SchedulerJob]:
    return [job for job in scheduler.snapshot().jobs if job.state == "running"]


def alive(pid: str) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def running(slurm: SlurmCluster, job: int) -> None:
    until(f"job {job} runs", 20, lambda: slurm.job_state(job) == "RUNNING")


@pytest.mark.parametrize("read", ["text", "json"])
def test_a_drain_waits_for_the_job_and_is_lifted_only_by_us(slurm: SlurmCluster, read: Form) -> None:
    scheduler = leaf(slurm, read)
    go_on = slurm.directory / f"go-on-{read}"
    job = slurm.submit(f"while [ ! -e {go_on} ]; do sleep 0.1; done", "-N3", "--gres=gpu:8", "-J", "opt", "-w", "gpu2")
    running(slurm, job)
    scheduler.drain("gpu2", reason="xid 79 on gpu 3 (f-1)", action_id="replace-1/drain")
    scheduler.drain("gpu2", reason="xid 79 on gpu 3 (f-1)", action_id="replace-1/drain")
    seen = node(scheduler, "gpu2")
    assert (seen.state, seen.drain_owner, seen.jobs) == ("draining", "gpuwatch", (f"{job}.0",))
    assert seen.reason == "gpuwatch: xid 79 on gpu 3 (f-1) [replace-1/drain]"
    fact = attempt(scheduler, f"{job}.0")
    assert fact is not None
    assert (fact.run, fact.state, len(fact.slots), fact.gpus_per_slot, fact.user) == ("opt", "running", 3, 8, "root")
    go_on.touch()
    until("it is empty", 20, lambda: node(scheduler, "gpu2").state == "drained")
    assert node(scheduler, "gpu2").jobs == ()
    fact = attempt(scheduler, f"{job}.0")
    assert fact is not None
    assert (fact.state, fact.end_cause, fact.exit_code, fact.planned) == ("ended", "completed", 0, False)
    assert fact.started_unix_ns is not None
    assert fact.ended_unix_ns is not None
    assert 0 <= time.time() - fact.ended_unix_ns / 1e9 < 60
    scheduler.resume("gpu2", action_id="replace-1/resume")
    scheduler.resume("gpu2", action_id="replace-1/resume")
    until("it takes work", 20, lambda: node(scheduler, "gpu2").state == "idle")
    assert node(scheduler, "gpu2").drain_owner == ""


def test_a_drain_by_another_hand_is_neither_written_over_nor_lifted(slurm: SlurmCluster) -> None:
    scheduler = leaf(slurm)
    slurm.run("scontrol", "update", "nodename=gpu1", "state=drain", "reason=fan tray, bob")
    with pytest.raises(SchedulerError, match="drained by another: 'fan tray, bob'") as caught:
        scheduler.drain("gpu1", reason="xid 79", action_id="a/drain")
    assert not caught.value.retry
    with pytest.raises(SchedulerError, match="drained by another"):
        scheduler.resume("gpu1", action_id="a/resume")
    seen = node(scheduler, "gpu1")
    assert (seen.state, seen.drain_owner, seen.reason) == ("drained", "foreign", "fan tray, bob")
    slurm.run("scontrol", "update", "nodename=gpu2", "state=down", "reason=PSU is out, bob")
    with pytest.raises(SchedulerError, match="PSU is out"):
        scheduler.drain("gpu2", reason="xid 79", action_id="b/drain")
    assert (node(scheduler, "gpu2").state, node(scheduler, "gpu2").drain_owner) == ("down", "foreign")


def test_another_reason_put_over_ours_makes_the_drain_theirs_and_a_resume_by_a_person_is_seen(
    slurm: SlurmCluster,
) -> None:
    scheduler = leaf(slurm)
    scheduler.drain("gpu1", reason="xid 79", action_id="a/drain")
    slurm.run("scontrol", "update", "nodename=gpu1", "state=drain", "reason=I look at it myself, bob")
    with pytest.raises(SchedulerError, match="I look at it myself"):
        scheduler.resume("gpu1", action_id="a/resume")
    scheduler.drain("gpu2", reason="xid 79", action_id="b/drain")
    slurm.run("scontrol", "update", "nodename=gpu2", "state=resume")
    assert node(scheduler, "gpu2").drain_owner == ""
    until("it takes work", 20, lambda: node(scheduler, "gpu2").state == "idle")


def test_what_is_not_one_node_is_not_drained(slurm: SlurmCluster) -> None:
    scheduler = leaf(slurm)
    for slot in ("ALL", "gpu[1-4]", "gpu1,gpu2", "nobody", "gpu1 state=down", ""):
        with pytest.raises(SchedulerError):
            scheduler.drain(slot, reason="xid 79", action_id="a/drain")
    assert {found.state for found in scheduler.snapshot().nodes} == {"idle"}


def test_a_requeue_ends_one_attempt_and_never_touches_the_next(slurm: SlurmCluster) -> None:
    scheduler = leaf(slurm)
    job = slurm.submit("exec sleep 600", "-N2", "-J", "opt", "--requeue")
    running(slurm, job)
    fact = attempt(scheduler, f"{job}.0")
    assert fact is not None
    assert fact.may_requeue
    scheduler.act_on_job(f"{job}.0", "requeue", action_id="a/end_job")
    scheduler.act_on_job(f"{job}.0", "requeue", action_id="a/end_job")
    until("it waits again", 20, lambda: slurm.job_state(job) == "PENDING")
    slurm.start_now(job)
    scheduler.act_on_job(f"{job}.0", "requeue", action_id="a/end_job")
    for who in (scheduler, leaf(slurm)):  # one that saw it all, and one that has just begun
        before, after = attempt(who, f"{job}.0"), attempt(who, f"{job}.1")
        assert before is not None
        assert after is not None
        assert (before.state, before.end_cause, after.state) == ("ended", "requeued", "running")
        assert before.ended_unix_ns is not None
        assert after.started_unix_ns is not None
        assert before.ended_unix_ns <= after.started_unix_ns
    known = attempt(scheduler, f"{job}.0")
    assert known is not None
    assert (known.planned, len(known.slots)) == (True, 2)
    assert slurm.run("scontrol", "-o", "show", "job", str(job)).count("Restarts=1 ") == 1


def test_what_a_job_forbids_is_not_done_and_a_cancel_is_done_once(slurm: SlurmCluster) -> None:
    scheduler = leaf(slurm)
    job = slurm.submit("exec sleep infinity", "-N1", "--no-requeue", "-J", "stubborn")
    running(slurm, job)
    fact = attempt(scheduler, f"{job}.0")
    assert fact is not None
    assert (fact.may_requeue, fact.may_cancel) == (False, True)
    with pytest.raises(SchedulerError, match="does not allow requeue") as caught:
        scheduler.act_on_job(f"{job}.0", "requeue", action_id="a")
    assert not caught.value.retry
    assert slurm.job_state(job) == "RUNNING"
    scheduler.act_on_job(f"{job}.0", "cancel", action_id="b")
    scheduler.act_on_job(f"{job}.0", "cancel", action_id="b")
    until("it is off its node", 20, lambda: all(found.state == "idle" for found in scheduler.snapshot().nodes))
    fact = attempt(scheduler, f"{job}.0")
    assert fact is not None
    assert (fact.state, fact.end_cause, fact.planned) == ("ended", "cancelled", True)


def test_a_signal_is_sent_once_even_by_a_leaf_that_has_forgotten(slurm: SlurmCluster) -> None:
    told = slurm.directory / "told"
    job = slurm.submit(
        f"trap 'echo x >> {told}' TERM; while [ ! -e enough ]; do sleep 0.05; done", "-N1", "-J", "saver"
    )
    running(slurm, job)
    time.sleep(0.3)  # until the shell has set its trap
    leaf(slurm).act_on_job(f"{job}.0", "signal", action_id="a")
    leaf(slurm).act_on_job(f"{job}.0", "signal", action_id="a")
    until("it was told", 10, told.exists)
    assert "gpuwatch: signalled (a)" in slurm.run("scontrol", "-o", "show", "job", str(job))
    time.sleep(0.3)
    assert told.read_text() == "x\n"
    (slurm.directory / "enough").touch()
    until("it is over", 10, lambda: slurm.job_state(job) != "RUNNING")


def test_one_task_of_an_array_is_meant_not_the_array_and_components_of_one_job_are_one_attempt(
    slurm: SlurmCluster,
) -> None:
    scheduler = leaf(slurm)
    array = slurm.submit("exec sleep 600", "-N1", "--gres=gpu:8", "--array=1-2", "-J", "sweep")
    until("both tasks run", 20, lambda: len(live(scheduler)) == 2)
    first = next(job for job in live(scheduler) if job.job == f"{array}.0")  # its own id is the array's too
    scheduler.act_on_job(first.job, "cancel", action_id="a")
    until("one is left", 20, lambda: len(live(scheduler)) == 1)
    time.sleep(0.5)
    assert len(live(scheduler)) == 1
    slurm.clear()
    words = ("sbatch", "--parsable", "--output=/dev/null", "-J", "het", "-N1", "-w", "gpu1", ":", "-N1", "-w", "gpu2")
    leader = int(slurm.run(*words, "--wrap", f"echo $SLURM_JOB_ID > {slurm.directory}/het; exec sleep 600"))
    until("it runs", 60, lambda: bool(live(scheduler)))
    (job,) = live(scheduler)
    until("its processes run", 10, (slurm.directory / "het").exists)
    assert (job.attempt, set(job.slots)) == (f"{leader}.0", {"gpu1", "gpu2"})
    assert (slurm.directory / "het").read_text().strip() == str(leader)


def test_a_node_whose_slurmd_is_killed_is_down_and_its_job_ended_unplanned(slurm: SlurmCluster) -> None:
    scheduler = leaf(slurm)
    job = slurm.submit("exec sleep 600", "-N2", "-J", "opt", "-w", "gpu3")
    running(slurm, job)
    assert attempt(scheduler, f"{job}.0") is not None
    slurm.kill("gpu3")
    try:
        until("Slurm calls it down", 40, lambda: node(scheduler, "gpu3").state == "down")
        seen = node(scheduler, "gpu3")
        assert (seen.reason, seen.drain_owner, seen.jobs) == ("Not responding", "", ())
        until("its job waits again", 20, lambda: attempt(scheduler, f"{job}.0") is not None)
        fact = attempt(scheduler, f"{job}.0")
        assert fact is not None
        assert (fact.state, fact.end_cause, fact.planned) == ("ended", "node_failed", False)
        scheduler.drain("gpu3", reason="dead", action_id="a/drain")  # what Slurm itself said is nobody's drain
        assert (node(scheduler, "gpu3").state, node(scheduler, "gpu3").drain_owner) == ("down", "gpuwatch")
        with pytest.raises(SchedulerError, match="cannot be resumed yet") as caught:
            scheduler.resume("gpu3", action_id="a/resume")
        assert caught.value.retry
    finally:
        slurm.start_node("gpu3")
    until("it is back, still drained", 20, lambda: node(scheduler, "gpu3").state == "drained")
    scheduler.resume("gpu3", action_id="a/resume")
    until("it takes work", 20, lambda: node(scheduler, "gpu3").state == "idle")


def test_a_controller_that_hangs_or_is_away_gives_no_answer_soon(slurm: SlurmCluster) -> None:
    forms = [leaf(slurm, "text", timeout_s=0.5), leaf(slurm, "json", timeout_s=0.5)]
    for scheduler in forms:
        scheduler.snapshot()
    scheduler = forms[0]
    calls: list[Callable[[], object]] = [
        *(form.snapshot for form in forms),
        lambda: scheduler.drain("gpu1", reason="xid 79", action_id="a/drain"),
        lambda: scheduler.resume("gpu1", action_id="a/resume"),
        lambda: scheduler.act_on_job("1.0", "cancel", action_id="a/end_job"),
    ]
    slurm.freeze("slurmctld")
    try:
        for call in calls:
            begun_s = time.monotonic()
            with pytest.raises(SchedulerError, match=r"no answer within 0\.5 s") as caught:
                call()
            assert caught.value.retry
            assert time.monotonic() - begun_s < 2.5
    finally:
        slurm.thaw("slurmctld")
    slurm.stop_controller()
    try:
        for call in calls:
            with pytest.raises(SchedulerError) as caught:
                call()
            assert caught.value.retry
    finally:
        slurm.start_controller()


GARBAGE = [
    ("", 0),
    ("Segmentation fault", 0),
    ("NodeName=gpu1 Arch=x86_64 CoresPerSocket=1", 0),
    ("JobId=1 JobName=opt UserId=root(0)", 0),
    ("{}", 0),
    ('{"nodes": [], "jobs": [], "errors": []}', 0),
    ('{"nodes": [{"name": 7}], "jobs": [7], "errors": []}', 0),
    ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1),
    ("", 139),
]


def test_garbage_in_the_middle_of_a_drain_is_no_answer(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf(slurm).drain("gpu1", reason="xid 79 at last", action_id="a/drain")
    good = os.environ["PATH"]
    for scheduler in (leaf(slurm, "text"), leaf(slurm, "json"), leaf(slurm)):
        assert node(scheduler, "gpu1").drain_owner == "gpuwatch"
        monkeypatch.setenv("PATH", f"{tmp_path}:{good}")
        for says, code in GARBAGE:
            for name in ("scontrol", "sinfo", "squeue"):
                (tmp_path / name).write_text(f"#!/bin/sh\nprintf '%s\\n' '{says}'\nexit {code}\n")
                (tmp_path / name).chmod(0o755)
            for call in (
                scheduler.snapshot,
                lambda: scheduler.resume("gpu1", action_id="a/resume"),  # noqa: B023
                lambda: scheduler.drain("gpu2", reason="xid 79 at last", action_id="b/drain"),  # noqa: B023
            ):
                with pytest.raises(SchedulerError):
                    call()
        monkeypatch.setenv("PATH", good)
        assert node(scheduler, "gpu1").drain_owner == "gpuwatch"
        assert node(scheduler, "gpu2").drain_owner == ""


def test_a_command_that_hangs_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pids"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\nsleep 600 &\necho $$ $! > {pids}\nwait\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SchedulerError, match="no answer within"):
        SlurmScheduler(Settings(timeout_s=0.5), SystemClock()).snapshot()
    until("both are gone", 5, lambda: not any(alive(pid) for pid in pids.read_text().split()))
