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
from gpuwatch.clouds import Cloud, CloudLeaf, CloudMachine
from gpuwatch.errors import GpuwatchError
from gpuwatch.model.identity import pci_address
from gpuwatch.model.money import BillRow
from gpuwatch.registry import leaves
from gpuwatch.schedulers import SchedulerLeaf, SchedulerNode, SchedulerSnapshot
from gpuwatch.sdk.local_files import read_json, write_json
from gpuwatch.simulate.nvml import pci_bus_id
from gpuwatch.simulate.settings import AGENT_TOML, AGGREGATOR_TOML

RUN = "opt-demo"
SKU = "ND96isr_H100_v5"
USD_PER_HOUR = "98.32"  # list price of that machine, azure eastus, ondemand, 2026-06-18; see the bundled price book


class JobQueue(Protocol):
    """What the local scheduler offers beyond its door: somebody must hand in the work."""

    def submit(self, run: str, *, command: tuple[str, ...], slot_count: int, team: str = "", user: str = "") -> None:
        """Queue a gang job."""

    def finish(self, run: str) -> None:
        """Ask the run to stop by itself."""

    def snapshot(self) -> SchedulerSnapshot:
        """Nodes and jobs; asking makes one scheduling pass."""


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """`directory` holds everything; `start` and `stop` are the power switch.

    `agents_port`: where the agents believe the aggregator to be, if something stands between them.
    """

    def __init__(self, directory: Path, *, node_count: int, port: int, agents_port: int | None = None) -> None:
        self.directory = directory
        self.slots = tuple(f"gpu{n:02d}" for n in range(1, node_count + 1))
        self.port = port
        self._agents_port = agents_port or port
        self.config = directory / "aggregator.toml"
        self.ledger = directory / "aggregator" / "ledger.db"
        self._aggregator: subprocess.Popen[bytes] | None = None
        self._write_files()
        self._cloud = self._open_cloud()
        self._queue = self._open_queue()

    def start(self) -> None:
        """Aggregator first, then one machine a slot."""
        self.start_aggregator()
        self.start_machines()

    def start_machines(self) -> None:
        """One machine for each slot."""
        for slot in self.slots:
            self._cloud.create(slot=slot, group="local", action_id=f"initial/{slot}")

    def start_aggregator(self) -> None:
        """The process that an operator would start; also after `kill_aggregator`."""
        with (self.directory / "aggregator.log").open("ab") as log:
            self._aggregator = subprocess.Popen(
                [sys.executable, "-m", "gpuwatch.wiring.aggregator", "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_aggregator(self) -> None:
        """`kill -9`: it has no chance to keep anything."""
        assert self._aggregator is not None
        self._aggregator.kill()
        self._aggregator.wait()

    def freeze_aggregator(self) -> None:
        """It stands still, as if swapped out or migrated, until `thaw_aggregator`."""
        assert self._aggregator is not None
        self._aggregator.send_signal(signal.SIGSTOP)

    def thaw_aggregator(self) -> None:
        """It goes on, and its monotonic clock has gone on without it."""
        assert self._aggregator is not None
        self._aggregator.send_signal(signal.SIGCONT)

    @property
    def aggregator_pid(self) -> int:
        """Of the process that was started last."""
        assert self._aggregator is not None
        return self._aggregator.pid

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
        return tuple(machine.machine for machine in self.machines())

    def machines(self) -> tuple[CloudMachine, ...]:
        """Every machine that was ever started, as the cloud sees it now."""
        return self._cloud.snapshot().machines

    def bill(self) -> tuple[BillRow, ...]:
        """What the cloud's meter says now."""
        return self._cloud.bill()

    def slot_nodes(self) -> tuple[SchedulerNode, ...]:
        """Every slot, as the scheduler sees it now."""
        return self._queue.snapshot().nodes

    def log_line(self, slot: str, text: str) -> None:
        """The kernel of the machine in this slot says something now."""
        with (self.machine_directory(slot) / "kernel.log").open("a") as log:
            log.write(f"[{time.monotonic():.6f}] {text}\n")

    def kill_node(self, slot: str) -> None:
        """Pull the plug: every process of the node dies at once."""
        head = psutil.Process(int((self.machine_directory(slot) / "pid").read_text()))
        for process in [head, *head.children(recursive=True)]:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue

    def stop_node(self, slot: str) -> None:
        """An orderly shutdown: the agent says goodbye."""
        psutil.Process(int((self.machine_directory(slot) / "pid").read_text())).terminate()

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
        self.log_line(slot, f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
        self._change_gpus(folder, {"lost": [gpu]})
        write_json(folder / "fault.json", {"stalls_rank": gpu})
        return pci

    def hang_rank(self, slot: str, gpu: int) -> None:
        """One rank never comes back from its data loader. The node is healthy; the fault dies with the process."""
        write_json(self.machine_directory(slot) / "fault.json", {"stalls_rank": gpu})

    def heal_rank(self, slot: str) -> None:
        """The data loader answers again: whoever starts anew on this node is not held any more."""
        (self.machine_directory(slot) / "fault.json").unlink(missing_ok=True)

    def release_machines(self) -> None:
        """Every machine is given back to the cloud; the aggregator goes on and hears of it."""
        for machine in self._cloud.snapshot().machines:
            if machine.state != "gone":
                self._cloud.release(machine.machine, action_id="power-off")

    def stop(self) -> None:
        """Everything off: machines, then the aggregator."""
        self.release_machines()
        if self._aggregator is not None and self._aggregator.poll() is None:
            self._aggregator.send_signal(signal.SIGCONT)
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
        self.config.write_text(AGGREGATOR_TOML.format(**words))
        shared = {
            "scheduler_directory": str(self.directory / "scheduler"),
            "gpus": 8,
            "agent_toml": AGENT_TOML.replace("@PORT@", str(self._agents_port)),
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

        tables = read_toml(self.config)
        settings, faults = convert(tables[table]["local"], shape, file=str(self.config), at=f"{table}.local.")
        refuse(faults)
        return settings
