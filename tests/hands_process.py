"""The hands of one node as a real process beside its agent, with commands that do no harm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.agent_node import PATIENCE_S

NOTE = 'echo "$@" >> "$0"'


class HandsProcess:
    """What it did stands in `did`, a line a command."""

    def __init__(self, folder: Path, machine: str, public_key: str, *, boot: str) -> None:
        self.folder = folder
        (self.folder / "proc").mkdir(parents=True)
        (self.folder / "etc").mkdir(mode=0o755)
        self._environment = os.environ | {"GPUWATCH_BOOT_ID": boot}
        self._public_key = public_key
        self._machine = machine
        self._note = ["/bin/sh", "-c", NOTE, str(self.folder / "did")]
        self.asks_agent: dict[str, list[str]] = {"release": [], "resume": []}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.collector = {  # what the agent's settings say of them
            "enabled": True,
            "interval_s": 0.3,
            "order_file": str(self.folder / "order"),
            "status_file": str(self.folder / "told" / "status"),
        }

    def start(self, *, boot: str = "", **reboot: Any) -> None:
        """Start them; their errors go to hands.log."""
        if boot:
            self._environment["GPUWATCH_BOOT_ID"] = boot
        tables: dict[str, dict[str, Any]] = {
            "restart_service": {"units": ["slurmd.service"], "command": [*self._note, "restart", "{unit}"]},
            "reset_gpu": {"allowed": True, "command": [*self._note, "reset", "{gpu}"]} | self.asks_agent,
            "reboot": {
                "allowed": True,
                "command": [*self._note, "reboot"],
                "deadline_s": 30.0,
                "force": [*self._note, "force"],
                "force_deadline_s": 0.3,
                "sysrq": str(self.folder / "sysrq"),
                "sysrq_wait_s": 0.05,
            }
            | reboot,
            "work": {"proc": str(self.folder / "proc"), "heartbeat_directories": []},
        }
        top = {
            "machine": self._machine,
            "public_keys": [self._public_key],
            "state_dir": str(self.folder / "state"),
            "order_file": str(self.folder / "order"),
            "status_file": str(self.folder / "told" / "status"),
            "hold_file": str(self.folder / "HOLD"),
            "look_every_s": 0.05,
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
        for name, table in tables.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
        config = self.folder / "etc" / "hands.toml"
        config.write_text("\n".join(lines) + "\n")
        config.chmod(0o644)
        with (self.folder / "hands.log").open("ab") as log:
            words = [sys.executable, "-m", "gpuwatch.wiring.hands", "--config", str(config)]
            started = subprocess.Popen(words, env=self._environment, stdin=subprocess.DEVNULL, stderr=log)
        self.processes.append(started)

    def note_and(self, script: str) -> None:
        """What each command does besides writing down that it was run, from the next start on."""
        self._note[2] = f"{NOTE}; {script}"

    def gpu(self, pci: str, uuid: str, minor: int) -> None:
        """As the driver's own file has it."""
        place = self.folder / "proc" / "driver" / "nvidia" / "gpus" / f"{pci}.0"
        place.mkdir(parents=True)
        (place / "information").write_text(f"GPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")

    def kill(self) -> None:
        """kill -9."""
        self.processes[-1].kill()
        self.processes[-1].wait()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        self.processes[-1].send_signal(signal.SIGTERM)
        return self.processes[-1].wait(PATIENCE_S)

    def end(self) -> None:
        """Leave nothing behind."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def did(self) -> list[str]:
        """The commands that were run."""
        file = self.folder / "did"
        return file.read_text().splitlines() if file.exists() else []

    def log(self) -> str:
        return (self.folder / "hands.log").read_text()


def journal_of(hands: HandsProcess) -> Path:
    """Where it writes down what it does."""
    return hands.folder / "state" / "journal"
