"""The aggregator and its agents lose each other, in every way that we could think of: nobody must suffer for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gate import Gate, State
from tests.living_cluster import Living

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

XID_43 = "NVRM: Xid (PCI:0000:1a:00): 43, pid={pid}, name=python, Ch 00000008"


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


@pytest.fixture
def living(tmp_path: Path, gate: Gate) -> Iterator[Living]:
    made = Living(tmp_path / "cluster", node_count=5, agents_port=gate.port)
    gate.to_port = made.cluster.port
    yield made
    made.cluster.stop()


def nobody_condemned(living: Living) -> Callable[[], None]:
    """A look that fails at the first word against a node."""

    def look() -> None:
        assert living.condemned() == [], living.story()
        time.sleep(0.4)

    return look


def say_goodbye(living: Living) -> None:
    """Stop every agent, as a maintenance would; each tells its last number."""
    for slot in living.slots:
        living.cluster.stop_node(slot)
    living.until("every agent said goodbye", 30, lambda: all(row.get("goodbye") for row in living.last_seen()))


@pytest.mark.parametrize(
    ("state", "seconds"),
    [
        pytest.param("refuse", 6.0, id="refused-for-6-s"),  # shorter than it takes to suspect our own network
        pytest.param("refuse", 45.0, id="refused-for-45-s"),
        pytest.param("stall", 45.0, id="stalled-for-45-s"),
        pytest.param("mute", 45.0, id="answers-lost-for-45-s"),
    ],
)
def test_cut_off_from_all_agents_and_back(state: State, seconds: float, living: Living, gate: Gate) -> None:
    living.start()
    for number in range(3):
        for slot in living.slots:
            living.cluster.log_line(slot, XID_43.format(pid=100 + number))
    living.until("the first events came", 20, lambda: living.metric("gpuwatch_kernel_events_total") == 15)
    gate.set(state)
    for number in range(3):
        for slot in living.slots:
            living.cluster.log_line(slot, XID_43.format(pid=200 + number))
        living.watch(seconds / 3, nobody_condemned(living))
    gate.set("open")
    living.until("the events came", 60, lambda: living.metric("gpuwatch_kernel_events_total") == 30)
    living.until("all nodes are well", 60, living.well)
    living.watch(10.0, nobody_condemned(living))
    assert len(living.query("SELECT event_id FROM events")) == 30

    # every report that any agent ever numbered was taken, and counted once
    say_goodbye(living)
    spooled = list(living.cluster.directory.glob("machines/*/agent/spool/*.report"))
    assert spooled == []
    numbered = sum(row["sequence"] for row in living.last_seen())
    taken = {
        how: living.metric(f'gpuwatch_reports_taken_total{{how="{how}"}}') for how in ("accepted", "late", "repeated")
    }
    print(f"\n{state} for {seconds:.0f} s: {numbered} reports numbered, taken {taken}, nobody condemned")
    assert taken["accepted"] + taken["late"] == numbered
    assert taken["late"] > len(living.slots) * (seconds - 30.0)  # what waited is of the past, and judged as such
    if state != "stall":  # what stalled may arrive later, after its sender had tried again
        assert (taken["repeated"] > 0) is (state == "mute")


def test_cut_off_for_longer_than_a_new_machine_may_take_to_join(living: Living, gate: Gate) -> None:
    living.start()
    slot, before = living.slots[1], set(living.cluster.machine_ids())
    living.cluster.kill_node(slot)
    living.until("a machine is made", 60, lambda: "create done" in [" ".join(s[1:]) for s in living.steps()])
    gate.set("refuse")
    living.watch(50.0, lambda: time.sleep(1.0))  # join_deadline_s is 30
    gate.set("open")
    living.until("the dead one is replaced", 90, lambda: not living.open_actions() and living.well())
    new = set(living.cluster.machine_ids()) - before
    assert len(new) == 1, living.story()
    assert living.leaks() == []
    print(f"\ncut off for 50 s during a join: {len(new)} new machine, ${living.check_money()}")


def test_the_aggregator_stands_still_for_30_s_and_a_node_dies_meanwhile(living: Living) -> None:
    living.start(gang=4)
    cluster, mark = living.cluster, living.mark()
    cluster.freeze_aggregator()
    time.sleep(30.0)
    cluster.thaw_aggregator()
    doubts: set[str] = set()

    def look() -> None:
        doubts.add(str(living.api("fleet").get("blind_because", "")).split(" for ")[0])
        assert living.condemned(mark) == [], living.story()

    living.watch(25.0, look)
    assert "this process stood still" in doubts, doubts
    living.until("all nodes are well", 40, living.well)

    # it is not blind for ever, and a death that it slept through is seen afterwards
    slot, before = living.slots[2], set(cluster.machine_ids())
    cluster.freeze_aggregator()
    time.sleep(2.0)
    cluster.kill_node(slot)
    time.sleep(18.0)
    cluster.thaw_aggregator()
    living.until("the dead one is replaced", 90, lambda: len(set(cluster.machine_ids()) - before) == 1)
    living.until("all nodes are well", 90, lambda: living.well() and not living.open_actions())
    assert {said.split()[0] for said in living.condemned(mark) if " dead" in said} == {slot}
    assert len(set(cluster.machine_ids()) - before) == 1
    assert living.leaks() == []
    print(f"\nstood still for 30 s: doubted itself, condemned nobody; total ${living.check_money()}")
