"""The slurm leaf on a real Slurm among strangers: what people write, what users pretend, what else a cluster does."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from gpuwatch.clock import SystemClock
from gpuwatch.errors import SchedulerError
from gpuwatch.schedulers import SchedulerNode
from gpuwatch.schedulers.slurm import UNLISTED, Settings, SlurmScheduler
from gpuwatch.sdk import slurm_command
from tests.slurm_cluster import SlurmCluster, until

pytestmark = [pytest.mark.needs("slurmctld", "slurmd", "munged", "scontrol", "root"), pytest.mark.timeout(120)]

MORE = """\
PrivateData=jobs,cloud
Epilog={directory}/epilog
SuspendTime=INFINITE
SuspendProgram=/bin/true
ResumeProgram=/bin/true
RebootProgram=/bin/true
NodeName=future1 CPUs=2 RealMemory=2000 State=FUTURE
NodeName=cloud1 CPUs=2 RealMemory=2000 State=CLOUD
PartitionName=more Nodes=cloud1 MaxTime=INFINITE State=UP
"""
NAMES = ("gpu1", "gpu2")


@pytest.fixture(scope="module")
def whole() -> Iterator[SlurmCluster]:
    made = SlurmCluster(NAMES, started=False)
    try:
        with made.conf.open("a") as conf:
            conf.write(MORE.format(directory=made.directory))
        epilog = made.directory / "epilog"
        epilog.write_text(f"#!/bin/sh\nwhile [ -e {made.directory}/hang ]; do sleep 0.1; done\n")
        epilog.chmod(0o755)
        made.start()
        made.ready()
        yield made
    finally:
        made.stop()


@pytest.fixture
def slurm(whole: SlurmCluster) -> SlurmCluster:
    whole.clear()
    return whole


Form = Literal["auto", "json", "text"]
FORMS: tuple[Form, ...] = ("text", "json")


def leaf(slurm: SlurmCluster, read: Form = "auto") -> SlurmScheduler:
    return SlurmScheduler(Settings(configuration=str(slurm.conf), read=read, timeout_s=10.0), SystemClock())


def node(scheduler: SlurmScheduler, slot: str) -> SchedulerNode:
    return next(found for found in scheduler.snapshot().nodes if found.slot == slot)


def resumed(scheduler: SlurmScheduler, slot: str) -> None:
    """A slurmd that has just begun may not answer yet: then it is tried again, as by the one who orders it."""

    def done() -> bool:
        try:
            scheduler.resume(slot, action_id="a/resume")
        except SchedulerError as error:
            if not error.retry:
                raise
            return False
        return node(scheduler, slot).state == "idle"

    until(f"{slot} takes work", 20, done)


def running(slurm: SlurmCluster, *options: str) -> int:
    job = slurm.submit("exec sleep 600", *options)
    until(f"job {job} runs", 20, lambda: slurm.job_state(job) == "RUNNING")
    return job


def test_whatever_people_write_every_node_is_still_read_and_drained(slurm: SlurmCluster) -> None:
    reason = 'fan tray\nsecond "line" = Reason=x\u2028é [bob@1] z'
    slurm.run("scontrol", "update", "nodename=gpu1", "state=drain", f"reason={reason}")
    slurm.run("scontrol", "update", "nodename=gpu1", "comment=rack 7\nReason=gpuwatch: x [a/drain]")
    slurm.run("scontrol", "update", "nodename=gpu2", "comment=rack 8\nsee the wiki")
    for read in FORMS:
        scheduler = leaf(slurm, read)
        seen = node(scheduler, "gpu1")
        assert (seen.state, seen.drain_owner, seen.reason) == ("drained", "foreign", reason)
        with pytest.raises(SchedulerError, match="drained by another"):
            scheduler.resume("gpu1", action_id="a/resume")
        scheduler.drain("gpu2", reason="xid [79]\n\0 on\u2028gpu 3", action_id="b/drain")
        assert node(scheduler, "gpu2").reason == "gpuwatch: xid (79) on gpu 3 [b/drain]"
        resumed(scheduler, "gpu2")


def test_a_person_who_adds_to_our_reason_has_taken_the_drain_over(slurm: SlurmCluster) -> None:
    scheduler = leaf(slurm)
    scheduler.drain("gpu1", reason="xid 79", action_id="a/drain")
    ours = node(scheduler, "gpu1").reason
    slurm.run("scontrol", "update", "nodename=gpu1", "state=drain", f"reason={ours}, I am at it [bob]")
    assert node(scheduler, "gpu1").drain_owner == "foreign"
    with pytest.raises(SchedulerError, match="drained by another"):
        scheduler.resume("gpu1", action_id="a/resume")
    with pytest.raises(SchedulerError, match="drained by another"):
        scheduler.drain("gpu1", reason="xid 79", action_id="a/drain")


def test_no_user_leads_an_order_to_the_job_of_another_or_invents_one(slurm: SlurmCluster) -> None:
    victim = running(slurm, "-w", "gpu1", "--array=3")
    forged = f"JobId={victim} ArrayJobId={victim} ArrayTaskId=3 JobName=x UserId=root(0) JobState=RUNNING NodeList=gpu2"
    named = f"x UserId=bob(1) JobState=RUNNING ArrayJobId={victim} ArrayTaskId=3 HetJobId={victim} y"
    for read in FORMS:
        job = running(slurm, "-w", "gpu2", "-J", named, f"--comment=z\n{forged}\nJobId=77 {forged}")
        scheduler = leaf(slurm, read)
        scheduler.act_on_job(f"{job}.0", "cancel", action_id="a")
        until("it is off its node", 20, lambda: slurm.state("gpu2") == "IDLE")
        assert slurm.job_state(victim) == "RUNNING"
    snapshot = leaf(slurm).snapshot()
    assert "77.0" not in {found.job for found in snapshot.jobs}
    assert [found.slots for found in snapshot.jobs if found.job == f"{victim}.0"] == [("gpu1",)]


def test_a_signal_leaves_the_note_of_another_whole(slurm: SlurmCluster) -> None:
    job = slurm.submit("trap '' TERM; touch deaf; while :; do sleep 0.1; done", "-J", "opt")
    until("it is deaf", 20, (slurm.directory / "deaf").exists)
    note = 'cost centre=12, "keep" é\nline 2'
    slurm.run("scontrol", "update", f"jobid={job}", f"admincomment={note}")
    for read in FORMS:
        leaf(slurm, read).act_on_job(f"{job}.0", "signal", action_id=f"a-{read}")
        note += f"; gpuwatch: signalled (a-{read})"
        assert slurm.run("squeue", "-h", "-j", str(job), "-O", "admin_comment:200").rstrip() == note


def test_a_suspended_job_holds_its_node_is_handed_no_signal_and_can_be_ended(slurm: SlurmCluster) -> None:
    scheduler = leaf(slurm)
    job = running(slurm, "-w", "gpu1", "--no-requeue")
    slurm.run("scontrol", "suspend", str(job))
    for read in FORMS:
        (seen,) = (found for found in leaf(slurm, read).snapshot().jobs if found.job == f"{job}.0")
        assert (seen.state, seen.suspended, seen.slots) == ("running", True, ("gpu1",))
    assert node(scheduler, "gpu1").jobs == (f"{job}.0",)
    begun_s = time.monotonic()
    with pytest.raises(SchedulerError, match="is suspended") as caught:
        scheduler.act_on_job(f"{job}.0", "signal", action_id="a")
    assert caught.value.retry
    assert time.monotonic() - begun_s < 3
    scheduler.act_on_job(f"{job}.0", "cancel", action_id="b")
    until("it is off its node", 20, lambda: node(scheduler, "gpu1").state == "idle")


def test_a_job_that_never_gets_off_its_node_keeps_it_from_being_empty(slurm: SlurmCluster) -> None:
    hang = slurm.directory / "hang"
    hang.touch()
    job = running(slurm, "-w", "gpu1")
    scheduler = leaf(slurm)
    scheduler.drain("gpu1", reason="xid 79", action_id="a/drain")
    try:
        scheduler.act_on_job(f"{job}.0", "cancel", action_id="a")
        until("it completes", 10, lambda: slurm.job_state(job) == "COMPLETING")
        for read in FORMS:
            seen = node(leaf(slurm, read), "gpu1")
            assert (seen.state, seen.jobs) == ("draining", (f"{job}.0",))
        scheduler.act_on_job(f"{job}.0", "cancel", action_id="a")
        scheduler.act_on_job(f"{job}.0", "requeue", action_id="a")
    finally:
        hang.unlink()
    until("it is empty", 20, lambda: node(scheduler, "gpu1").state == "drained")


def test_a_machine_that_registers_with_too_few_gpus_is_not_resumed_and_we_say_why(slurm: SlurmCluster) -> None:
    scheduler = leaf(slurm)
    gres = slurm.directory / "gres.conf"
    good = gres.read_text()
    devices = f"{slurm.directory}/dev/nvidia"
    scheduler.drain("gpu2", reason="xid 79", action_id="a/drain")
    slurm.kill("gpu2")
    gres.write_text(
        f"NodeName=gpu1 Name=gpu Count=8 File={devices}[0-7]\nNodeName=gpu2 Name=gpu Count=7 File={devices}[0-6]\n"
    )
    try:
        slurm.start_node("gpu2")
        until("Slurm refuses it", 20, lambda: "INVAL" in slurm.state("gpu2"))
        seen = node(scheduler, "gpu2")
        assert (seen.state, seen.drain_owner) == ("unknown", "gpuwatch")
        with pytest.raises(SchedulerError, match="cannot be resumed yet") as caught:
            scheduler.resume("gpu2", action_id="a/resume")
        assert caught.value.retry
        assert "too few GPUs" in caught.value.why
    finally:
        gres.write_text(good)
        slurm.kill("gpu2")
        slurm.start_node("gpu2")
    until("it is whole", 20, lambda: node(scheduler, "gpu2").state == "drained")
    resumed(scheduler, "gpu2")


def test_nodes_that_are_not_there_reserved_or_asleep(slurm: SlurmCluster) -> None:
    slurm.run(
        *("scontrol", "create", "reservation", "reservationname=maint", "starttime=now", "duration=10"),
        *("nodes=gpu1", "flags=maint", "users=root"),
    )
    try:
        for read in FORMS:
            scheduler = leaf(slurm, read)
            until("it is in maintenance", 10, lambda: "MAINT" in slurm.state("gpu1"))
            states = {found.slot: found.state for found in scheduler.snapshot().nodes}
            assert states == {"gpu1": "idle", "gpu2": "idle", "cloud1": "unknown"}
            scheduler.drain("gpu1", reason="xid 79", action_id="a/drain")
            assert node(scheduler, "gpu1").state == "drained"
            resumed(scheduler, "gpu1")
            for name in ("future1", "gpu9"):
                with pytest.raises(SchedulerError, match=f"no node named '{name}'") as caught:
                    scheduler.drain(name, reason="xid 79", action_id="a/drain")
                assert not caught.value.retry
    finally:
        slurm.run("scontrol", "delete", "reservationname=maint")


def test_a_reboot_that_a_person_ordered_is_not_idle_and_survives_our_resume(slurm: SlurmCluster) -> None:
    scheduler = leaf(slurm)
    job = running(slurm, "-w", "gpu1")
    slurm.run("scontrol", "reboot", "nextstate=resume", "reason=new kernel", "gpu1")
    for read in FORMS:
        seen = node(leaf(slurm, read), "gpu1")
        assert (seen.state, seen.jobs) == ("allocated", (f"{job}.0",))
        assert "reboot" in seen.reason
    slurm.run("scontrol", "cancel_reboot", "gpu1")
    slurm.run("scancel", str(job))
    until("it is idle", 20, lambda: node(scheduler, "gpu1").state == "idle")


def test_what_an_operators_shell_sets_for_the_commands_changes_nothing(
    slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = running(slurm, "-w", "gpu1", "-J", "opt")
    plain = [leaf(slurm, read).snapshot() for read in FORMS]
    strange = {
        "SQUEUE_FORMAT": "%i",
        "SQUEUE_STATES": "PD",
        "SQUEUE_USERS": "nobody",
        "SQUEUE_PARTITION": "more",
        "SINFO_FORMAT": "%n",
        "SINFO_PARTITION": "more",
        "SLURM_TIME_FORMAT": "relative",
        "SLURM_CLUSTERS": "moon",
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "tr_TR.UTF-8",
        "SACCT_FEDERATION": "1",
        "SCONTROL_FEDERATION": "1",
        "SCANCEL_STATE": "PENDING",
        "SCANCEL_INTERACTIVE": "1",
        "SCANCEL_USER": "nobody",
        "SCANCEL_VERBOSE": "1",
    }
    for name, value in strange.items():
        monkeypatch.setenv(name, value)
    for read, before in zip(FORMS, plain, strict=True):
        assert leaf(slurm, read).snapshot() == before
    leaf(slurm).act_on_job(f"{job}.0", "cancel", action_id="a")
    until("it is over", 10, lambda: slurm.job_state(job) != "RUNNING")


def test_without_rights_nothing_is_done_and_no_node_is_taken_to_be_empty(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = running(slurm, "-w", "gpu1")
    for name in ("scontrol", "sinfo", "squeue", "scancel"):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec runuser -u nobody -- /usr/bin/{name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for read in FORMS:
        scheduler = leaf(slurm, read)
        seen = node(scheduler, "gpu1")  # PrivateData=jobs: it is not listed for us
        assert (seen.state, seen.jobs) == ("allocated", (UNLISTED,))
        with pytest.raises(SchedulerError, match=r"(?i)invalid user id|permission denied") as caught:
            scheduler.drain("gpu2", reason="xid 79", action_id="a/drain")
        assert not caught.value.retry
        scheduler.act_on_job(f"{job}.0", "cancel", action_id="a")  # to us there is no such job
    monkeypatch.undo()
    assert slurm.job_state(job) == "RUNNING"
    assert slurm.state("gpu2") == "IDLE"


def test_a_command_that_never_ends_to_print_is_ended_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_command, "MAX_OUTPUT_BYTES", 4 << 20)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scheduler = SlurmScheduler(Settings(timeout_s=30.0, read="text"), SystemClock())
    for words, said in (("yes", "no list of nodes or jobs"), ("yes >&2 & sleep 0.5; kill $!; exit 1", "failed: y y y")):
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{words}\n")
        (tmp_path / "scontrol").chmod(0o755)
        begun_s = time.monotonic()
        with pytest.raises(SchedulerError, match=said) as caught:
            scheduler.snapshot()
        assert caught.value.retry
        assert len(str(caught.value)) < 1000
        assert time.monotonic() - begun_s < 10
    assert not subprocess.run(["pgrep", "-g", "0", "-x", "yes"], capture_output=True, check=False).stdout
