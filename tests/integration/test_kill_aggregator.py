"""`kill -9` of a real aggregator in the middle of real replacements: it goes on, and one machine comes of one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.simulate.cluster import Cluster, free_port
from gpuwatch.store.sqlite import Store


class Watched:
    """A small cluster whose aggregator is started and killed by the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = Cluster(directory, node_count=4, port=free_port())
        self.process: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        log = (self.directory / "aggregator.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpuwatch.wiring.aggregator", "--config", str(self.directory / "aggregator.toml")],
            stdout=log,
            stderr=log,
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def get(self, path: str) -> Any:
        try:
            url = f"http://127.0.0.1:{self.cluster.port}/api/v1/{path}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.loads(answer.read())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def until(self, what: str, condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            log = (self.directory / "aggregator.log").read_text()[-2000:]
            assert time.monotonic() < deadline, f"{what}: {log}"
            time.sleep(0.02)

    def healthy(self) -> int:
        nodes = (self.get("fleet") or {"nodes": []})["nodes"]
        return sum(1 for node in nodes if node["health"] == "healthy" and node["lifecycle"] == "in_service")

    def step(self) -> int:
        under_way = (self.get("plan") or {"under_way": []})["under_way"]
        return max((saga["step_number"] for saga in under_way), default=0)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.cluster.stop()
    if made.process is not None and made.process.poll() is None:
        made.process.terminate()
        made.process.wait(20)


def test_killed_in_the_middle_of_three_replacements_it_makes_three_machines(watched: Watched) -> None:
    watched.boot()
    for slot in watched.cluster.slots:
        watched.cluster._cloud.create(slot=slot, group="local", action_id=f"initial/{slot}")
    watched.until("four nodes come into service", lambda: watched.healthy() == 4)
    for number, (slot, at_step) in enumerate((("gpu02", 1), ("gpu03", 4), ("gpu04", 5)), start=1):
        watched.cluster.kill_node(slot)
        watched.until(f"{slot} is being replaced", lambda at_step=at_step: watched.step() >= at_step)  # type: ignore[misc]
        watched.kill()
        watched.boot()
        watched.until(
            f"{slot} is replaced",
            lambda number=number: watched.healthy() == 4 and len(watched.cluster.machine_ids()) == 4 + number,  # type: ignore[misc]
        )
    watched.until("everything is over", lambda: watched.get("plan")["under_way"] == [])
    machines = watched.cluster._cloud.snapshot().machines
    alive = sorted(machine.slot or "" for machine in machines if machine.ended_unix_ns is None)
    assert alive == ["gpu01", "gpu02", "gpu03", "gpu04"]
    assert len(machines) == 7
    watched.until(
        "no incident is open", lambda: all(i["closed_unix_ns"] for i in watched.get("incidents")["incidents"])
    )
    ledger = Store(watched.directory / "aggregator" / "ledger.db")
    kinds = [line.kind for line in ledger.lines_of("fault_opened")]  # type: ignore[union-attr]
    lives = [line.machine for line in ledger.lines_of("life_started")]  # type: ignore[union-attr]
    ledger.close()
    assert kinds == ["node_dead"] * 3
    assert len(lives) == len(set(lives)) == 7
