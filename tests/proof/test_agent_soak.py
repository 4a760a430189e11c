"""Ten minutes of an agent that looks and reports five times a second: memory, threads and files stay as they are."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.agent_node import Aggregator, Node, status_is

MINUTES = float(os.environ.get("GPUWATCH_PROOF_SOAK_MINUTES", "10"))
pytestmark = [pytest.mark.proof, pytest.mark.timeout(int(60 * MINUTES) + 300)]

MOST_GROWTH_BYTES = 1 << 20
SAMPLE_S = 2.0


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    made = Aggregator()
    yield made
    made.close()


@pytest.fixture
def node(tmp_path: Path, aggregator: Aggregator) -> Iterator[Node]:
    made = Node(tmp_path / "node", aggregator.url)
    made.top["interval_s"] = 0.2
    made.nvml["interval_s"] = 0.2
    yield made
    made.end()


def test_memory_threads_and_files_stay_flat(node: Node, aggregator: Aggregator) -> None:
    parent = psutil.Process(node.start().pid)
    aggregator.wait(status_is("nvml", "ok"))
    (child,) = parent.children()
    resident: dict[str, list[int]] = {"agent": [], "probe": []}
    handles: dict[str, list[tuple[int, int]]] = {"agent": [], "probe": []}
    end_s = time.monotonic() + 60 * MINUTES
    number = 0
    while time.monotonic() < end_s:
        number += 1
        with (node.folder / "kernel.log").open("a") as log:  # an event now and then, as nodes have
            log.write(
                f"[{time.monotonic():.6f}] NVRM: Xid (PCI:0000:1a:00): 43, pid={number}, name=python, Ch 00000008\n"
            )
        for name, process in (("agent", parent), ("probe", child)):
            resident[name].append(process.memory_info().rss)
            handles[name].append((process.num_fds(), process.num_threads()))
        del aggregator.reports[:-5]
        time.sleep(SAMPLE_S)
    _, last = aggregator.wait(status_is("nvml", "ok"))
    print(f"\n{MINUTES:.0f} minutes, {last.sequence} reports")
    assert last.sequence > 60 * MINUTES / 0.2 / 2
    for name, sizes in resident.items():
        tenth = max(3, len(sizes) // 10)
        early, late = statistics.median(sizes[tenth : 2 * tenth]), statistics.median(sizes[-tenth:])
        print(f"{name}: {early / 1e6:.2f} MB in the second tenth, {late / 1e6:.2f} MB in the last")
        print(f"{name}: files and threads {handles[name][tenth]} then {handles[name][-1]}")
        assert late - early < MOST_GROWTH_BYTES
        assert max(late_handles[0] for late_handles in handles[name][-tenth:]) <= handles[name][tenth][0] + 2
        assert handles[name][-1][1] <= handles[name][tenth][1] + 2
    assert node.stop() < 3.0
