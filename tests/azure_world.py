"""A real aggregator process over the local Azure: four machines of a set, their agents, and a scheduler in files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from gpuwatch.clock import SystemClock
from gpuwatch.faults.nvml_codes import DRIVER_NOT_LOADED
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.token import machine_token
from gpuwatch.model.wire import Envelope
from gpuwatch.sdk import azure_marks as marks
from gpuwatch.sdk.local_files import write_json
from gpuwatch.simulate.cluster import free_port
from tests.arm_server import RESOURCE_GROUP, SUBSCRIPTION, ArmServer, ImdsServer
from tests.fakes_centre import Agent

SECRET = "a secret of the tests, long enough"
PATIENCE_S = 60.0
TOML = """
[server]
listen = "127.0.0.1:{port}"
secret_file = "secret"
state_dir = "state"
hold_file = "HOLD"
tick_s = 0.2

[pools.gpu]
nodes = ["gpu00000[0-3]"]
gpus = 8
group = "gpu"

[pools.gpu.policy]
mode = "replace"
hold_off_s = 0.5
dead_after_s = 1.5
witness_fresh_s = 10.0
join_deadline_s = 60.0
drain_deadline_s = 1.0
job_action = "requeue"
cool_down_s = 0.0
spreading_window_s = 0.0
max_attempts_per_machine = 9
{policy}

[scheduler]
kind = "local"
interval_s = 0.3

[scheduler.local]
directory = "{folder}/scheduler"
slots = ["gpu000000", "gpu000001", "gpu000002", "gpu000003"]
node_timeout_s = 2.0

[cloud]
kind = "azure_vmss"
interval_s = 0.3

