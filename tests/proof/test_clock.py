"""The aggregator's wall clock steps an hour forward, two back, and one forward again, under real agents and hands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwatch.aggregator import settings as settings_file
from gpuwatch.clock import SystemClock
from gpuwatch.wiring.aggregator import Aggregator
from tests.living_cluster import Living

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

HOUR_S = 3600.0


class SteppedClock(SystemClock):
    """The machine's clocks, with a wall clock that a test may step; the machine's own is left alone."""

    def __init__(self) -> None:
        self._ahead_ns = 0

    def step_s(self, seconds: float) -> None:
        self._ahead_ns += int(seconds * 1e9)

    def unix_ns(self) -> int:
        return super().unix_ns() + self._ahead_ns


@pytest.fixture
def living(tmp_path: Path) -> Living:
    return Living(tmp_path / "cluster", node_count=4)


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


class Centre:
    """The aggregator, in this process, with our clock; it may be stopped and started anew."""

    def __init__(self, living: Living, clock: SteppedClock) -> None:
        self._settings = settings_file.load(living.cluster.config)
        self._clock = clock
        self._aggregator = self._started()

    def restart(self) -> None:
        self.stop()
        self._aggregator = self._started()

    def stop(self) -> None:
        self._aggregator.stop()

    def _started(self) -> Aggregator:
        made = Aggregator(self._settings, self._clock)
        made.start()
        return made


@pytest.fixture
def centre(living: Living, clock: SteppedClock) -> Iterator[Centre]:
    made = Centre(living, clock)
    living.cluster.start_machines()
    yield made
    living.cluster.stop()
    made.stop()


def test_ticks_go_on_nothing_is_drained_and_the_money_stays_sane(
    living: Living, clock: SteppedClock, centre: Centre
) -> None:
    living.until("all nodes are healthy", 60, living.well)
    living.cluster.submit(slot_count=3)
    living.until("the run steps", 60, lambda: (living.run().get("step") or 0) > 1)
    mark = living.mark()
    for step_s in (HOUR_S, -2 * HOUR_S, HOUR_S):
        clock.step_s(step_s)
        doubts: set[str] = set()
        before = living.api("fleet")["tick_unix_ns"]

        def look(doubts: set[str] = doubts) -> None:
            doubts.add(living.api("fleet")["blind_because"])
            assert living.condemned(mark) == [], living.story()

        living.watch(22.0, look)
        assert any("our wall clock stepped" in doubt for doubt in doubts), doubts
        after = living.api("fleet")["tick_unix_ns"]
        assert abs((after - before) / 1e9 - step_s - 22.0) < 5.0  # ticks went on, by the stepped clock
        living.until("all nodes are well", 30, living.well)
        living.until("the run steps", 30, lambda: (living.run().get("step") or 0) > 1)
        centre.restart()  # with a ledger that was written at another time of day
        living.watch(12.0, look)
        living.until("all nodes are well", 30, living.well)

    # with the clock an hour ahead a dead node is still replaced, once
    clock.step_s(HOUR_S)
    time.sleep(18.0)
    slot, machines = living.slots[1], set(living.cluster.machine_ids())
    living.cluster.kill_node(slot)
    living.until("the dead one is replaced", 90, lambda: len(set(living.cluster.machine_ids()) - machines) == 1)
    living.until("all nodes are well", 90, lambda: living.well() and not living.open_actions())
    assert len(set(living.cluster.machine_ids()) - machines) == 1
    assert living.leaks() == []
    clock.step_s(-HOUR_S)
    time.sleep(2.0)
    centre.restart()
    living.until("all nodes are well", 40, living.well)
    incidents = living.api("incidents")["incidents"]
    total = living.check_money()
    print(f"\nfive steps of an hour or two: the categories sum to the bill, ${total}; incidents: "
          + ", ".join(f"{one['kind']} ${one['price_usd']}" for one in incidents))  # fmt: skip
    assert [one["kind"] for one in incidents] == ["node_dead"]
    assert all(0 <= float(one["price_usd"] or 0) <= float(total) for one in incidents)
