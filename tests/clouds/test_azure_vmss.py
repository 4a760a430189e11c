"""Scale sets through Microsoft's own client, against a local Azure that fails in every way that is known."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.aggregator import settings as aggregator_settings
from gpuwatch.clouds.azure_vmss import AzureVmss, Settings
from gpuwatch.errors import CloudError
from gpuwatch.sdk import azure_marks as marks
from gpuwatch.sdk.azure_arm import MAX_WAIT_S, open_client
from gpuwatch.sdk.azure_words import REFUSABLE
from tests.arm_server import RESOURCE_GROUP, SUBSCRIPTION, ArmServer, Dropped, Request, error
from tests.azure_rig import Rig, drop, once

ROOT = Path(__file__).parent.parent.parent
ROLE = ROOT / "deploy" / "azure" / "gpuwatch-role.json"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(tmp_path)
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", made.imds.url)
    yield made
    made.stop()


# the witness


def test_every_page_is_listed_with_what_billing_needs(rig: Rig) -> None:
    snapshot = rig.cloud().snapshot()
    first = snapshot.machines[0]
    assert [machine.slot for machine in snapshot.machines] == ["gpu000000", "gpu000001", "gpu000002", "gpu000003"]
    assert (first.provider, first.region, first.sku) == ("azure", "eastus", "Standard_ND96isr_H100_v5")
    assert (first.state, first.price_kind, first.started_unix_ns) == ("running", "ondemand", 1767323045 * 10**9)
    assert first.machine == rig.azure.gpu.machine("0")
    (group,) = snapshot.groups
    assert (group.name, group.owner, group.target_count, group.refuses) == ("gpu", "gpuwatch", 4, ())


@pytest.mark.parametrize(
    ("provisioning", "power", "health", "spot", "state", "absent", "word"),
    [
        pytest.param("Succeeded", "running", "", False, "running", "", "", id="running"),
        pytest.param("Succeeded", "running", "healthy", False, "running", "", "", id="healthy"),
        pytest.param("Succeeded", "running", "unhealthy", False, "running", "", "unhealthy", id="unhealthy"),
        pytest.param("Failed", "running", "", False, "running", "", "VMExtensionError", id="runs-not-provisioned"),
        pytest.param("Updating", "running", "", False, "running", "", "", id="being-changed"),
        pytest.param("Succeeded", "starting", "", False, "starting", "", "", id="starting"),
        pytest.param("Creating", "", "", False, "starting", "", "making", id="being-made"),
        pytest.param("Succeeded", "stopped", "", False, "stopped", "powered_down", "bills it on", id="shut-down"),
        pytest.param("Succeeded", "deallocated", "", False, "stopped", "stopped", "given back", id="deallocated"),
        pytest.param("Succeeded", "deallocated", "", True, "stopped", "evicted", "took it back", id="evicted"),
        pytest.param("Failed", "", "", False, "failed", "", "VMExtensionError", id="failed"),
        pytest.param("Deleting", "running", "", False, "releasing", "scaled_in", "deleting", id="deleted-by-another"),
        pytest.param("Succeeded", "", "", False, "unknown", "", "no power state", id="no-power-state"),
    ],
)
def test_what_azure_says_of_a_machine(
    rig: Rig, provisioning: str, power: str, health: str, spot: bool, state: str, absent: str, word: str
) -> None:
    code = "VMExtensionError" if provisioning == "Failed" else ""
    rig.azure.gpu.lag = 10
    if spot:
        rig.azure.gpu.make_spot()
    if provisioning == "Deleting":
        rig.azure.gpu.delete("1")
    else:
        rig.azure.gpu.say("1", provisioning, power, health, code)
    told = rig.by_slot(rig.cloud())["gpu000001"]
    assert (told.state, told.absent_because) == (state, absent)
    assert word in told.because
    assert told.price_kind == ("spot" if spot else "ondemand")


@pytest.mark.parametrize(
    ("capacity", "spot", "absent"),
    [
        pytest.param(4, False, "unexplained", id="still-wanted"),
        pytest.param(3, False, "scaled_in", id="capacity-fell"),
        pytest.param(4, True, "evicted", id="spot"),
        pytest.param(3, True, "scaled_in", id="spot-scaled-in"),
    ],
)
def test_a_vanished_machine_is_gone_with_its_reason(rig: Rig, capacity: int, spot: bool, absent: str) -> None:
    if spot:
        rig.azure.gpu.make_spot()
    cloud = rig.cloud()
    cloud.snapshot()
    del rig.azure.gpu.vms["1"]
    rig.azure.gpu.capacity = capacity
    told = rig.by_slot(cloud)["gpu000001"]
    assert (told.state, told.absent_because, told.ended_unix_ns) == ("gone", absent, rig.clock.unix_ns())
    assert rig.by_slot(cloud)["gpu000001"].state == "gone"
    rig.clock.pass_s(86_400)
    assert "gpu000001" not in rig.by_slot(cloud)


def test_two_vanish_and_the_capacity_falls_by_one_so_one_is_still_wanted(rig: Rig) -> None:
    cloud = rig.cloud()
    cloud.snapshot()
    del rig.azure.gpu.vms["1"], rig.azure.gpu.vms["2"]
    rig.azure.gpu.capacity = 3
    absent = sorted(machine.absent_because for machine in cloud.snapshot().machines)
    assert absent == ["", "", "scaled_in", "unexplained"]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda: (200, {"value": None}, {}), id="null"),
        pytest.param(lambda: (200, {}, {}), id="no-list"),
        pytest.param(lambda: (200, b"<html>busy</html>", {}), id="garbage"),
        pytest.param(lambda: (200, {"value": 7}, {}), id="wrong-type"),
        pytest.param(lambda: error(500, "InternalServerError", "try again"), id="500"),
        pytest.param(drop, id="dropped"),
    ],
)
@pytest.mark.parametrize("page", [1, 2])
def test_an_incomplete_answer_is_an_error_and_never_a_short_list(rig: Rig, fault: Any, page: int) -> None:
    cloud = rig.cloud()
    cloud.snapshot()
    asked: list[Request] = []

    def look(request: Request) -> Any:
        if request.sub.endswith("/virtualMachines"):
            asked.append(request)
            return fault() if len(asked) == page else None
        return None

    rig.azure.before = look
    with pytest.raises(CloudError) as caught:
        cloud.snapshot()
    assert caught.value.retry
    assert caught.value.next_step
    assert len(cloud.snapshot().machines) == 4


def test_an_empty_list_of_a_set_that_wants_machines_is_not_believed(rig: Rig) -> None:
    cloud = rig.cloud()
    rig.azure.before = once(lambda: (200, {"value": []}, {}), path="/virtualMachines$")
    with pytest.raises(CloudError, match="lists none of the 4 machines"):
        cloud.snapshot()
    rig.azure.gpu.vms.clear()
    rig.azure.gpu.capacity = 0
    assert {machine.state for machine in cloud.snapshot().machines} <= {"gone"}


# one more


def test_one_action_is_one_machine_whoever_asks_and_how_often(rig: Rig) -> None:
    cloud = rig.cloud()
    made = rig.create(cloud)
    assert made.machine == rig.azure.gpu.machine("4")
    assert {rig.create(cloud).machine, rig.create().machine} == {made.machine}
    assert rig.azure.gpu.created == ["4"]
    assert rig.azure.gpu.capacity == 5
    told = rig.by_slot(rig.cloud(slot_pattern="nothing"))["gpu000001"]
    assert (told.machine, told.action_id) == (made.machine, "a1/create")
    assert (rig.azure.gpu.model.tags or {})["team"] == "training"


def test_the_step_may_be_carried_on_all_the_time_and_azure_is_asked_now_and_then(rig: Rig) -> None:
    cloud = rig.cloud()
    rig.azure.gpu.lag = 100
    rig.azure.gpu.grows = False
    for _ in range(40):
        assert cloud.create(slot="s", group="gpu", action_id="a").state == "pending"
        rig.clock.pass_s(0.25)
    assert len(rig.azure.requests) < 10


def test_azures_own_patience_is_kept(rig: Rig) -> None:
    cloud = rig.cloud()
    rig.azure.retry_after = "40"
    assert cloud.create(slot="s", group="gpu", action_id="a").state == "pending"
    count = len(rig.azure.requests)
    rig.clock.pass_s(39)
    cloud.create(slot="s", group="gpu", action_id="a")
    assert len(rig.azure.requests) == count
    rig.clock.pass_s(2)
    cloud.create(slot="s", group="gpu", action_id="a")
    assert len(rig.azure.requests) > count


def test_four_actions_at_once_by_two_aggregators_are_four_machines(rig: Rig) -> None:
    clouds = [rig.cloud(look_every_s=0.001), rig.cloud(look_every_s=0.001)]
    made: dict[str, str] = {}

    def run(cloud: AzureVmss, action: str) -> None:
        made[f"{action} {id(cloud)}"] = rig.until_done(
            lambda: cloud.create(slot=action, group="gpu", action_id=action), looks=400
        ).machine

    threads = [threading.Thread(target=run, args=(cloud, f"a{n}")) for n in range(4) for cloud in clouds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 8
    assert len(set(made.values())) == 4
    assert len(rig.azure.gpu.created) == 4
    assert rig.azure.gpu.capacity == 8


def test_a_machine_of_a_growth_under_way_is_in_no_slot_until_it_is_settled(rig: Rig) -> None:
    cloud = rig.cloud()
    cloud.create(slot="gpu000001", group="gpu", action_id="a1/create")
    (new,) = [m for m in cloud.snapshot().machines if m.machine == rig.azure.gpu.machine("4")]
    assert (new.slot, new.state) == (None, "starting")
    rig.create(cloud)
    (new,) = [m for m in cloud.snapshot().machines if m.machine == rig.azure.gpu.machine("4")]
    assert new.slot == "gpu000001"


@pytest.mark.parametrize("path", ["settle", "grow"])
def test_an_answer_that_is_lost_after_its_effect_makes_no_second_machine(rig: Rig, path: str) -> None:
    patches = [1 if path == "grow" else 2]

    def after(request: Request) -> Any:
        if request.method == "PATCH":
            patches[0] -= 1
            if patches[0] == 0:
                raise Dropped
        return None

    rig.azure.after = after
    rig.create()
    assert rig.azure.gpu.created == ["4"]
    assert rig.azure.gpu.capacity == 5


def test_the_set_is_changed_by_a_person_between_look_and_growth(rig: Rig) -> None:
    def meddle() -> None:
        rig.azure.gpu.change({"tags": {"team": "other"}})

    rig.azure.before = once(meddle, "PATCH")
    rig.create()
    assert rig.azure.gpu.created == ["4"]
    assert (rig.azure.gpu.model.tags or {})["team"] == "other"


def test_no_capacity_ends_the_action_for_good_and_the_next_one_fills_the_place(rig: Rig) -> None:
    rig.azure.gpu.grows = False
    cloud = rig.cloud()
    for asked in (cloud, cloud, rig.cloud()):
        with pytest.raises(CloudError) as caught:
            rig.create(asked)
        assert not caught.value.retry
        assert "AllocationFailed" in caught.value.why
        assert "no room" in caught.value.next_step
    assert rig.azure.gpu.capacity == 5
    rig.azure.gpu.grows = True
    rig.create(cloud, "a2/create")
    assert rig.azure.gpu.created == ["4"]
    assert rig.azure.gpu.capacity == 5


def test_a_machine_that_came_to_nothing_is_named_so_that_it_can_be_given_back(rig: Rig) -> None:
    cloud = rig.cloud()
    cloud.create(slot="gpu000001", group="gpu", action_id="a1/create")
    rig.azure.gpu.say("4", "Failed", code="AllocationFailed")
    rig.azure.gpu.forget_wanted()
    made = rig.create(cloud)
    assert made.machine == rig.azure.gpu.machine("4")
    assert rig.by_slot(cloud)["gpu000001"].state in ("failed", "running")
    rig.release("4", cloud)
    assert sorted(rig.azure.gpu.vms) == ["0", "1", "2", "3"]
    assert rig.azure.gpu.capacity == 4


def test_a_growth_that_never_ends_is_given_up_with_a_next_step(rig: Rig) -> None:
    rig.azure.gpu.lag = 10**6
    cloud = rig.cloud()
    cloud.create(slot="s", group="gpu", action_id="a")
    rig.azure.gpu.vms.pop("4")
    rig.clock.pass_s(1799)
    assert cloud.create(slot="s", group="gpu", action_id="a").state == "pending"
    rig.clock.pass_s(6)
    for asked in (cloud, rig.cloud()):
        with pytest.raises(CloudError, match="no machine came") as caught:
            asked.create(slot="s", group="gpu", action_id="a")
        assert not caught.value.retry
        assert "lower it by hand" in caught.value.next_step


def test_a_growth_that_never_ends_is_not_followed_by_another(rig: Rig) -> None:
    rig.azure.gpu.lag = 10**6
    rig.azure.gpu.grows = False
    cloud = rig.cloud()
    cloud.create(slot="s", group="gpu", action_id="a")
    rig.clock.pass_s(1805)
    with pytest.raises(CloudError):
        cloud.create(slot="s", group="gpu", action_id="a")
    receipt = cloud.create(slot="s", group="gpu", action_id="b")
    assert (receipt.state, "never ended" in receipt.because) == ("pending", True)
    assert rig.azure.gpu.capacity == 5


def test_more_machines_than_were_asked_for_is_said_and_one_is_taken(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.azure.gpu.extra_count = 1
    assert rig.create().machine == rig.azure.gpu.machine("4")
    assert "grew by more than was asked for: 1 of its machines" in caplog.text


def test_a_mark_changed_by_hand_stops_us(rig: Rig) -> None:
    rig.azure.gpu.change({"tags": {marks.name_of("a"): "?"}})
    with pytest.raises(CloudError, match="cannot be read") as caught:
        rig.cloud().create(slot="s", group="gpu", action_id="a")
    assert not caught.value.retry
    assert rig.changes() == []


def test_a_set_without_room_for_a_tag_is_not_grown(rig: Rig) -> None:
    rig.azure.gpu.change({"tags": {f"t{n}": "x" for n in range(50)}})
    with pytest.raises(CloudError, match="one more tag"):
        rig.cloud().create(slot="s", group="gpu", action_id="a")
    assert rig.azure.gpu.capacity == 4


def test_an_unknown_group_is_refused(rig: Rig) -> None:
    with pytest.raises(CloudError, match="no scale set 'cpu'") as caught:
        rig.cloud().create(slot="s", group="cpu", action_id="a")
    assert caught.value.next_step


# one less


def test_exactly_one_machine_goes_and_the_capacity_with_it(rig: Rig) -> None:
    cloud = rig.cloud()
    cloud.snapshot()
    machine = rig.azure.gpu.machine("2")
    assert cloud.release(machine, action_id="a1/release").state == "pending"
    told = rig.by_slot(cloud)["gpu000002"]
    assert (told.state, told.absent_because) == ("releasing", "surplus")
    assert rig.release("2", cloud).machine == machine
    assert sorted(rig.azure.gpu.vms) == ["0", "1", "3"]
    assert rig.azure.gpu.capacity == 3
    assert [(r.method, r.sub) for r in rig.changes()] == [("DELETE", "/virtualMachineScaleSets/gpu/virtualMachines/2")]
    again = rig.cloud().release(machine, action_id="a1/release")
    assert (again.state, again.because) == ("done", "none of gpu lists it")
    told = rig.by_slot(cloud)["gpu000002"]
    assert (told.state, told.absent_because) == ("gone", "surplus")


def test_a_deletion_whose_answer_is_lost_is_not_asked_twice(rig: Rig) -> None:
    rig.azure.after = once(drop, "DELETE")
    rig.release("2")
    assert sorted(rig.azure.gpu.vms) == ["0", "1", "3"]
    assert len(rig.changes()) == 1


def test_a_deletion_that_never_began_is_asked_again(rig: Rig) -> None:
    rig.azure.before = once(drop, "DELETE")
    rig.release("2")
    assert sorted(rig.azure.gpu.vms) == ["0", "1", "3"]


def test_a_deletion_that_never_ends_is_given_up_with_a_next_step(rig: Rig) -> None:
    rig.azure.gpu.lag = 10**6
    cloud, machine = rig.cloud(), rig.azure.gpu.machine("2")
    assert cloud.release(machine, action_id="a").state == "pending"
    rig.clock.pass_s(1801)
    with pytest.raises(CloudError, match="is not gone") as caught:
        cloud.release(machine, action_id="a")
    assert not caught.value.retry
    assert "billed" in caught.value.next_step
    assert len(rig.changes()) == 1


def test_another_machine_that_goes_along_is_an_alarm(rig: Rig) -> None:
    rig.azure.gpu.also_deletes = ["3"]
    with pytest.raises(CloudError, match="went 1 more: 3") as caught:
        rig.release("2")
    assert not caught.value.retry


def test_a_capacity_that_stays_is_an_alarm_for_azure_will_make_another(rig: Rig) -> None:
    rig.azure.gpu.keeps_capacity = True
    with pytest.raises(CloudError, match="capacity is 4"):
        rig.release("2")


def test_a_deletion_that_was_under_way_before_us_is_counted_too(rig: Rig) -> None:
    first, machine = rig.cloud(), rig.azure.gpu.machine("2")
    assert first.release(machine, action_id="a").state == "pending"
    rig.azure.gpu.keeps_capacity = True
    later = rig.cloud()
    with pytest.raises(CloudError, match="capacity is 4"):
        rig.until_done(lambda: later.release(machine, action_id="a"))
    assert len(rig.changes()) == 1


def test_a_machine_that_is_being_deleted_is_neither_gone_nor_there(rig: Rig) -> None:
    rig.azure.gpu.lag = 3
    cloud, machine = rig.cloud(), rig.azure.gpu.machine("2")
    assert cloud.release(machine, action_id="a").state == "pending"
    told = rig.by_slot(cloud)["gpu000002"]
    assert (told.state, told.absent_because) == ("releasing", "surplus")
    rig.release("2", cloud, action="a")
    assert rig.by_slot(cloud)["gpu000002"].state == "gone"


def test_a_deletion_of_ours_that_is_over_sooner_is_no_alarm_to_one_that_began_before(rig: Rig) -> None:
    cloud, first, second = rig.cloud(), rig.azure.gpu.machine("1"), rig.azure.gpu.machine("2")
    rig.azure.before = once(drop, "DELETE")
    with pytest.raises(CloudError):
        cloud.release(first, action_id="r1")
    rig.until_done(lambda: cloud.release(second, action_id="r2"))
    rig.clock.pass_s(61)
    assert rig.until_done(lambda: cloud.release(first, action_id="r1")).state == "done"


def test_a_spot_machine_that_is_taken_meanwhile_is_no_alarm(rig: Rig) -> None:
    rig.azure.gpu.make_spot()
    rig.azure.gpu.also_deletes = ["3"]
    assert rig.release("2").state == "done"


def test_two_deletions_and_a_growth_at_once_are_no_alarm(rig: Rig) -> None:
    cloud = rig.cloud()
    machines = [rig.azure.gpu.machine(number) for number in "12"]
    for number, machine in enumerate(machines):
        cloud.release(machine, action_id=f"r{number}")
    rig.create(cloud, "c")
    for number, machine in enumerate(machines):
        rig.until_done(lambda number=number, machine=machine: cloud.release(machine, action_id=f"r{number}"))  # type: ignore[misc]
    assert sorted(rig.azure.gpu.vms) == ["0", "3", "4"]
    assert rig.azure.gpu.capacity == 3


# killed at any request


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.azure_child"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait(10)


@pytest.mark.parametrize("call", ["create", "release", "reimage"])
def test_kill_9_at_each_request_before_and_after_its_effect(
    rig: Rig, nursery: subprocess.Popen[str], call: str
) -> None:
    settings = rig.settings(look_every_s=0.001, settle_s=2.0)
    raw = {name: getattr(settings, name) for name in settings.__struct_fields__}
    pid = [0]

    def boundary(at: int) -> Callable[[Request], Any]:
        def look(request: Request) -> Any:
            if len(rig.azure.requests) - began == at:
                os.kill(pid[0], signal.SIGKILL)
                raise Dropped
            return None

        return look

    def run(action: str, subject: str) -> str:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.write(json.dumps([rig.imds.url, raw, call, subject, action], default=str) + "\n")
        nursery.stdin.flush()
        pid[0] = int(nursery.stdout.readline())
        nursery.stdin.write("go\n")
        nursery.stdin.flush()
        return nursery.stdout.readline().strip()

    gpu = rig.azure.gpu
    rig.azure.page_size = 1000  # the set grows: the same requests each time
    killed_count = 0
    for side in ("before", "after"):
        at = 0
        while True:
            at += 1
            subject = "gpu000001"
            if call == "reimage":
                subject = gpu.machine("2")
            if call == "release":
                gpu.capacity += 1
                subject = gpu.machine(gpu.make("Succeeded", "running"))
            live, made, capacity, fresh = len(gpu.vms), len(gpu.created), gpu.capacity, len(gpu.reimaged)
            began = len(rig.azure.requests)
            setattr(rig.azure, side, boundary(at))
            first = run(f"{side}{at}", subject)
            rig.azure.before = rig.azure.after = lambda _request: None
            second = first or run(f"{side}{at}", subject)
            assert second, f"{side} request {at}: it never ended"
            if call == "create":
                assert len(gpu.created) == made + 1, f"{side} request {at}"
                assert (gpu.capacity, second) == (capacity + 1, gpu.machine(gpu.created[-1])), f"{side} request {at}"
            elif call == "reimage":
                assert gpu.reimaged[fresh:] == ["2"], f"{side} request {at}"
            else:
                assert (len(gpu.vms), gpu.capacity) == (live - 1, capacity - 1), f"{side} request {at}"
            if first:  # it was over before the boundary came
                break
            killed_count += 1
    assert killed_count >= 10


# what Azure answers instead


@pytest.mark.parametrize(
    ("fault", "retry", "what", "step"),
    [
        (error(401, "ExpiredAuthenticationToken", "expired"), True, "does not accept our credential", "renew"),
        (
            error(
                403, "AuthorizationFailed", "The client 'x' does not have authorization to perform action 'A/b/write'."
            ),
            True,
            "the action A/b/write is missing",
            "deploy/azure/gpuwatch-role.json",
        ),
        (
            error(
                403,
                "LinkedAuthorizationFailed",
                "The client has permission to perform action 'A/b/write' on scope 's'; however, it does not have "
                "permission to perform action(s) 'Net/subnets/join/action' on the linked scope(s) 't'",
            ),
            True,
            "the action Net/subnets/join/action is missing",
            "role",
        ),
        (error(403, "RequestDisallowedByPolicy", "a policy says no"), False, "forbids", "policies"),
        (error(404, "ResourceNotFound", "no such set"), False, "knows no such thing", "resource_group"),
        (error(409, "OperationNotAllowed", "exceeding approved quota"), False, "no room", "quota"),
        (error(409, "Conflict", "another operation is in progress"), True, "refuses", "nothing"),
        (error(409, "ScopeLocked", "locked"), False, "refuses", "mend"),
        (error(400, "InvalidParameter", "capacity"), False, "refuses", "mend"),
        (error(503, "ServiceUnavailable", "busy"), True, "a fault of its own", "nothing"),
        (error(504, "GatewayTimeout", "slow"), True, "a fault of its own", "nothing"),
    ],
    ids=lambda value: value[1]["error"]["code"] if isinstance(value, tuple) else None,
)
def test_each_refusal_says_what_why_and_what_next(rig: Rig, fault: Any, retry: bool, what: str, step: str) -> None:
    cloud = rig.cloud()
    rig.azure.before = once(lambda: fault, "PATCH")
    with pytest.raises(CloudError) as caught:
        cloud.create(slot="s", group="gpu", action_id="a")
    assert what in caught.value.what
    assert step in caught.value.next_step
    assert caught.value.retry is retry
    assert len(rig.changes()) == 1  # the client did not try again by itself
    assert rig.azure.gpu.created == []


@pytest.mark.parametrize(("told_s", "kept_s"), [(20, 20), (86_400, MAX_WAIT_S)])
def test_throttling_is_obeyed_by_everybody_and_within_bounds(rig: Rig, told_s: int, kept_s: float) -> None:
    cloud = rig.cloud()
    cloud.snapshot()
    rig.azure.before = once(lambda: error(429, "TooManyRequests", "slow down", Retry_After=str(told_s)))
    with pytest.raises(CloudError, match="asks us to wait"):
        cloud.snapshot()
    count = len(rig.azure.requests)
    for call in (cloud.snapshot, lambda: cloud.create(slot="s", group="gpu", action_id="a")):
        with pytest.raises(CloudError, match="s more before") as caught:
            call()
        assert caught.value.retry
    assert len(rig.azure.requests) == count
    rig.clock.pass_s(kept_s - 1)
    with pytest.raises(CloudError):
        cloud.snapshot()
    rig.clock.pass_s(2)
    assert len(cloud.snapshot().machines) == 4


def test_an_identity_that_is_not_there_is_named(rig: Rig) -> None:
    rig.imds.token_status = 400
    with pytest.raises(CloudError, match="does not accept our credential") as caught:
        rig.cloud(client_id="11111111-0000-0000-0000-000000000000").snapshot()
    assert "credential managed_identity" in caught.value.why
    assert "docs/azure.md" in caught.value.next_step
    assert rig.azure.requests == []


def test_the_default_credential_finds_the_machines_identity(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"):
        monkeypatch.delenv(name, raising=False)
    assert len(rig.cloud(credential="default").snapshot().machines) == 4
    assert ("GET", "/metadata/identity/oauth2/token") in rig.imds.requests


def test_an_azure_that_is_not_there(rig: Rig) -> None:
    rig.azure.stop()
    with pytest.raises(CloudError, match="could not be reached") as caught:
        rig.cloud().snapshot()
    assert caught.value.retry


def test_a_stranger_who_says_that_he_is_azure_gets_no_token(rig: Rig, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    stranger = ArmServer(other)
    try:
        with pytest.raises(CloudError, match="could not be reached"):
            rig.cloud(endpoint=stranger.url).snapshot()
        assert stranger.requests == []
    finally:
        stranger.stop()


# whose set is it


def _second_hand(rig: Rig, setting: str) -> None:
    properties: Any = rig.azure.gpu.model.properties
    words: dict[str, Any] = {
        "overprovision": {"overprovision": True},
        "automatic_repairs": {"automaticRepairsPolicy": {"enabled": True}},
        "upgrade_policy": {"upgradePolicy": {"mode": "Rolling"}},
        "automatic_os_upgrade": {
            "upgradePolicy": {"mode": "Manual", "automaticOSUpgradePolicy": {"enableAutomaticOSUpgrade": True}}
        },
        "spot_restore": {"spotRestorePolicy": {"enabled": True}},
        "resilient_create": {"resiliencyPolicy": {"resilientVMCreationPolicy": {"enabled": True}}},
        "zone_rebalancing": {"resiliencyPolicy": {"automaticZoneRebalancingPolicy": {"enabled": True}}},
    }
    if setting == "autoscale":
        target = str(rig.azure.gpu.model.id).upper()
        rig.azure.autoscale = [{"name": "by-cpu", "properties": {"enabled": True, "targetResourceUri": target}}]
    else:
        properties.update(words[setting])


@pytest.mark.parametrize("setting", REFUSABLE)
def test_a_set_with_a_second_hand_is_refused_until_it_is_accepted(rig: Rig, setting: str) -> None:
    _second_hand(rig, setting)
    cloud = rig.cloud()
    (group,) = cloud.snapshot().groups
    assert len(group.refuses) == 1
    assert group.refuses[0].startswith(setting)
    for call in (
        lambda: cloud.create(slot="s", group="gpu", action_id="a"),
        lambda: cloud.release(rig.azure.gpu.machine("1"), action_id="r"),
    ):
        with pytest.raises(CloudError, match=f"refuses: {setting}") as caught:
            call()  # type: ignore[no-untyped-call]
        assert "accept" in caught.value.next_step
    assert rig.changes() == []
    accepting = rig.cloud(accept=(setting,))
    assert accepting.snapshot().groups[0].refuses == ()
    assert rig.create(accepting).state == "done"


def test_what_is_not_stated_is_not_taken_for_off(rig: Rig) -> None:
    properties: Any = rig.azure.gpu.model.properties
    del properties["overprovision"], properties["upgradePolicy"]
    assert rig.cloud().snapshot().groups[0].refuses == ("overprovision", "upgrade_policy not stated")


def test_an_autoscaler_that_cannot_be_looked_for_is_a_doubt_and_one_that_is_off_is_none(rig: Rig) -> None:
    rig.azure.before = lambda r: error(403, "AuthorizationFailed", "no") if "autoscale" in r.path else None
    (refused,) = rig.cloud().snapshot().groups[0].refuses
    assert refused.startswith("autoscale (not known")
    rig.azure.before = lambda _request: None
    _second_hand(rig, "autoscale")
    rig.azure.autoscale[0]["properties"]["enabled"] = False
    assert rig.cloud().snapshot().groups[0].refuses == ()


def test_a_flexible_set_cannot_be_accepted(rig: Rig) -> None:
    properties: Any = rig.azure.gpu.model.properties
    properties["orchestrationMode"] = "Flexible"
    (refused,) = rig.cloud(accept=REFUSABLE).snapshot().groups[0].refuses
    assert "Flexible" in refused


@pytest.mark.parametrize(
    ("tags", "owner"),
    [
        ({"aks-managed-poolName": "gpu"}, "AKS"),
        ({"CycleCloudCluster": "/sites/1/clusters/a"}, "CycleCloud"),
        ({"CycleOwner": "a(b@c)"}, "CycleCloud"),
        ({"BatchAccountName": "b"}, "Azure Batch"),
        ({"our-scaler-version": "3"}, "our scaler"),
        ({"team": "x"}, "gpuwatch"),
    ],
)
def test_the_owner_is_told_by_the_tags(rig: Rig, tags: dict[str, str], owner: str) -> None:
    rig.azure.gpu.change({"tags": tags})
    cloud = rig.cloud(owner_tags={"our-scaler-": "our scaler"})
    assert cloud.snapshot().groups[0].owner == owner
    if owner != "gpuwatch":
        with pytest.raises(CloudError, match=f"belongs to {owner}"):
            cloud.create(slot="s", group="gpu", action_id="a")


@pytest.mark.parametrize(
    ("settings", "slot"),
    [
        ({}, "gpu000001"),
        ({"slot_pattern": r"^gpu0*(\d+)$"}, "1"),
        ({"slot_pattern": r"u\d+"}, "u000001"),
        ({"slot_pattern": "cpu"}, None),
        ({"slot_from": "instance_name"}, "gpu_1"),
        ({"slot_from": "tag"}, "rack3-n1"),
        ({"slot_from": "tag", "slot_tag": "place"}, None),
    ],
)
def test_the_slot_is_found_by_name_or_tag(rig: Rig, settings: dict[str, Any], slot: str | None) -> None:
    rig.azure.gpu.vms["1"].tags = {"slot": "rack3-n1"}
    machine = rig.azure.gpu.machine("1")
    (told,) = [m for m in rig.cloud(**settings).snapshot().machines if m.machine == machine]
    assert told.slot == slot


def test_the_settings_on_the_page_are_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "azure.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    file = tmp_path / "aggregator.toml"
    file.write_text(f'[server]\nsecret_file = "secret"\n{block}')
    hand = aggregator_settings.load(file).cloud
    assert hand is not None
    usual = Settings(subscription_id="0", resource_group="training", groups=("gpu",))
    for name in set(Settings.__struct_fields__) - {"subscription_id"}:
        assert getattr(hand.settings, name) == getattr(usual, name), name
        assert name in block, name
    assert not [name for name in REFUSABLE if f"`{name}`" not in page]


@pytest.mark.parametrize("wrong", [{"groups": ()}, {"slot_pattern": "("}])
def test_settings_that_cannot_work_are_refused(rig: Rig, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        rig.settings(**wrong)


# rights, and that the local Azure is like the real one


def test_the_role_allows_exactly_what_is_called(rig: Rig) -> None:
    cloud = rig.cloud()
    cloud.snapshot()
    rig.create(cloud)
    rig.reimage("4", cloud)
    rig.release("4", cloud)
    rig.azure.gpu.grows = False
    with pytest.raises(CloudError):
        rig.create(cloud, "a2/create")
    role = json.loads(ROLE.read_text())
    assert sorted(role["Actions"]) == sorted(rig.azure.actions())
    assert not any("*" in action for action in role["Actions"])


def test_the_clients_own_pollers_understand_the_local_azure(rig: Rig) -> None:
    settings = rig.settings()
    client = open_client(
        subscription_id=SUBSCRIPTION,
        endpoint=rig.azure.url,
        credential="managed_identity",
        client_id="",
        ca_file=settings.ca_file,
        timeout_s=5.0,
    )
    poller = client.virtual_machine_scale_set_vms.begin_delete(RESOURCE_GROUP, "gpu", "1", polling_interval=0.01)
    token = poller.continuation_token()
    poller.result()
    assert poller.status() == "Succeeded"
    again = client.virtual_machine_scale_set_vms.begin_delete(
        RESOURCE_GROUP, "gpu", "1", continuation_token=token, polling_interval=0.01
    )
    again.result()
    assert again.status() == "Succeeded"


# marks

_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(
    slot=_TEXT,
    after=st.integers(-1, 10**9),
    action=st.text(alphabet="abc/ =:-0123456789", max_size=80).map(str.strip),
    instance=st.sampled_from(["", "17"]),
    failed=st.sampled_from(["", "AllocationFailed"]),
)
def test_a_mark_comes_back_as_it_was_written(slot: str, after: int, action: str, instance: str, failed: str) -> None:
    machine = "0" * 36 if instance else ""
    mark = marks.Mark(
        slot=slot, after=after, at_unix_s=1, action_id=action, instance=instance, machine=machine, failed=failed
    )
    text = marks.write(mark)
    assert len(text) <= marks.MAX_VALUE
    assert marks.read(text) == mark


def test_old_settled_marks_shrink_to_places_and_open_ones_and_the_owners_tags_never() -> None:
    tags = {"team": "x", **{marks.name_of(f"o{n}"): f"slot=s after=1 at={n}" for n in range(3)}}
    for number in range(60):
        mark = marks.Mark(slot=f"gpu{number:06}", after=1, at_unix_s=100 + number, instance=str(number), machine="m")
        tags = marks.with_mark(tags, marks.name_of(f"a{number}"), mark, [str(n) for n in range(60) if n != 7])
    kept = marks.all_of(tags)
    assert len(kept) == marks.KEPT
    assert sum(1 for mark in kept.values() if mark.open) == 3
    assert max(mark.at_unix_s for mark in kept.values()) == 159
    assert tags["team"] == "x"
    assert marks.places(tags) == {str(n): f"gpu{n:06}" for n in range(60) if n != 7}
    assert max(len(value) for value in tags.values()) <= marks.MAX_VALUE
    assert len(tags) < 32
