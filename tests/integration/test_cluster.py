"""Real aggregator, agents, cloud and scheduler: killed in the middle of a replacement, and cut off from everybody.

The short forms of what `make proof` does at length.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gate import Gate
from tests.living_cluster import Living

KILLED_AT = (
    ("drain", "intended"),
    ("create", "intended"),
    ("create", "done"),
    ("adopt", "done"),
    ("release", "intended"),
)


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Living]:
    made = Living(tmp_path / "cluster")
    yield made
    made.cluster.stop()


def test_killed_at_chosen_steps_of_a_replacement_it_makes_one_machine_and_leaks_none(living: Living) -> None:
    living.start()
    cluster, slot = living.cluster, living.slots[1]
    dead, before = cluster.machine_directory(slot).name, set(cluster.machine_ids())
    cluster.kill_node(slot)
    for step, state in KILLED_AT:
        living.until(f"{step} is {state}", 60, lambda: (step, state) in [found[1:] for found in living.steps()])  # noqa: B023
        cluster.kill_aggregator()
        cluster.start_aggregator()
    living.until("the action is over", 60, lambda: bool(living.steps()) and not living.open_actions())
    living.until("all nodes are healthy", 60, living.well)
    (new,) = set(cluster.machine_ids()) - before
    assert living.nodes()[slot]["machine"] == new
    assert dead not in [machine.machine for machine in living.billed()]
    assert living.leaks() == []
    assert len({action for action, _, _ in living.steps()}) == 1
    living.check_money()


def test_cut_off_from_all_agents_and_back_nobody_is_dead_and_every_event_counts_once(tmp_path: Path) -> None:
    gate = Gate()
    living = Living(tmp_path / "cluster", agents_port=gate.port)
    gate.to_port = living.cluster.port
    try:
        living.start()
        gate.set("refuse")
        for slot in living.slots:
            living.cluster.log_line(slot, "NVRM: Xid (PCI:0000:1a:00): 43, pid=77, name=python, Ch 00000008")
        living.watch(10.0, lambda: time.sleep(0.4))  # far longer than dead_after_s
        gate.set("open")
        living.until("the events came", 40, lambda: living.metric("gpuwatch_kernel_events_total") == len(living.slots))
        living.until("all nodes are healthy", 60, living.well)
        assert living.condemned() == []
        assert len(living.query("SELECT event_id FROM events")) == len(living.slots)
    finally:
        living.cluster.stop()
        gate.close()
