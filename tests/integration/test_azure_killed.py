"""`kill -9` of the whole aggregator in the middle of work on the local Azure; each state is in `tests/proof`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.azure_world import AzureWorld


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[AzureWorld]:
    made = AzureWorld(tmp_path, policy=getattr(request, "param", ""))
    yield made
    made.stop()


def test_killed_at_two_states_of_two_replacements_it_makes_two_machines(world: AzureWorld) -> None:
    world.start()
    world.until("four nodes come into service", world.is_well)
    for number, at in (("1", "after 9"), ("2", "before 18")):
        assert world.replaces(number, at)
    assert world.azure.gpu.created == ["4", "5"]


@pytest.mark.parametrize("world", ['software_fault = "reimage"\ndriver_grace_s = 1.0'], indirect=True)
def test_killed_in_the_middle_of_a_reimage_it_is_one_reimage(world: AzureWorld) -> None:
    world.start()
    world.until("four nodes come into service", world.is_well)
    assert world.reimages("1", "before 9")
    assert world.azure.gpu.created == []
