"""What Azure, or somebody in between, answers on a bad day: an error or patience follows, never a machine too many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.errors import CloudError
from gpuwatch.sdk.azure_arm import MAX_WAIT_S, seconds
from tests.arm_server import Request, ScaleSet, error
from tests.azure_rig import Rig, once

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
LATER = "Wed, 21 Oct 2026 07:29:30 GMT"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(tmp_path)
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", made.imds.url)
    yield made
    made.stop()


# patience


@pytest.mark.parametrize(
    ("text", "date", "expected"),
    [
        ("", "", 0.0),
        ("0", "", 0.0),
        ("17", "", 17.0),
        ("1.5", "", 1.5),
        (LATER, DATE, 90.0),
        (DATE, LATER, 0.0),
        (LATER, "", 5.0),
        ("soon", DATE, 5.0),
        ("-5", "", 0.0),
        ("nan", "", 5.0),
        ("inf", "", MAX_WAIT_S),
        ("-inf", "", 0.0),
        ("9" * 400, "", MAX_WAIT_S),
        ("Fri, 31 Dec 9999 23:59:59 GMT", DATE, MAX_WAIT_S),
        ("Wed, 99 Oct 2026 07:28:00 GMT", DATE, 5.0),
    ],
)
def test_each_form_of_retry_after(text: str, date: str, expected: float) -> None:
    assert seconds(text, date) == expected


@pytest.mark.parametrize(("text", "kept_s"), [(LATER, 90.0), ("1000000", MAX_WAIT_S), ("inf", MAX_WAIT_S), ("x", 5.0)])
def test_throttling_with_each_form_is_obeyed(rig: Rig, text: str, kept_s: float) -> None:
    cloud = rig.cloud()
    rig.azure.before = once(lambda: error(429, "TooManyRequests", "slow", Retry_After=text, Date=DATE))
    with pytest.raises(CloudError, match="asks us to wait"):
        cloud.snapshot()
    rig.clock.pass_s(kept_s - 1.0)
    with pytest.raises(CloudError, match="asked us to wait"):
        cloud.snapshot()
    rig.clock.pass_s(1.5)
    assert len(cloud.snapshot().machines) == 4


@pytest.mark.parametrize("text", [LATER, "soon", "1e9", "-1", "nan"])
def test_an_odd_patience_in_the_answer_to_a_change_costs_no_second_change(rig: Rig, text: str) -> None:
    rig.azure.retry_after = text
    rig.create()
    rig.release("2")
    rig.reimage("3")
    assert [request.method for request in rig.changes()] == ["PATCH", "PATCH", "DELETE", "PATCH", "POST", "PATCH"]
    assert rig.azure.gpu.created == ["4"]
    assert rig.azure.gpu.reimaged == ["3"]


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE", "POST"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("status", [500, 502, 503, 429, 408, 401])
def test_a_fault_of_the_server_around_each_kind_of_request(rig: Rig, method: str, when: str, status: int) -> None:
    setattr(rig.azure, when, once(lambda: error(status, "Fault", "a fault", Retry_After="3"), method))
    rig.create()
    rig.release("2")
    rig.reimage("3")
    rig.azure.before = rig.azure.after = lambda _request: None
    assert rig.azure.gpu.created == ["4"]
    assert rig.azure.gpu.reimaged == ["3"]
    assert sorted(rig.azure.gpu.vms) == ["0", "1", "3", "4"]
    assert rig.azure.gpu.capacity == 4


# lists


def test_a_list_that_leads_to_itself_ends(rig: Rig) -> None:
    def again(request: Request) -> Any:
        if request.sub.endswith("/virtualMachines"):
            page = {"value": [vm.as_dict() for vm in rig.azure.gpu.vms.values()]}
            return 200, page | {"nextLink": f"{rig.azure.url}{request.path}?skip=1"}, {}
        return None

    rig.azure.before = again
    with pytest.raises(CloudError, match="made no sense") as caught:
        rig.cloud().snapshot()
    assert "the same page again" in caught.value.why


def test_a_list_of_autoscalers_that_leads_to_itself_ends(rig: Rig) -> None:
    def again(request: Request) -> Any:
        if request.path.endswith("/autoscalesettings"):
            return 200, {"value": [], "nextLink": f"{rig.azure.url}{request.path}?x=1"}, {}
        return None

    rig.azure.before = again
    assert "autoscale (not known" in rig.cloud().snapshot().groups[0].refuses[0]


def test_a_machine_on_two_pages_is_one(rig: Rig) -> None:
    def twice(request: Request) -> Any:
        if request.sub.endswith("/virtualMachines"):
            return 200, {"value": [vm.as_dict() for vm in [*rig.azure.gpu.vms.values()] * 2]}, {}
        return None

    rig.azure.before = twice
    assert len(rig.cloud().snapshot().machines) == 4
    rig.azure.before = lambda _request: None
    rig.create()
    assert rig.azure.gpu.capacity == 5


# counts


@pytest.mark.parametrize("answer", [{}, {"name": "gpu"}, {"name": "other", "properties": {}}])
def test_a_set_that_is_no_set_is_never_changed(rig: Rig, answer: dict[str, Any]) -> None:
    rig.azure.before = lambda request: (200, answer, {}) if request.sub.endswith("Sets/gpu") else None
    cloud = rig.cloud()
    for _ in range(5):
        with pytest.raises(CloudError):
            cloud.create(slot="gpu000001", group="gpu", action_id="a")
        rig.clock.pass_s(10)
    assert rig.changes() == []


def test_a_set_that_does_not_say_how_many_it_wants_is_not_asked_for_one(rig: Rig) -> None:
    rig.azure.gpu.model.sku = None
    with pytest.raises(CloudError, match="does not say how many") as caught:
        rig.cloud().create(slot="gpu000001", group="gpu", action_id="a")
    assert caught.value.retry
    assert rig.changes() == []


@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_a_set_that_is_being_scaled_in_is_never_asked_for_fewer_than_it_has(rig: Rig, capacity: int) -> None:
    rig.azure.gpu.capacity = capacity
    receipt = rig.cloud().create(slot="gpu000001", group="gpu", action_id="a")
    assert receipt.state == "pending"
    assert "still lists 4" in receipt.because
    assert rig.changes() == []


# what is not there any more


def test_a_machine_that_vanishes_between_the_list_and_its_deletion_is_gone(rig: Rig) -> None:
    def vanish(request: Request) -> Any:
        if request.method == "DELETE":
            del rig.azure.gpu.vms["2"]
            rig.azure.gpu.capacity = 3
            return error(404, "NotFound", "The entity was not found in this Azure location.")
        return None

    rig.azure.before = vanish
    assert rig.release("2").state == "done"
    assert len(rig.changes()) == 1


def test_a_set_that_is_gone_hides_no_machine_of_another(rig: Rig) -> None:
    rig.azure.sets["cpu"] = ScaleSet("cpu", 2)
    cloud = rig.cloud(groups=("gone", "gpu", "cpu"))
    machine = rig.azure.sets["cpu"].machine("1")
    assert rig.until_done(lambda: cloud.reimage(machine, action_id="i")).machine == machine
    assert rig.until_done(lambda: cloud.release(machine, action_id="r")).state == "done"
    assert (rig.azure.sets["cpu"].reimaged, list(rig.azure.sets["cpu"].vms)) == (["1"], ["0"])
    with pytest.raises(CloudError, match="knows no such thing"):
        cloud.snapshot()  # what cannot be read is never an empty set
    with pytest.raises(CloudError, match="knows no such thing"):
        cloud.release("m-of-the-set-that-is-gone", action_id="r2")


def test_a_protected_machine_is_not_called_a_matter_of_quota(rig: Rig) -> None:
    why = "The instance is protected from scale set actions"
    rig.azure.before = lambda request: error(409, "OperationNotAllowed", why) if request.method == "DELETE" else None
    with pytest.raises(CloudError, match="refuses deleting") as caught:
        rig.cloud().release(rig.azure.gpu.machine("2"), action_id="r")
    assert "quota" not in caught.value.next_step


# names


def test_azure_writes_the_sets_name_in_another_case(rig: Rig) -> None:
    rig.azure.gpu.model.update({"name": "gpu"})
    rig.azure.before = lambda request: _other_case(rig, request)
    cloud = rig.cloud(groups=("GPU",))
    snapshot = cloud.snapshot()
    assert {machine.group for machine in snapshot.machines} == {group.name for group in snapshot.groups} == {"GPU"}
    rig.until_done(lambda: cloud.create(slot="gpu000001", group="gpu", action_id="c"))
    rig.azure.gpu.keeps_capacity = True
    machine = rig.azure.gpu.machine("2")
    with pytest.raises(CloudError, match="capacity is 5"):  # the count is checked in whatever case
        rig.until_done(lambda: cloud.release(machine, action_id="r"))


def _other_case(rig: Rig, request: Request) -> Any:
    """ARM takes a name in any case, and answers with its own."""
    if "/GPU" in request.path:
        query = "skip=0"
        with rig.azure.lock:
            again = Request(request.number, request.method, request.path.replace("/GPU", "/gpu"), request.body, {})
            return rig.azure._answer(again, query)
    return None


@pytest.mark.parametrize("slot", ["Knoten-Süd 1", "机架/七", "a=b c%d", "gpu\n1"])
def test_a_slot_may_be_called_anything(rig: Rig, slot: str) -> None:
    machine = rig.create(slot=slot).machine
    by_machine = {m.machine: m.slot for m in rig.cloud().snapshot().machines}
    assert by_machine[machine] == slot
    assert rig.create(slot=slot).machine == machine


# clocks


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_a_clock_that_steps_in_the_middle_changes_nothing(rig: Rig, step_s: float) -> None:
    rig.azure.gpu.lag = 3
    cloud = rig.cloud()
    assert cloud.create(slot="gpu000001", group="gpu", action_id="c").state == "pending"
    rig.clock.step_s(step_s)
    rig.until_done(lambda: cloud.create(slot="gpu000001", group="gpu", action_id="c"))
    machine = rig.azure.gpu.machine("2")
    assert cloud.release(machine, action_id="r").state == "pending"
    rig.clock.step_s(-2 * step_s)
    rig.until_done(lambda: cloud.release(machine, action_id="r"))
    assert rig.azure.gpu.created == ["4"]
    assert len(rig.azure.gpu.vms) == 4
