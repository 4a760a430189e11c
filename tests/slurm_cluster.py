"""A real Slurm of several virtual nodes on this machine: munged, slurmctld and one slurmd a node, all on loopback.

Debian's build has multiple-slurmd support: `slurmd -N name`, one port each. Nodes have eight GPUs that are empty files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

CONF = """\
ClusterName=gwtest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/run/munge.sock
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/run/slurmctld.pid
SlurmdPidFile={directory}/run/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_min_interval=100000
ReturnToService=1
SlurmdTimeout=3
MessageTimeout=3
KillWait=1
MinJobAge=60
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """One slurmd for each of `names`. `machines=False`: none is started, somebody else starts them. `started=False`:
    only the files, for a test that adds to slurm.conf."""

    def __init__(
        self,
        names: tuple[str, ...] = ("gpu1", "gpu2", "gpu3", "gpu4"),
        *,
        machines: bool = True,
        started: bool = True,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="gpuwatch-slurm-"))
        self.directory.chmod(0o755)  # munged runs as its own user
        self.names = names
        self.conf = self.directory / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        for folder in ("state", "run", "log", "dev", "spool"):
            (self.directory / folder).mkdir()
        for gpu in range(8):
            (self.directory / "dev" / f"nvidia{gpu}").touch()
        ports = free_ports(len(names) + 1)
        self.host = host = socket.gethostname().split(".")[0]
        lines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=2000 Gres=gpu:8"
            for name, port in zip(self.names, ports[1:], strict=True)
        ]
        self.conf.write_text(
            CONF.format(
                host=host, port=ports[0], directory=self.directory, nodes="\n".join(lines), names=",".join(self.names)
            )
        )
        (self.directory / "gres.conf").write_text(
            f"NodeName={','.join(self.names)} Name=gpu Count=8 File={self.directory}/dev/nvidia[0-7]\n"
        )
        for name in self.names:
            (self.directory / "spool" / name).mkdir()
        if started:
            self.start(machines=machines)

    def start(self, *, machines: bool = True) -> None:
        """Everything on."""
        self.start_munge()
        self.start_controller()
        for name in self.names if machines else ():
            self.start_node(name)

    def start_munge(self) -> None:
        """Once: what all the others tell each other by."""
        if "munged" in self._daemons:
            return
        run, key = self.directory / "run", self.directory / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o400)
        shutil.chown(key, "munge")
        shutil.chown(run, "munge")
        words = ["runuser", "-u", "munge", "--", "munged", "--foreground", "--force", f"--key-file={key}"]
        words += [f"--socket={run}/munge.sock", f"--pid-file={run}/munged.pid", f"--seed-file={run}/munged.seed"]
        self.launch("munged", [*words, f"--log-file={run}/munged.log"])
        until("munged listens", 10, (run / "munge.sock").exists)

    def start_controller(self) -> None:
        """slurmctld, which takes its state from where the last one left it."""
        self.launch("slurmctld", ["slurmctld", "-D"])

    def stop_controller(self) -> None:
        """As systemd would: it saves what it knows. One that is killed forgets the last few seconds."""
        self._daemons["slurmctld"].terminate()
        self._daemons["slurmctld"].wait(20)

    def start_node(self, name: str) -> None:
        """The node's slurmd."""
        self.launch(name, ["slurmd", "-D", "-N", name])

    def kill(self, daemon: str) -> None:
        """`kill -9` of a node's slurmd."""
        self._daemons[daemon].kill()
        self._daemons[daemon].wait()

    def freeze(self, daemon: str) -> None:
        """It hangs until `thaw`."""
        self._daemons[daemon].send_signal(signal.SIGSTOP)

    def thaw(self, daemon: str) -> None:
        """It goes on."""
        self._daemons[daemon].send_signal(signal.SIGCONT)

    def run(self, *words: str) -> str:
        """What an operator would type. Raises `CalledProcessError`."""
        done = subprocess.run(words, env=self.environment(), capture_output=True, text=True, check=True, timeout=30)
        return done.stdout

    def succeeds(self, *words: str) -> bool:
        """Whether that went well."""
        try:
            self.run(*words)
        except subprocess.CalledProcessError:
            return False
        return True

    def submit(self, script: str, *options: str) -> int:
        """Hand a batch job in, from this cluster's own folder; its id."""
        words = ("sbatch", "--parsable", "--output=/dev/null", f"--chdir={self.directory}", *options, "--wrap", script)
        return int(self.run(*words))

    def start_now(self, job: int) -> None:
        """Slurm lets a requeued job wait two minutes: no longer. One second it must wait: what begins in the second in
        which the try before it was ended, slurmd takes for that one ("already killed"), and the job has failed."""
        until(f"job {job} is in the queue", 30, lambda: self.job_state(job) == "PENDING")
        self.run("scontrol", "update", f"job={job}", "StartTime=now+1seconds")
        until(f"job {job} runs again", 30, lambda: self.job_state(job) == "RUNNING", lambda: self.job_state(job))

    def state(self, name: str) -> str:
        """A node's state in Slurm's words, such as `MIXED+DRAIN`."""
        return self._word("State", "node", name)

    def job_state(self, job: int) -> str:
        """A job's state in Slurm's words."""
        return self._word("JobState", "job", str(job))

    def ready(self) -> None:
        """Until every node is idle."""
        idle = lambda: all(self.state(name) == "IDLE" for name in self.names)  # noqa: E731
        until("all nodes are idle", 30, idle, lambda: str({name: self.state(name) for name in self.names}))

    def clear(self) -> None:
        """No jobs, no drains, every daemon awake: as a test should find it."""
        for job in self.run("squeue", "-h", "-o", "%i").split():
            self.run("scancel", job)
        for name in self.names:
            if "DRAIN" in self.state(name) or self.state(name).startswith("DOWN"):
                self.run("scontrol", "update", f"nodename={name}", "state=resume")
        self.ready()

    def stop(self) -> None:
        """Every process of this cluster ends, those of its jobs too."""
        for daemon in self._daemons.values():
            daemon.kill()
        mark = (
            f"SLURM_CONF={self.conf}\0".encode()
        )  # slurmstepd writes over the begin of its environment, not over this
        for daemon in self._daemons.values():
            daemon.wait()
        while _kill_marked(mark):  # a step that was just being started is found by the next look
            time.sleep(0.05)
        shutil.rmtree(self.directory, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """With the one variable that tells Slurm's commands which cluster is meant."""
        return os.environ | {"SLURM_CONF": str(self.conf)}

    def _word(self, key: str, *what: str) -> str:
        try:
            answer = self.run("scontrol", "-o", "show", *what)
        except subprocess.CalledProcessError as error:
            return f"unknown: {error.stderr}"
        return answer.partition(f" {key}=")[2].split(" ")[0]

    def launch(self, name: str, words: list[str]) -> None:
        """Start a daemon of this cluster, which ends with it."""
        with (self.directory / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                words, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


def until(what: str, seconds: float, holds: Callable[[], bool], story: Callable[[], str] = str) -> None:
    """Wait for it, or fail."""
    deadline_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {seconds:.0f} s: {what} {story()}")
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _kill_marked(mark: bytes) -> int:
    """End every process whose environment holds this; how many there were."""
    found = 0
    for pid in (pid for pid in psutil.pids() if pid != os.getpid()):
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)
                found += 1
    return found
