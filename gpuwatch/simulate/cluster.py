"""A whole cluster on this machine: its files, its processes, its faults.

The aggregator, the agents and the ledger are the real ones, started as any operator would start them; simulated are the
GPUs (under the real pynvml), the training gang and the hourly price's being charged by the second.
"""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import psutil

import gpuwatch.clouds
import gpuwatch.schedulers
from gpuwatch.clouds import Cloud, CloudLeaf
from gpuwatch.errors import GpuwatchError
from gpuwatch.model.identity import pci_address
from gpuwatch.registry import leaves
from gpuwatch.schedulers import SchedulerLeaf
from gpuwatch.sdk.local_files import read_json, write_json
from gpuwatch.simulate.nvml import pci_bus_id

RUN = "opt-demo"
SKU = "ND96isr_H100_v5"
USD_PER_HOUR = "98.32"  # list price of that machine, azure eastus, ondemand, 2026-06-18; see the bundled price book


class JobQueue(Protocol):
    """What the local scheduler offers beyond its door: somebody must hand in the work."""

    def submit(self, run: str, *, command: tuple[str, ...], slot_count: int, team: str = "", user: str = "") -> None:
        """Queue a gang job."""

    def finish(self, run: str) -> None:
        """Ask the run to stop by itself."""


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """`directory` holds everything; `start` and `stop` are the power switch."""

    def __init__(self, directory: Path, *, node_count: int, port: int) -> None:
        self.directory = directory
        self.slots = tuple(f"gpu{n:02d}" for n in range(1, node_count + 1))
        self.port = port
        self.ledger = directory / "aggregator" / "ledger.db"
        self._aggregator: subprocess.Popen[bytes] | None = None
        self._write_files()
        self._cloud = self._open_cloud()
        self._queue = self._open_queue()

    def start(self) -> None:
        """Aggregator first, then one machine a slot, then the run."""
        log = (self.directory / "aggregator.log").open("ab")
        self._aggregator = subprocess.Popen(
            [sys.executable, "-m", "gpuwatch.wiring.aggregator", "--config", str(self.directory / "aggregator.toml")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        for slot in self.slots:
            self._cloud.create(slot=slot, group="local", action_id=f"initial/{slot}")

    def submit(self, *, slot_count: int) -> None:
        """Start training on this many nodes."""
        run_directory = self.directory / "runs" / RUN
        run_directory.mkdir(parents=True)
        command = (
            *(sys.executable, "-m", "gpuwatch.simulate.trainer", "--run", "{run}", "--attempt", "{attempt}"),
            *("--rank", "{rank}", "--ranks", "{ranks}", "--run-directory", str(run_directory)),
            *("--node-directory", "{{node_directory}}"),
        )
        self._queue.submit(RUN, command=command, slot_count=slot_count, team="pretraining", user="ada")

    def finish(self) -> None:
        """Let the run save nothing more and exit 0."""
        (self.directory / "runs" / RUN / "finish").touch()
        self._queue.finish(RUN)

    def alive(self) -> bool:
        """Whether the aggregator's process lives."""
        return self._aggregator is not None and self._aggregator.poll() is None

    def log_tail(self) -> str:
        """The aggregator's last words."""
        return "\n".join((self.directory / "aggregator.log").read_text(errors="replace").splitlines()[-15:])

    def machine_directory(self, slot: str) -> Path:
        """The folder of the machine that fills this slot now."""
        living = [m for m in self._cloud.snapshot().machines if m.slot == slot and m.state == "running"]
        if not living:
            raise GpuwatchError(f"no machine runs in {slot}", next_step="wait until it was replaced")
        newest = max(living, key=lambda machine: machine.started_unix_ns or 0)
        return self.directory / "machines" / newest.machine

    def machine_ids(self) -> tuple[str, ...]:
        """Every machine that was ever started."""
        return tuple(machine.machine for machine in self._cloud.snapshot().machines)

    def kill_node(self, slot: str) -> None:
        """Pull the plug: every process of the node dies at once."""
        head = psutil.Process(int((self.machine_directory(slot) / "pid").read_text()))
        for process in [head, *head.children(recursive=True)]:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue

    def wedge_driver(self, slot: str) -> None:
        """Every NVML call on the node hangs from now on, and so does the rank that calls CUDA."""
        folder = self.machine_directory(slot)
        self._change_gpus(folder, {"hang": True})
        write_json(folder / "fault.json", {"stalls_rank": 0})

    def drop_gpu(self, slot: str, gpu: int) -> str:
        """A GPU falls off the bus: the kernel says so, NVML says so, its rank stands still. Returns its address."""
        folder = self.machine_directory(slot)
        pci = pci_address(pci_bus_id(gpu))
        assert pci is not None
        with (folder / "kernel.log").open("a") as log:
            log.write(
                f"[{time.monotonic():.6f}] NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, "
                "GPU has fallen off the bus.\n"
            )
        self._change_gpus(folder, {"lost": [gpu]})
        write_json(folder / "fault.json", {"stalls_rank": gpu})
        return pci

    def hang_rank(self, slot: str, gpu: int) -> None:
        """One rank never comes back from its data loader. The node is healthy; the fault dies with the process."""
        write_json(self.machine_directory(slot) / "fault.json", {"stalls_rank": gpu})

    def heal_rank(self, slot: str) -> None:
        """The data loader answers again: whoever starts anew on this node is not held any more."""
        (self.machine_directory(slot) / "fault.json").unlink(missing_ok=True)

    def stop(self) -> None:
        """Everything off: machines, then the aggregator."""
        for machine in self._cloud.snapshot().machines:
            if machine.state != "gone":
                self._cloud.release(machine.machine, action_id="power-off")
        if self._aggregator is not None and self._aggregator.poll() is None:
            self._aggregator.terminate()
            try:
                self._aggregator.wait(10)
            except subprocess.TimeoutExpired:
                self._aggregator.kill()

    def _change_gpus(self, folder: Path, change: dict[str, Any]) -> None:
        write_json(folder / "gpus.json", (read_json(folder / "gpus.json") or {}) | change)

    def _write_files(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in ("secret", "operator-token"):
            (self.directory / name).write_text(secrets.token_hex(32))
            (self.directory / name).chmod(0o600)
        slots = ", ".join(f'"{slot}"' for slot in self.slots)
        words = {
            "directory": self.directory,
            "port": self.port,
            "slots": slots,
            "node_count": len(self.slots),
            "sku": SKU,
            "usd_per_hour": USD_PER_HOUR,
            "python": sys.executable,
        }
        (self.directory / "aggregator.toml").write_text(AGGREGATOR_TOML.format(**words))
        shared = {
            "scheduler_directory": str(self.directory / "scheduler"),
            "gpus": 8,
            "agent_toml": AGENT_TOML.replace("@PORT@", str(self.port)),
        }
        write_json(self.directory / "cluster.json", shared)

    def _open_cloud(self) -> Cloud:
        leaf = leaves(gpuwatch.clouds, "CLOUD", CloudLeaf)["local"]
        return leaf.open(self._settings("cloud", leaf.settings))

    def _open_queue(self) -> JobQueue:
        leaf = leaves(gpuwatch.schedulers, "SCHEDULER", SchedulerLeaf)["local"]
        return leaf.open(self._settings("scheduler", leaf.settings))  # type: ignore[return-value]

    def _settings(self, table: str, shape: type) -> Any:
        from gpuwatch.config import convert, read_toml, refuse

        path = self.directory / "aggregator.toml"
        settings, faults = convert(read_toml(path)[table]["local"], shape, file=str(path), at=f"{table}.local.")
        refuse(faults)
        return settings


AGGREGATOR_TOML = """\
# Written by `gpuwatch demo`. Real settings of a real aggregator, with shorter times than a real cluster wants.
[server]
listen = "127.0.0.1:{port}"
secret_file = "{directory}/secret"
operator_token_file = "{directory}/operator-token"
state_dir = "{directory}/aggregator"
hold_file = "{directory}/HOLD"
tick_s = 0.5

[cluster]
name = "demo"

[pools.h100]
nodes = [{slots}]
gpus = 8
provider = "azure"
region = "eastus"
sku = "{sku}"

[pools.h100.policy]
mode = "replace"
max_nodes_out = 2
hold_off_s = 3.0
silent_after_intervals = 3.0
dead_after_s = 4.0
witness_fresh_s = 10.0
driver_grace_s = 2.0
join_deadline_s = 30.0
drain_deadline_s = 1.0
job_action = "requeue"
empty_deadline_s = 10.0
cool_down_s = 1.0
spare_quota = 1

[rules.training_stalled]
min_s = 6.0
unlearned_s = 20.0
dead_rank_s = 10.0
checkpoint_s = 5.0
init_s = 20.0

[cloud]
kind = "local"
interval_s = 1.0

[cloud.local]
directory = "{directory}"
command = ["{python}", "-m", "gpuwatch.simulate.node", "--slot", "{{slot}}", "--machine", "{{machine}}", \
"--directory", "{{directory}}", "--cluster", "{directory}"]
target_count = {node_count}
secret_file = "{directory}/secret"
provider = "azure"
region = "eastus"
sku = "{sku}"
usd_per_hour = "{usd_per_hour}"

[scheduler]
kind = "local"
interval_s = 0.5

[scheduler.local]
directory = "{directory}/scheduler"
slots = [{slots}]
node_timeout_s = 5.0
"""

AGENT_TOML = """\
slot = "{slot}"
machine = "{machine}"
aggregator = ["http://127.0.0.1:@PORT@"]
token_file = "{directory}/token"
state_dir = "{directory}/agent"
interval_s = 1.0
metrics_listen = ""

[collectors.nvml]
interval_s = 1.0
deadline_s = 2.0
container = "no"
preload = "gpuwatch.simulate.nvml:install"
preload_argument = "{directory}/gpus.json"

[collectors.kernel_log]
source = "file"
path = "{directory}/kernel.log"

[collectors.training]
interval_s = 0.5
directories = ["{directory}/heartbeats"]
"""
