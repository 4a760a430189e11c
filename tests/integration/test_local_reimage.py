"""A wedged driver on a real node process, a real agent and a real aggregator: the same machine comes back, cured."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.simulate.cluster import Cluster, free_port

PATIENCE_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster", node_count=3, port=free_port())
    text = made.config.read_text()
    made.config.write_text(text.replace('mode = "replace"', 'mode = "replace"\nsoftware_fault = "reimage"'))
    yield made
    made.stop()


def node(cluster: Cluster, slot: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.port}/api/v1/fleet", timeout=5) as answer:
            nodes = json.loads(answer.read())["nodes"]
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    return next((found for found in nodes if found["slot"] == slot), {})


def until(cluster: Cluster, what: str, holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"{what}: {node(cluster, 'gpu02')}\n{cluster.log_tail()}"
        time.sleep(0.1)


def is_well(cluster: Cluster, slot: str) -> bool:
    found = node(cluster, slot)
    return bool(found) and (found["health"], found["lifecycle"]) == ("healthy", "in_service")


def test_a_wedged_driver_is_cured_on_the_same_machine(cluster: Cluster) -> None:
    cluster.start()
    until(cluster, "in service", lambda: all(is_well(cluster, slot) for slot in cluster.slots))
    machine, before = cluster.machine_directory("gpu02").name, cluster.machine_ids()
    cluster.wedge_driver("gpu02")
    until(cluster, "seen", lambda: node(cluster, "gpu02").get("health") == "driver_failed")
    until(cluster, "cured", lambda: is_well(cluster, "gpu02"))
    assert cluster.machine_ids() == before
    assert cluster.machine_directory("gpu02").name == machine
    assert json.loads((cluster.directory / "machines" / machine / "machine.json").read_text())["reimaged_by"]
