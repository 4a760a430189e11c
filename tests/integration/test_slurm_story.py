"""gpuwatch whole over a real Slurm: a real aggregator, real agents, machines of the local cloud, each with its slurmd.

And the real executor over the same Slurm by a clock of its own, where only what it decides is asked.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from gpuwatch.clock import SystemClock
from gpuwatch.model.identity import pci_address
from gpuwatch.schedulers.slurm import Settings, SlurmScheduler
from gpuwatch.simulate.nvml import pci_bus_id
from tests.fakes_centre import Centre
from tests.living_cluster import Living
from tests.slurm_cluster import SlurmCluster, until

pytestmark = [pytest.mark.needs("slurmctld", "slurmd", "munged", "scontrol", "root"), pytest.mark.timeout(180)]
SLOTS = ("gpu01", "gpu02", "gpu03", "gpu04")
NODE = Path(__file__).parent.parent / "slurm_node.py"


def over_slurm(living: Living, slurm: SlurmCluster) -> None:
    """The demo's settings with Slurm in place of the local scheduler, and a slurmd on each machine."""
    text = living.cluster.config.read_text()
    text = text.partition("[scheduler]")[0] + (
        f'[scheduler]\nkind = "slurm"\ninterval_s = 0.5\n\n[scheduler.slurm]\nconfiguration = "{slurm.conf}"\n'
    )
    text = text.replace('"-m", "gpuwatch.simulate.node",', f'"{NODE}", "{slurm.conf}",')
    text = text.replace(
        "drain_deadline_s = 1.0", 'drain_deadline_s = 12.0\nreplace_order = "release_first"\nmax_out_ratio = 0.5'
    )
    living.cluster.config.write_text(text)
    living.cluster._cloud = living.cluster._open_cloud()  # it starts the first machines, by the new words


@pytest.fixture
def living(tmp_path: Path) -> Iterator[tuple[Living, SlurmCluster]]:
    slurm = SlurmCluster(SLOTS, machines=False)
    made = Living(tmp_path / "cluster")
    over_slurm(made, slurm)
    try:
        yield made, slurm
    finally:
        made.cluster.stop()
        slurm.stop()


def xid(living: Living, slot: str) -> None:
    living.cluster.log_line(
        slot,
        f"NVRM: Xid (PCI:{pci_address(pci_bus_id(3))}): 79, pid='<unknown>', name=<unknown>, "
        "GPU has fallen off the bus.",
    )


def reason(slurm: SlurmCluster, slot: str) -> str:
    return slurm.run("scontrol", "-o", "show", "node", slot).partition(" Reason=")[2].strip()


def waiting(living: Living) -> str:
    return str(living.api("holds").get("waiting", []))


def test_a_condemned_node_of_a_running_job_is_drained_awaited_emptied_replaced_and_resumed(
    living: tuple[Living, SlurmCluster],
) -> None:
    cluster, slurm = living
    cluster.start()
    slurm.ready()
    directory = cluster.cluster.directory
    before = set(cluster.cluster.machine_ids())
    slurm.run("scontrol", "update", "nodename=gpu04", "state=drain", "reason=fan tray, bob")
    train = f"srun --ntasks-per-node=1 {sys.executable} {NODE} train {directory}"
    job = slurm.submit(train, "-N3", "--ntasks-per-node=1", "--gres=gpu:8", "-J", "opt-demo")
    cluster.until("the run steps", 40, lambda: (cluster.run().get("step") or 0) > 1)
    assert cluster.run()["attempt"] == f"{job}.0"  # heartbeats and scheduler speak of the same attempt

    sick = cluster.nodes()["gpu02"]["machine"]
    xid(cluster, "gpu02")
    xid(cluster, "gpu04")  # and one that another hand has drained
    cluster.until("it drains", 20, lambda: slurm.state("gpu02") == "MIXED+DRAIN")
    assert reason(slurm, "gpu02").startswith("gpuwatch: ")
    cluster.until("its end is awaited", 10, lambda: "still makes progress" in waiting(cluster))
    time.sleep(2.0)
    assert slurm.job_state(job) == "RUNNING"
    assert {step for _, step, _ in cluster.steps()} == {"drain", "end_job"}
    assert set(cluster.cluster.machine_ids()) == before

    (directory / "runs" / "opt-demo" / "finish").touch()
    cluster.until("the action is over", 60, lambda: bool(cluster.steps()) and not cluster.open_actions())
    assert slurm.job_state(job) == "COMPLETED"
    passed = [step for _, step, state in cluster.steps() if state == "done"]
    assert passed == ["drain", "end_job", "empty", "release", "create", "join", "validate", "adopt", "resume"]
    (new,) = set(cluster.cluster.machine_ids()) - before
    cluster.until("it takes work", 20, lambda: slurm.state("gpu02") == "IDLE")
    cluster.until("it is in service", 20, lambda: cluster.nodes()["gpu02"]["lifecycle"] == "in_service")
    assert cluster.nodes()["gpu02"]["machine"] == new
    assert sick not in [machine.machine for machine in cluster.billed()]
    assert (slurm.state("gpu04"), reason(slurm, "gpu04").startswith("fan tray, bob")) == ("IDLE+DRAIN", True)

    again = slurm.submit(f"srun {sys.executable} -c pass", "-N1", "-w", "gpu02", "-J", "after")
    until("the new machine works", 20, lambda: slurm.job_state(again) == "COMPLETED")


@pytest.fixture(scope="module")
def whole() -> Iterator[SlurmCluster]:
    made = SlurmCluster(SLOTS)
    try:
        made.ready()
        yield made
    finally:
        made.stop()


@pytest.fixture
def slurm(whole: SlurmCluster) -> SlurmCluster:
    whole.clear()
    return whole


