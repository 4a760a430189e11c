"""`kill -9` of the whole aggregator before and after it writes down each state of an action on the local Azure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.azure_world import AzureWorld

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3000)]


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[AzureWorld]:
    made = AzureWorld(tmp_path, policy=getattr(request, "param", ""))
    yield made
    made.stop()


@pytest.mark.parametrize("side", ["before", "after"])
def test_one_machine_comes_of_each_replacement(world: AzureWorld, side: str) -> None:
    world.start()
    world.until("four nodes come into service", world.is_well)
    for count in itertools.count(1):
        number = next(iter(world.azure.gpu.vms))
        if not world.replaces(number, f"{side} {count}"):
            break
        print(f"killed {side} state {count}")
    assert count > 18


@pytest.mark.parametrize(
    "world", ['software_fault = "reimage"\nreimage_again_s = 0.0\ndriver_grace_s = 1.0'], indirect=True
)
@pytest.mark.parametrize("side", ["before", "after"])
def test_one_fresh_disk_comes_of_each_reimage(world: AzureWorld, side: str) -> None:
    world.start()
    world.until("four nodes come into service", world.is_well)
    for count in itertools.count(1):
        if not world.reimages("0123"[count % 4], f"{side} {count}"):
            break
        print(f"killed {side} state {count}")
    assert count > 14
