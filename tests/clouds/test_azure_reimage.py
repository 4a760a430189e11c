"""A fresh disk for one machine of a scale set, through Microsoft's own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.clouds import reimager
from gpuwatch.errors import CloudError
from tests.arm_server import error
from tests.azure_rig import Rig, drop, once


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(tmp_path)
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", made.imds.url)
    yield made
    made.stop()


def posts(rig: Rig) -> list[str]:
    return [request.sub for request in rig.azure.requests if request.method == "POST"]


def test_the_same_machine_gets_a_fresh_disk_by_its_explicit_id(rig: Rig) -> None:
    cloud, machine = rig.cloud(), rig.azure.gpu.machine("2")
    assert reimager(cloud) is cloud
    assert all(group.reimages for group in cloud.snapshot().groups)
    receipt = cloud.reimage(machine, action_id="a1/reimage")
    assert (receipt.state, receipt.because) == ("pending", "Azure is reimaging machine 2 of gpu")
    assert rig.by_slot(cloud)["gpu000002"].machine == machine
    assert rig.reimage("2", cloud).machine == machine
    assert posts(rig) == ["/virtualMachineScaleSets/gpu/virtualMachines/2/reimage"]
    assert (rig.azure.gpu.capacity, len(rig.azure.gpu.vms)) == (4, 4)
    assert rig.azure.gpu.model.tags is not None
    assert rig.azure.gpu.model.tags["team"] == "training"


def test_the_same_action_again_is_done_and_another_one_begins_anew(rig: Rig) -> None:
    rig.reimage("2")
    assert rig.reimage("2").state == "done"
    assert len(posts(rig)) == 1
    rig.reimage("2", action="a2/reimage")
    assert rig.azure.gpu.reimaged == ["2", "2"]


@pytest.mark.parametrize("told", [True, False], ids=["its-looks-tell", "only-its-state-tells"])
def test_a_new_process_carries_on_what_is_under_way(rig: Rig, told: bool) -> None:
    rig.azure.gpu.lag = 4
    rig.azure.gpu.disks_are_told = told
    assert rig.cloud().reimage(rig.azure.gpu.machine("2"), action_id="a1/reimage").state == "pending"
    rig.reimage("2")
    assert len(posts(rig)) == 1


def test_a_new_process_sees_that_it_is_over(rig: Rig) -> None:
    rig.cloud().reimage(rig.azure.gpu.machine("2"), action_id="a1/reimage")
    for _ in range(3):
        rig.azure.gpu.tick()
    rig.reimage("2")
    assert len(posts(rig)) == 1


def test_an_answer_that_is_lost_after_its_effect_is_not_asked_twice(rig: Rig) -> None:
    rig.azure.after = once(drop, "POST")
    rig.reimage("2")
    assert rig.azure.gpu.reimaged == ["2"]


def test_a_call_that_never_came_is_made_again(rig: Rig) -> None:
    rig.azure.before = once(drop, "POST")
    rig.reimage("2")
    assert rig.azure.gpu.reimaged == ["2"]


def test_calls_without_effect_end(rig: Rig) -> None:
    rig.azure.before = lambda request: (200, {}, {}) if request.method == "POST" else None
    cloud, machine = rig.cloud(), rig.azure.gpu.machine("2")
    with pytest.raises(CloudError, match="was not reimaged") as caught:
        rig.until_done(lambda: cloud.reimage(machine, action_id="a"), looks=100)
    assert "asked 3 times" in caught.value.why
    assert not caught.value.retry


def test_one_that_never_ends_is_given_up(rig: Rig) -> None:
    rig.azure.gpu.lag = 10**6
    cloud, machine = rig.cloud(), rig.azure.gpu.machine("2")
    assert cloud.reimage(machine, action_id="a").state == "pending"
    rig.clock.pass_s(1801)
    with pytest.raises(CloudError, match="was not reimaged") as caught:
        cloud.reimage(machine, action_id="a")
    assert not caught.value.retry


def test_one_that_fails_has_failed_for_good_and_says_why(rig: Rig) -> None:
    rig.azure.gpu.reimage_fails = "OSProvisioningTimedOut"
    for _ in range(2):
        with pytest.raises(CloudError) as caught:
            rig.reimage("2")
        assert "OSProvisioningTimedOut" in caught.value.why
        assert not caught.value.retry
    assert len(posts(rig)) == 1


def test_a_machine_that_is_gone_or_changing_is_not_reimaged(rig: Rig) -> None:
    with pytest.raises(CloudError, match="no machine m-gone"):
        rig.cloud().reimage("m-gone", action_id="a")
    rig.azure.gpu.say("2", "Updating", "running")
    assert "being changed already" in rig.cloud().reimage(rig.azure.gpu.machine("2"), action_id="a").because
    assert rig.changes() == []


def test_it_vanishes_in_the_middle(rig: Rig) -> None:
    cloud, machine = rig.cloud(), rig.azure.gpu.machine("2")
    cloud.reimage(machine, action_id="a")
    del rig.azure.gpu.vms["2"]
    rig.clock.pass_s(6)
    with pytest.raises(CloudError, match="no machine"):
        cloud.reimage(machine, action_id="a")


def test_a_set_of_another_or_with_a_second_hand_is_not_touched(rig: Rig) -> None:
    rig.azure.gpu.model.tags = {"aks-managed-x": "y"}
    with pytest.raises(CloudError, match="belongs to AKS"):
        rig.reimage("2")
    assert rig.changes() == []


def test_somebody_changes_the_set_meanwhile(rig: Rig) -> None:
    rig.azure.before = once(lambda: error(412, "PreconditionFailed", "changed"), "PATCH")
    rig.reimage("2")
    assert rig.azure.gpu.reimaged == ["2"]


def test_tags_of_machines_that_are_gone_make_room(rig: Rig) -> None:
    rig.reimage("2")
    del rig.azure.gpu.vms["2"]
    rig.azure.gpu.capacity = 3
    rig.reimage("3", action="a2")
    tags: dict[str, Any] = rig.azure.gpu.model.tags or {}
    assert [name for name in tags if name.startswith("gpuwatch-reimage-")] == ["gpuwatch-reimage-3"]


def test_orders_of_long_ago_never_fill_the_tags(rig: Rig) -> None:
    cloud = rig.cloud()
    rig.azure.page_size = 100
    numbers = [rig.azure.gpu.make("Succeeded", "running") for _ in range(20)]
    rig.azure.gpu.created.clear()
    rig.azure.gpu.capacity = 24
    for number in numbers:
        rig.reimage(number, cloud, action=f"a{number}")
        rig.clock.pass_s(60)
    tags = rig.azure.gpu.model.tags or {}
    kept = [name for name in tags if name.startswith("gpuwatch-reimage-")]
    assert sorted(kept) == sorted(f"gpuwatch-reimage-{number}" for number in numbers[-12:])
    assert rig.azure.gpu.reimaged == numbers
    assert rig.reimage(numbers[-1], action=f"a{numbers[-1]}").state == "done"
    assert rig.azure.gpu.reimaged == numbers
    rig.create(cloud)


def test_a_tag_that_was_changed_by_hand_is_no_order(rig: Rig) -> None:
    rig.azure.gpu.model.tags = {"gpuwatch-reimage-2": "at=x by= looked", "gpuwatch-reimage-3": "", "team": "t"}
    rig.reimage("2")
    assert rig.azure.gpu.reimaged == ["2"]
    assert "gpuwatch-reimage-3" not in (rig.azure.gpu.model.tags or {})