def centre(tmp_path: Path, slurm: SlurmCluster, job_action: Literal["requeue", "cancel"]) -> Centre:
    """A centre whose scheduler is the real one, and whose clock the test moves."""
    made = Centre(tmp_path, nodes=4, policy='replace_order = "release_first"')
    pool = made.settings.pools["p"]
    policy = msgspec.structs.replace(pool.policy, job_action=job_action)
    pools = {"p": msgspec.structs.replace(pool, policy=policy)}
    made.settings = dataclasses.replace(made.settings, pools=pools)
    settings = Settings(configuration=str(slurm.conf), timeout_s=0.7)
    made.scheduler = SlurmScheduler(settings, SystemClock())  # type: ignore[assignment]
    made.boot()
    made.settle()
    return made


def seconds(made: Centre, what: str, limit: int, holds: Callable[[], bool]) -> None:
    """Let the centre's seconds pass until it is so; Slurm's own time passes too, a little."""
    for _ in range(limit):
        if holds():
            return
        made.second()
        time.sleep(0.05)
    raise AssertionError(f"not within {limit} s: {what}\n{made.states()} {made.executor.waiting} {steps(made)}")


def steps(made: Centre) -> list[tuple[str, str]]:
    return [(line.step, line.state) for line in made.lines("action_step")]


def calls(made: Centre) -> list[str]:
    return [name for name, _ in made.cloud.calls]


def endless(slurm: SlurmCluster) -> int:
    job = slurm.submit("exec sleep infinity", "-N3", "--no-requeue", "-J", "stubborn", "-w", "gpu02")
    until("it runs", 20, lambda: slurm.job_state(job) == "RUNNING")
    return job


def test_a_job_that_never_ends_and_forbids_requeue_holds_its_node_and_says_so(
    tmp_path: Path, slurm: SlurmCluster
) -> None:
    job = endless(slurm)
    made = centre(tmp_path, slurm, "requeue")
    made.agents["m-gpu02"].xid(79)
    seconds(made, "it drains", 60, lambda: slurm.state("gpu02") == "MIXED+DRAIN")
    made.seconds(75)  # the drain deadline is 60 s
    assert list(made.executor.waiting.values()) == [f"job {job}.0 does not allow requeue"]
    assert slurm.job_state(job) == "RUNNING"
    assert calls(made) == []
    slurm.run("scancel", str(job))  # what the operator who reads it does
    seconds(made, "it is replaced", 400, lambda: not made.executor.open())
    assert calls(made) == ["release", "create"]
    assert "DRAIN" not in slurm.state("gpu02")


def test_a_job_that_never_ends_is_cancelled_where_the_policy_says_so(tmp_path: Path, slurm: SlurmCluster) -> None:
    job = endless(slurm)
    made = centre(tmp_path, slurm, "cancel")
    made.agents["m-gpu02"].xid(79)
    seconds(made, "it is replaced", 600, lambda: "create" in calls(made) and not made.executor.open())
    assert slurm.job_state(job) == "CANCELLED"
    assert [step for step, state in steps(made) if state == "done"][:4] == ["drain", "end_job", "empty", "release"]
    (ended,) = [line for line in made.lines("attempt_ended") if line.attempt == f"{job}.0"]
    assert ended.cause == "cancelled"
    assert ended.fault is not None  # our order carried out what the fault began


def test_a_controller_that_hangs_restarts_or_talks_nonsense_in_a_drain_delays_it_and_no_more(
    tmp_path: Path, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = slurm.submit("exec sleep 600", "-N3", "-J", "opt", "-w", "gpu02")
    until("it runs", 20, lambda: slurm.job_state(job) == "RUNNING")
    made = centre(tmp_path, slurm, "requeue")
    slurm.freeze("slurmctld")
    made.agents["m-gpu02"].xid(79)
    made.seconds(4)
    slurm.thaw("slurmctld")
    seconds(made, "it drains", 60, lambda: "DRAIN" in slurm.state("gpu02"))
    good = os.environ["PATH"]
    for name in ("scontrol", "sinfo", "squeue", "scancel"):
        (tmp_path / name).write_text("#!/bin/sh\necho Segmentation fault\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{good}")
    before = steps(made)
    made.seconds(16)
    monkeypatch.setenv("PATH", good)
    assert calls(made) == []
    assert len(steps(made)) <= len(before) + 1
    slurm.stop_controller()
    made.seconds(10)
    assert calls(made) == []
    slurm.start_controller()
    seconds(made, "it is replaced", 600, lambda: "create" in calls(made) and not made.executor.open())
    assert calls(made) == ["release", "create"]
    assert slurm.job_state(job) == "PENDING"
    assert {state for _, state in steps(made)} == {"intended", "done"}


@pytest.mark.parametrize("act", [("state=resume",), ("state=drain", "reason=let me look, bob")])
def test_a_person_who_steps_in_during_a_drain_wins(tmp_path: Path, slurm: SlurmCluster, act: tuple[str, ...]) -> None:
    job = endless(slurm)
    made = centre(tmp_path, slurm, "requeue")
    made.agents["m-gpu02"].xid(79)
    seconds(made, "it drains", 60, lambda: "DRAIN" in slurm.state("gpu02"))
    slurm.run("scontrol", "update", "nodename=gpu02", *act)
    seconds(made, "we let go", 100, lambda: not made.executor.open())
    made.seconds(40)
    assert "gpu02" in made.people.holds()
    assert calls(made) == []
    assert slurm.job_state(job) == "RUNNING"
    assert ("DRAIN" in slurm.state("gpu02")) is (act[0] == "state=drain")
    assert "gpuwatch" not in reason(slurm, "gpu02")
