"""`kill -9` of the aggregator at random moments of a replacement, again and again on one cluster with a run on it.

Half of the moments are spread over the whole way from the node's death to its slot's return, half are a few
milliseconds after a step that was drawn by lot. Every third time the restarted aggregator is killed once more.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.living_cluster import Living

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3000)]

ROUNDS = int(os.environ.get("GPUWATCH_PROOF_ROUNDS", "24"))
SEED = int(os.environ.get("GPUWATCH_PROOF_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
WHOLE_WAY_S = 14.0
STEPS = ("drain", "end_job", "empty", "create", "join", "validate", "adopt", "resume", "release")


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Living]:
    made = Living(tmp_path / "cluster", node_count=5)
    yield made
    made.cluster.stop()


def wait_for_the_moment(living: Living, chance: random.Random, after: int) -> str:
    """Sleep until the moment that was drawn; says which it was."""
    if chance.random() < 0.5:
        delay_s = chance.uniform(0.0, WHOLE_WAY_S)
        time.sleep(delay_s)
        return f"{delay_s:.2f} s after the node's death"
    step, state, delay_s = chance.choice(STEPS), chance.choice(("intended", "done")), chance.uniform(0.0, 0.06)
    deadline_s = time.monotonic() + 60.0
    while (step, state) not in [found[1:] for found in living.steps(after)]:
        assert time.monotonic() < deadline_s, f"{step} {state} never came\n{living.story()}"
        time.sleep(0.003)
    time.sleep(delay_s)
    return f"{1000 * delay_s:.0f} ms after {step} {state}"


def test_killed_at_random_moments_it_makes_exactly_one_machine_for_each_dead_one(living: Living) -> None:
    print(f"\nseed {SEED}, {ROUNDS} rounds")
    chance = random.Random(SEED)
    living.start(gang=4)
    cluster, kill_count = living.cluster, 0
    for number in range(1, ROUNDS + 1):
        slot = chance.choice(living.slots)
        dead, before, mark = cluster.machine_directory(slot).name, set(cluster.machine_ids()), living.mark()
        begun_s = time.monotonic()
        cluster.kill_node(slot)
        moments = [wait_for_the_moment(living, chance, mark)]
        cluster.kill_aggregator()
        kill_count += 1
        if number % 3 == 0:
            cluster.start_aggregator()
            delay_s = chance.uniform(0.0, 4.0)
            time.sleep(delay_s)
            moments.append(f"{delay_s:.2f} s after that")
            cluster.kill_aggregator()
            kill_count += 1
        cluster.start_aggregator()

        def replaced(slot: str = slot, dead: str = dead) -> bool:
            return living.nodes().get(slot, {}).get("machine") not in (None, dead) and not living.open_actions()

        living.until(f"{slot} is replaced", 90, replaced)
        living.until("all nodes are well", 60, living.well)
        took_s = time.monotonic() - begun_s
        new = set(cluster.machine_ids()) - before
        print(f"round {number}: {slot}, killed {' and '.join(moments)}; {took_s:.1f} s, {len(new)} new machine")
        assert len(new) == 1, new
        replacing = {action for action, step, _ in living.steps(mark) if step == "create"}
        assert len(replacing) == 1, replacing
        assert dead not in [machine.machine for machine in living.billed()]
        assert living.leaks() == []
        assert len(living.billed()) == len(living.slots)
        assert {n.slot: n.state for n in cluster.slot_nodes()}[slot] in ("idle", "allocated")
    assert len(list((cluster.directory / "machines").iterdir())) == len(living.slots) + ROUNDS
    living.until("the run steps", 90, lambda: (living.run().get("step") or 0) > 0)
    total = living.check_money()
    print(
        f"{kill_count} kills, {ROUNDS} dead nodes, {ROUNDS} new ones, no leak; the categories sum to the bill, ${total}"
    )
