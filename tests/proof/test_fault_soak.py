"""Half an hour of one real agent under random faults of everything it watches, several at once: it says each of them
and no other, goes on, and leaks nothing.

The reports go through the aggregator's own way in and its own rules. `GPUWATCH_PROOF_SOAK_MINUTES` sets the length,
`GPUWATCH_PROOF_SEED` repeats each lane's order of faults.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwatch.model.facts.kernel_log import KernelEvent
from tests.soak.agent_faults import agent_faults
from tests.soak.bus_faults import bus_faults, rdma_faults, service_faults
from tests.soak.fault import Force
from tests.soak.gpu_faults import gpu_faults
from tests.soak.host_faults import host_faults, training_faults
from tests.soak.judge import Judge, Look
from tests.soak.lanes import Makers, Soak
from tests.soak.log_faults import KINDS, KernelLog, log_faults
from tests.soak.site import Site
from tests.soak.sizes import Sizes

MINUTES = float(os.environ.get("GPUWATCH_PROOF_SOAK_MINUTES", "30"))
SEED = int(os.environ.get("GPUWATCH_PROOF_SEED") or random.randrange(1 << 30))
pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(int(60 * MINUTES) + 600),
    pytest.mark.needs("root", "gcc", "mkfs.ext4"),
]

SAMPLE_S = 2.0
TOLD_EVERY_S = 300.0
LEAVES_WITHIN_S = 0.2
MOST_GROWTH_BYTES = 3 << 20
MOST_ABANDONED = 4
SOURCES = ("nvml", "kernel_log", "host", "infiniband", "pcie", "services", "training")


@pytest.fixture
def force() -> Force:
    return Force()


@pytest.fixture
def judge(tmp_path: Path, force: Force) -> Iterator[Judge]:
    made = Judge(tmp_path / "judge", "m-1", force.allows)
    yield made
    made.close()


@pytest.fixture
def site(tmp_path: Path, judge: Judge) -> Iterator[Site]:
    made = Site(tmp_path / "node", judge.url, judge.token)
    yield made
    made.end()


def test_every_fault_is_said_and_no_other(site: Site, judge: Judge, force: Force) -> None:
    site.start()
    log = KernelLog(site.folder / "kernel.log")
    soak = Soak(judge, force, log, seed=SEED, minutes=MINUTES)
    assert soak.wait(0, all_is_well, time.monotonic, 60.0) is not None, judge.last_view()
    sizes = Sizes(site)

    told_s = time.monotonic()

    def meanwhile() -> None:
        nonlocal told_s
        sizes.look()
        if time.monotonic() - told_s > TOLD_EVERY_S:
            told_s = time.monotonic()
            tell(soak, judge, sizes, site)
        time.sleep(SAMPLE_S)

    soak.run(lanes(site, judge, log), meanwhile)
    calm = soak.wait(judge.mark(), all_is_well, time.monotonic, 60.0)
    site.count_lost()
    stop_s = site.stop()
    time.sleep(1.0)
    left = site.own_processes()
    tell(soak, judge, sizes, site)

    assert not soak.broken, soak.broken
    assert not soak.missed, soak.missed
    assert not judge.false, judge.first_false
    assert not judge.broken_rules, judge.broken_rules
    assert calm is not None
    assert "Traceback" not in site.log(), site.log()[-4000:]
    assert {process.returncode for process in site.processes} <= {0, -9}
    assert (left, stop_s < 3.0) == ([], True)
    strangers = [event for event in judge.events if not was_written(event, log)]
    assert not strangers, strangers[:5]
    holes = {agent: max(seen) - len(seen) for agent, seen in judge.sequences.items() if max(seen) != len(seen)}
    assert sum(holes.values()) == site.lost.total(), f"reports that never came: {holes}; said to be lost: {site.lost}"
    assert set(site.lost) <= {"disk"}, site.lost  # it was full, and older gauges made room
    assert judge.most_abandoned <= MOST_ABANDONED
    for hung in (False, True):
        quick = sorted(latency_s for latency_s, while_hung in soak.latencies_s if while_hung is hung)
        assert quick[int(len(quick) * 0.99)] < LEAVES_WITHIN_S, quick[-10:]
    for name in ("agent", "probe"):
        early, late = sizes.early_and_late(name)
        assert late.resident_bytes - early.resident_bytes < MOST_GROWTH_BYTES, (name, early, late)
        assert late.files <= early.files + 3, (name, early, late)
        assert late.threads <= early.threads + 2, (name, early, late)


def lanes(site: Site, judge: Judge, log: KernelLog) -> dict[str, Makers]:
    """What may break at the same time."""

    def chance(name: str) -> random.Random:
        return random.Random(f"{SEED}/where in {name}")

    return {
        "gpu": gpu_faults(site, chance("gpu")),
        "log": log_faults(site, judge, chance("log"), log),
        "bus": bus_faults(site, chance("bus")),
        "rdma": rdma_faults(site, chance("rdma")),
        "services": service_faults(site, chance("services")),
        "host": host_faults(site),
        "training": training_faults(site, chance("training")),
        "agent": agent_faults(site, judge, chance("agent")),
    }


def all_is_well(look: Look) -> bool:
    """Every source has been heard, and nothing is found of what this node breaks."""
    return all(look.status(source) == "ok" for source in SOURCES) and look.quiet


def was_written(event: KernelEvent, log: KernelLog) -> bool:
    """Whether the soak wrote the line of this event."""
    if event.xid is None:
        return event.kind in KINDS
    return event.pid is not None and log.is_known(event.pid, event.xid)


def tell(soak: Soak, judge: Judge, sizes: Sizes, site: Site) -> None:
    """The figures so far, whatever they are."""
    print(f"\nseed {SEED}, {MINUTES:g} minutes, {judge.count} reports, {judge.judged_count} of them live")
    print(f"{'fault':34} {'made':>5} {'seen':>5} {'median s':>8} {'most s':>8}")
    for kind, tally in sorted(soak.tallies.items()):
        print(tally.row(kind))
    total = sum(tally.injected for tally in soak.tallies.values())
    print(f"{total} faults of {len(soak.tallies)} kinds; false: {dict(judge.false)} {judge.first_false}")
    for hung in (False, True):
        found = sorted(1000 * latency_s for latency_s, while_hung in soak.latencies_s if while_hung is hung)
        if found:
            words = f"{len(found)} times, median {statistics.median(found):.0f} ms"
            words += f", p99 {found[int(len(found) * 0.99)]:.0f} ms, most {found[-1]:.0f} ms"
            print(f"a fatal line to the aggregator{' while NVML hangs' if hung else ''}: {words}")
    for name in ("agent", "probe") if sizes.enough() else ():
        early, late = (
            f"{size.resident_bytes / 1e6:.2f} MB, {size.files:g} files, {size.threads:g} threads"
            for size in sizes.early_and_late(name)
        )
        print(f"{name}: {early}; at the end {late}")
    print(f"children at most {max(sizes.children)}, usually {statistics.median(sizes.children):g}; "
          f"left behind at most {judge.most_abandoned}; {len(judge.sequences)} agents; "
          f"reports lost: {dict(site.lost)}; "
          f"of the machine itself: {dict(judge.foreign)}")  # fmt: skip
