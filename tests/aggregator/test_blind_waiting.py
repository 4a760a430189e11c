"""An action that waits while the aggregator is blind: what it waits for may be there, unseen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes_centre import Centre


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, policy="join_deadline_s = 60")
    yield made
    assert made.store is not None
    made.store.close()


def everybody(centre: Centre, *, speaks: bool) -> None:
    for agent in centre.agents.values():
        agent.speaks = speaks


def test_cut_off_for_longer_than_a_join_may_take_it_keeps_the_one_new_machine(centre: Centre) -> None:
    centre.settle()
    centre.agents["m-gpu03"].speaks = False
    centre.cloud.set_state("m-gpu03", "failed")
    centre.scheduler.down.add("gpu03")
    centre.new_agents_speak = False  # it does speak, but we are cut off before its first report
    while not [name for name, _ in centre.cloud.calls if name == "create"]:
        centre.second()
    everybody(centre, speaks=False)
    centre.seconds(200)
    assert [name for name, _ in centre.cloud.calls] == ["create"]
    everybody(centre, speaks=True)
    centre.agents["m-gpu03"].speaks = False
    centre.new_agents_speak = True
    centre.scheduler.down.discard("gpu03")
    centre.seconds(60)
    assert [name for name, _ in centre.cloud.calls] == ["create", "release"]
    assert centre.cloud.listed["m-gpu03"].ended_unix_ns is not None
    assert set(centre.states().values()) == {"healthy in_service"}
