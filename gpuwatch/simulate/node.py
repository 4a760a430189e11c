"""One simulated node: a real agent over simulated GPUs, and a daemon that carries out the local scheduler's orders.

Runs as `python -m gpuwatch.simulate.node`, started by the local cloud as one machine. Everything on the node is a
child of this process, so that ending its family is what pulling the plug is to a real node.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import FrameType
from typing import Any

from gpuwatch.sdk.local_files import read_json, write_json

POLL_S = 0.1
ALIVE_S = 0.5
KILL_AFTER_S = 2.0


class Node:
    """The node's own files lie in `directory`; what all nodes share in `cluster`."""

    def __init__(self, slot: str, machine: str, directory: Path, cluster: Path) -> None:
        self._slot = slot
        self._machine = machine
        self._directory = directory
        self._shared: dict[str, Any] = json.loads((cluster / "cluster.json").read_text())
        self._scheduler = Path(self._shared["scheduler_directory"])
        self._boot = str(uuid.uuid4())
        self._steps: dict[str, subprocess.Popen[bytes]] = {}
        self._ending_s: dict[str, float] = {}
        self._agent: subprocess.Popen[bytes] | None = None
        self._seen_s = 0.0

    def prepare(self) -> None:
        """Write what the agent reads: settings, simulated GPUs, an empty kernel log."""
        (self._directory / "heartbeats").mkdir(parents=True, exist_ok=True)
        (self._directory / "kernel.log").touch()
        write_json(self._directory / "gpus.json", {"gpu_count": self._shared["gpus"], "seed": self._machine})
        settings = self._shared["agent_toml"].format(slot=self._slot, machine=self._machine, directory=self._directory)
        (self._directory / "agent.toml").write_text(settings)

    def turn(self) -> None:
        """One round of the daemon."""
        now_s = time.monotonic()
        if self._agent is None or self._agent.poll() is not None:
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "gpuwatch.wiring.agent", "--config", str(self._directory / "agent.toml")],
                env=os.environ | {"GPUWATCH_BOOT_ID": self._boot},
                stdin=subprocess.DEVNULL,
            )
        if now_s - self._seen_s >= ALIVE_S:
            self._seen_s = now_s
            seen = {"machine": self._machine, "monotonic_ns": time.monotonic_ns()}
            write_json(self._scheduler / "alive" / f"{self._slot}@{self._machine}.json", seen)
        for path in sorted((self._scheduler / "steps" / self._slot).glob("*.json")):
            order = read_json(path)
            if order is not None and order.get("machine") == self._machine:
                self._carry_out(path, order, now_s)

    def _carry_out(self, path: Path, order: dict[str, Any], now_s: float) -> None:
        done = path.with_suffix(".exit")
        if done.exists():
            return
        attempt = path.stem
        process = self._steps.get(attempt)
        if process is None:
            if order.get("cancel"):
                write_json(done, {"exit_code": 143})
                return
            words = [part.replace("{node_directory}", str(self._directory)) for part in order["command"]]
            self._steps[attempt] = subprocess.Popen(words, stdin=subprocess.DEVNULL)
            return
        code = process.poll()
        if code is not None:
            write_json(done, {"exit_code": code if code >= 0 else 128 - code})
        elif order.get("cancel"):
            begun_s = self._ending_s.setdefault(attempt, now_s)
            if begun_s == now_s:
                process.terminate()
            elif now_s - begun_s > KILL_AFTER_S:
                process.kill()

    def end(self) -> None:
        """A clean shutdown: the agent says goodbye, the steps end."""
        children = [child for child in (self._agent, *self._steps.values()) if child is not None]
        for child in children:
            if child.poll() is None:
                child.terminate()
        until_s = time.monotonic() + KILL_AFTER_S
        for child in children:
            try:
                child.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()


def main() -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(prog="gpuwatch.simulate.node")
    parser.add_argument("--slot", required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--cluster", type=Path, required=True)
    args = parser.parse_args()
    ending = False

    def leave(_number: int, _frame: FrameType | None) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, leave)
    node = Node(args.slot, args.machine, args.directory, args.cluster)
    node.prepare()
    while not ending:
        node.turn()
        time.sleep(POLL_S)
    node.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
