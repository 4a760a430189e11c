"""Slurm's accounting, real: slurmdbd over MariaDB. Each try of a job with how it ended, also after the fact."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from gpuwatch.clock import SystemClock
from gpuwatch.schedulers import SchedulerSnapshot
from gpuwatch.schedulers.slurm import Settings, SlurmScheduler
from tests.slurm_cluster import SlurmCluster, free_ports, until

pytestmark = [
    pytest.mark.proof,
    pytest.mark.needs("slurmctld", "slurmd", "munged", "slurmdbd", "mariadbd", "root"),
    pytest.mark.timeout(180),
]
SQL = """create database slurm_acct; create user 'slurm'@'127.0.0.1' identified by 'pw';
create user 'slurm'@'localhost' identified by 'pw'; grant all on slurm_acct.* to 'slurm'@'127.0.0.1';
grant all on slurm_acct.* to 'slurm'@'localhost';"""
SLURMDBD = """\
AuthType=auth/munge
AuthInfo=socket={directory}/run/munge.sock
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={dbd}
CommunicationParameters=NoInAddrAny
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql}
StorageUser=slurm
StoragePass=pw
StorageLoc=slurm_acct
PidFile={directory}/run/slurmdbd.pid
"""
ADDED = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={directory}/run/munge.sock
AccountingStorageTRES=gres/gpu
"""


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    made = SlurmCluster(started=False)
    try:
        _keep_accounts(made)
        made.start()
        made.ready()
        yield made
    finally:
        made.stop()


def _keep_accounts(made: SlurmCluster) -> None:
    directory, (sql, dbd) = made.directory, free_ports(2)
    home = directory / "mysql"
    home.mkdir()
    shutil.chown(home, "mysql")
    install = ["mariadb-install-db", "--user=mysql", f"--datadir={home}/data", "--skip-test-db"]
    subprocess.run([*install, "--auth-root-authentication-method=socket"], check=True, capture_output=True)
    words = ["mariadbd", "--no-defaults", "--user=mysql", f"--datadir={home}/data", f"--socket={home}/sock"]
    made.launch("mariadbd", [*words, "--bind-address=127.0.0.1", f"--port={sql}"])
    until("MariaDB listens", 30, (home / "sock").exists)
    made.run("mariadb", f"--socket={home}/sock", "-e", SQL)
    told = {"directory": directory, "host": made.host, "dbd": dbd, "sql": sql}
    (directory / "slurmdbd.conf").write_text(SLURMDBD.format(**told))
    (directory / "slurmdbd.conf").chmod(0o600)
    made.conf.write_text(made.conf.read_text() + ADDED.format(**told))
    made.start_munge()
    made.launch("slurmdbd", ["slurmdbd", "-D"])
    until("slurmdbd takes orders", 30, lambda: made.succeeds("sacctmgr", "-i", "add", "cluster", "gwtest"))
    made.run("sacctmgr", "-i", "add", "account", "research")
    made.run("sacctmgr", "-i", "add", "user", "root", "account=research")


def told(snapshot: SchedulerSnapshot) -> dict[str, tuple[str, str, bool, int | None]]:
    return {job.attempt: (job.state, job.end_cause, job.planned, job.gpus_per_slot) for job in snapshot.jobs}


def has_it_all(who: SlurmScheduler, expected: dict[str, tuple[str, str, bool, int | None]]) -> None:
    until("it is all told", 30, lambda: told(who.snapshot()) == expected, lambda: str(told(who.snapshot())))


def test_each_try_is_told_with_how_it_ended_by_one_that_saw_it_and_by_one_that_did_not(slurm: SlurmCluster) -> None:
    settings = Settings(configuration=str(slurm.conf), accounting_interval_s=1.0)
    witness = SlurmScheduler(settings, SystemClock())
    dead = slurm.submit("exec sleep infinity", "-N2", "--gres=gpu:8", "-J", "opt", "-w", "gpu3")
    until("it runs", 20, lambda: slurm.job_state(dead) == "RUNNING")
    bad = slurm.submit("exit 3", "-N1", "-J", "bad")
    moved = slurm.submit("exec sleep infinity", "-N1", "--gres=gpu:8", "-J", "moved")
    until("it runs", 20, lambda: slurm.job_state(moved) == "RUNNING")
    witness.snapshot()
    slurm.run("scontrol", "requeue", str(moved))
    slurm.kill("gpu3")
    until("its job is queued again", 60, lambda: slurm.job_state(dead) == "PENDING")
    slurm.start_node("gpu3")
    slurm.start_now(dead)
    slurm.run("scancel", str(dead))
    expected = {
        f"{dead}.0": ("ended", "node_failed", False, 8),
        f"{dead}.1": ("ended", "cancelled", True, 8),
        f"{bad}.0": ("ended", "failed", False, None),
        f"{moved}.0": ("ended", "requeued", True, 8),
        f"{moved}.1": ("pending", "", False, 8),
    }
    for who in (witness, SlurmScheduler(settings, SystemClock())):
        has_it_all(who, expected)
    slurm.kill("slurmdbd")
    time.sleep(1.1)
    assert told(witness.snapshot()) == expected  # nodes and jobs are known without it
