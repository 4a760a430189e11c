"""The command in the alert does what it says: typed as it stands, on a real Slurm, the drain goes on."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gpuwatch.aggregator.alerts import Alert
from gpuwatch.clock import SystemClock
from gpuwatch.schedulers.slurm import Settings, SlurmScheduler
from tests.alerting import desk_of
from tests.fakes_centre import Centre
from tests.slurm_cluster import SlurmCluster, until

pytestmark = [pytest.mark.needs("slurmctld", "slurmd", "munged", "scontrol", "root"), pytest.mark.timeout(180)]


def centre(folder: Path, slurm: SlurmCluster, job_action: str) -> Centre:
    """A centre whose scheduler is the real one."""
    made = Centre(folder, nodes=2)
    pool = made.settings.pools["p"]
    policy = msgspec.convert(msgspec.to_builtins(pool.policy) | {"job_action": job_action}, type(pool.policy))
    made.settings = dataclasses.replace(made.settings, pools={"p": msgspec.structs.replace(pool, policy=policy)})
    settings = Settings(configuration=str(slurm.conf))
    made.scheduler = SlurmScheduler(settings, SystemClock())  # type: ignore[assignment]
    made.boot()
    made.settle()
    return made


def needed(alerts: tuple[Alert, ...]) -> list[Alert]:
    return [one for one in alerts if one.labels["alertname"] == "GpuwatchPersonNeeded" and one.ended_unix_ns is None]


def goes_on(made: Centre, what: str, holds: Callable[[], bool]) -> None:
    for _ in range(200):
        if holds():
            return
        made.second()
        time.sleep(0.02)  # Slurm's own time passes too, a little
    raise AssertionError(what)


@pytest.mark.parametrize(
    ("job_action", "state"),
    [pytest.param("requeue", "PENDING", id="allowed-to-be-requeued"), pytest.param("wait", "CANCELLED", id="ended")],
)
def test_what_the_alert_says_unblocks_it(tmp_path: Path, job_action: str, state: str) -> None:
    slurm = SlurmCluster(("gpu01", "gpu02"))
    try:
        slurm.ready()
        job = slurm.submit("exec sleep infinity", "-N1", "--no-requeue", "-w", "gpu02", "-J", "stubborn")
        until("it runs", 20, lambda: slurm.job_state(job) == "RUNNING")
        made = centre(tmp_path, slurm, job_action)
        desk = desk_of(made)
        made.agents["m-gpu02"].xid(79)
        goes_on(made, "it waits for a person", lambda: bool(needed(desk.alerts())))
        (alert,) = needed(desk.alerts())
        command = alert.annotations["unblock"]
        assert str(job) in command
        subprocess.run(
            ["bash", "-c", command], env=slurm.environment(), check=True
        )  # what is after # is said, not done
        goes_on(made, "it has moved", lambda: not needed(desk.alerts()))
        until("the job is told", 20, lambda: slurm.job_state(job) == state)
        assert made.store is not None
        made.store.close()
    finally:
        slurm.stop()
