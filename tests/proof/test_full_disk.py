"""The disk under the aggregator's ledger is full: it says so, does nothing, loses nothing, and goes on afterwards."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.living_cluster import Living

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600), pytest.mark.needs("root")]

XID_43 = "NVRM: Xid (PCI:0000:1a:00): 43, pid={pid}, name=python, Ch 00000008"


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Living]:
    made = Living(tmp_path / "cluster", node_count=4)
    state = made.cluster.ledger.parent
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(state)], check=True)
    yield made
    made.cluster.stop()
    subprocess.run(["umount", "-l", str(state)], check=False)


def fill(state: Path) -> Path:
    """Take every byte that is left."""
    filler = state / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(b"x")
    return filler


def test_a_full_disk_is_said_harms_nobody_and_passes(living: Living) -> None:
    living.start(gang=3)
    cluster, slots = living.cluster, living.slots
    for slot in slots:
        cluster.log_line(slot, XID_43.format(pid=1))
    living.until("the first events came", 20, lambda: len(living.query("SELECT event_id FROM events")) == 4)
    before = set(cluster.machine_ids())

    filler = fill(cluster.ledger.parent)
    dying = slots[1]  # its own spool goes down with it, so it has nothing to say
    for slot in set(slots) - {dying}:
        cluster.log_line(slot, XID_43.format(pid=2))
    living.until("it is blind and says why", 40, lambda: "disk is full" in living.api("fleet")["blind_because"])
    blind = living.api("fleet")["blind_because"]
    refused = 'gpuwatch_reports_refused_total{reason="store"}'
    living.until("events are refused for now", 40, lambda: living.metric(refused) > 0)
    cluster.kill_node(dying)
    living.watch(20.0, lambda: None)
    assert set(cluster.machine_ids()) == before, "it acted on what it could not write down"
    assert living.steps() == []
    assert cluster.alive()
    assert "free space on the file system of" in (cluster.directory / "aggregator.log").read_text()

    # an aggregator that begins on a full disk says so, whether it can begin or not
    cluster.kill_aggregator()
    cluster.start_aggregator()
    living.watch(8.0, lambda: None)
    began = cluster.alive()
    if not began:
        assert "the disk is full" in cluster.log_tail()
        assert "Traceback" not in cluster.log_tail()
    filler.unlink()
    if not began:
        cluster.start_aggregator()
    living.until("the dead one is replaced", 90, lambda: len(set(cluster.machine_ids()) - before) == 1)
    living.until("all nodes are well", 90, lambda: living.well() and not living.open_actions())
    living.until("every event is there", 60, lambda: len(living.query("SELECT event_id FROM events")) == 7)
    assert len(set(cluster.machine_ids()) - before) == 1
    assert living.leaks() == []
    log = (cluster.directory / "aggregator.log").read_text()
    assert "Traceback" not in log, log
    total = living.check_money()
    print(f"\nfull disk: {blind!r}; began again on the full disk: {began}; 7 of 7 events, one new machine, ${total}")