[cloud.azure_vmss]
subscription_id = "{subscription}"
resource_group = "{resource_group}"
groups = ["gpu"]
credential = "managed_identity"
endpoint = "{endpoint}"
ca_file = "{ca_file}"
look_every_s = 0.1
settle_s = 1.0
timeout_s = 5.0
"""


class AzureWorld:
    """What outlives an aggregator process, and the process that runs now."""

    def __init__(self, folder: Path, *, policy: str = "") -> None:
        self.folder = folder
        self.azure, self.imds = ArmServer(folder), ImdsServer()
        self.port = free_port()
        (folder / "secret").write_text(SECRET)
        words = {
            "port": self.port,
            "folder": folder,
            "subscription": SUBSCRIPTION,
            "resource_group": RESOURCE_GROUP,
            "policy": policy,
        }
        words |= {"endpoint": self.azure.url, "ca_file": str(self.azure.ca_file)}
        (folder / "aggregator.toml").write_text(TOML.format(**words))
        self.agents: dict[str, Agent] = {}
        self.silent: set[str] = set()
        self._rebooted_count = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)
        self._thread.start()

    @property
    def kill_file(self) -> Path:
        """Where it is told when to die, see `tests/mortal_aggregator.py`."""
        return self.folder / "kill"

    def start(self) -> None:
        """A new aggregator process on the same disk."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.mortal_aggregator", "--config", str(self.folder / "aggregator.toml")],
                cwd=Path(__file__).parent.parent,
                env=os.environ
                | {"AZURE_POD_IDENTITY_AUTHORITY_HOST": self.imds.url, "GPUWATCH_TEST_KILL": str(self.kill_file)},
                stdout=log,
                stderr=log,
            )

    def is_dead(self) -> bool:
        """The process ended."""
        return self.process is None or self.process.poll() is not None

    def stop(self) -> None:
        """Everything off."""
        self._stopped.set()
        self._thread.join()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)
        self.azure.stop()
        self.imds.stop()

    def lose(self, number: str) -> None:
        """The host of this machine breaks: Azure says so, and its agent is silent."""
        with self.azure.lock:
            self.silent.add(self.azure.gpu.machine(number))
            self.azure.gpu.say(number, "Failed", code="HostFault")

    def unload(self, number: str) -> None:
        """The driver of this machine is not there any more, until a fresh disk brings one."""
        facts = NvmlFacts(None, (), init_error=DRIVER_NOT_LOADED, pci_gpu_count=8, driver_loaded=False)
        raw = msgspec.Raw(msgspec.msgpack.encode(facts))
        self.agents[self.azure.gpu.machine(number)].nvml = Envelope("nvml", 0, 0.01, "ok", facts=raw)

    def replaces(self, number: str, at: str) -> bool:
        """This machine is lost, and the process is killed `at` a state of the action: one machine comes of it.

        False if it ended before it came there.
        """
        gpu = self.azure.gpu
        here, made = set(gpu.vms), len(gpu.created)
        killed = self._killed(at, lambda: self.lose(number), lambda: len(gpu.created) > made)
        assert len(gpu.created) == made + 1, at
        assert set(gpu.vms) == here - {number} | {gpu.created[-1]}, at
        assert gpu.capacity == 4, at
        return killed

    def reimages(self, number: str, at: str) -> bool:
        """The same with a driver that is gone: one fresh disk comes of it, and no machine."""
        gpu = self.azure.gpu
        here, fresh = set(gpu.vms), len(gpu.reimaged)
        killed = self._killed(at, lambda: self.unload(number), lambda: len(gpu.reimaged) > fresh)
        assert gpu.reimaged[fresh:] == [number], at
        assert (set(gpu.vms), gpu.created) == (here, []), at
        return killed

    def _killed(self, at: str, breaks: Callable[[], None], begun: Callable[[], bool]) -> bool:
        self.kill_file.write_text(at)
        breaks()
        self.until(f"{at}: killed or over", lambda: self.is_dead() or (begun() and self.is_well()))
        killed = self.is_dead()
        self.kill_file.unlink(missing_ok=True)
        if killed:
            self.start()
        self.until(f"{at}: over", lambda: begun() and self.is_well())
        return killed

    def get(self, path: str) -> Any:
        """The API's answer; None while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=5) as answer:
                return json.loads(answer.read())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def until(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for it, or fail with the log's end."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"{what}: {(self.folder / 'log').read_text()[-3000:]}"
            time.sleep(0.05)

    def is_well(self) -> bool:
        """Four healthy nodes in service, and nothing under way."""
        plan, fleet = self.get("plan"), self.get("fleet")
        if plan is None or fleet is None or plan["under_way"]:
            return False
        well = [n for n in fleet["nodes"] if n["health"] == "healthy" and n["lifecycle"] == "in_service"]
        return len(well) == len(fleet["nodes"]) == 4

    def _report(self) -> None:
        """Every machine that runs shows itself to the scheduler and reports, twice a second."""
        pack = msgspec.msgpack.Encoder().encode
        while not self._stopped.wait(0.5):
            for slot, machine in self._running():
                agent = self.agents.get(machine)
                if agent is None:
                    agent = self.agents[machine] = Agent(slot, machine, SystemClock())  # type: ignore[arg-type]
                    agent.interval_s = 0.5
                seen = {"machine": machine, "monotonic_ns": time.monotonic_ns()}
                write_json(self.folder / "scheduler" / "alive" / f"{slot}@{machine}.json", seen)
                request = urllib.request.Request(
                    f"http://127.0.0.1:{self.port}/v1/reports",
                    data=pack(agent.report()),
                    headers={
                        "Authorization": f"Bearer {machine_token(SECRET.encode(), machine)}",
                        "Content-Type": "application/msgpack",
                    },
                )
                try:
                    urllib.request.urlopen(request, timeout=2).close()
                except (urllib.error.URLError, ConnectionError, TimeoutError):
                    continue

    def _running(self) -> list[tuple[str, str]]:
        """Slot and machine. One that gpuwatch made reads its slot from the set's tags, as its boot script would."""
        with self.azure.lock:
            group = self.azure.gpu
            for number in group.reimaged[self._rebooted_count :]:
                self._rebooted_count += 1
                agent = self.agents[group.machine(number)]
                agent.reboot(f"boot-{self._rebooted_count}")
                agent.nvml = None
            made = marks.places(group.model.tags or {})
            found = []
            for number, vm in group.vms.items():
                machine, properties = group.machine(number), vm.properties
                own = f"gpu{int(number):06d}" if int(number) < 4 else ""
                slot = made.get(number, own)
                if slot and machine not in self.silent and properties and properties.provisioning_state == "Succeeded":
                    found.append((slot, machine))
        return found
