"""Scheduled events: what the metadata service announces, and that silence is no good news."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpuwatch.errors import ProbeError
from gpuwatch.sdk.azure_imds import parse, scheduled_events
from tests.arm_server import ImdsServer


def _event(**changes: Any) -> dict[str, Any]:
    usual = {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": "Reboot",
        "ResourceType": "VirtualMachine",
        "Resources": ["gpu_3", "gpu_4"],
        "EventStatus": "Scheduled",
        "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
        "Description": "Host server is undergoing maintenance.",
        "EventSource": "Platform",
        "DurationInSeconds": 9,
    }
    return usual | changes


@pytest.fixture
def imds() -> Iterator[ImdsServer]:
    made = ImdsServer()
    yield made
    made.stop()


def test_what_is_announced_is_told_with_its_machines_and_times(imds: ImdsServer) -> None:
    imds.events = {"DocumentIncarnation": 2, "Events": [_event()]}
    (notice,) = scheduled_events(base_url=imds.url, timeout_s=5)
    assert (notice.kind, notice.started, notice.machines) == ("Reboot", False, ("gpu_3", "gpu_4"))
    assert (notice.not_before_unix_ns, notice.duration_s) == (1474309787 * 10**9, 9.0)
    assert notice.ends_work
    assert not notice.by_user


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"EventType": "Freeze"}, "ends_work", False),
        ({"EventType": "Preempt"}, "ends_work", True),
        ({"EventType": "Terminate", "EventSource": "User"}, "by_user", True),
        ({"EventStatus": "Started", "NotBefore": ""}, "not_before_unix_ns", None),
        ({"EventStatus": "Started", "NotBefore": ""}, "started", True),
        ({"DurationInSeconds": -1}, "duration_s", None),
        ({"DurationInSeconds": 0}, "duration_s", 0.0),
        ({"Resources": None}, "machines", ()),
    ],
)
def test_each_field_as_it_may_come(changes: dict[str, Any], field: str, value: object) -> None:
    (notice,) = parse(json.dumps({"DocumentIncarnation": 1, "Events": [_event(**changes)]}))
    assert getattr(notice, field) == value


def test_what_is_over_is_left_out(imds: ImdsServer) -> None:
    imds.events = {"DocumentIncarnation": 3, "Events": [_event(EventStatus="Completed")]}
    assert scheduled_events(base_url=imds.url, timeout_s=5) == ()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"Events": 7}', '{"Events": [7]}', '{"Events": [{"EventStatus": "Started"}]}']
)
def test_garbage_is_an_error_and_never_an_empty_list(text: str) -> None:
    with pytest.raises(ProbeError) as caught:
        parse(text)
    assert caught.value.next_step


def test_a_host_without_the_service_says_so(imds: ImdsServer) -> None:
    imds.stop()
    with pytest.raises(ProbeError, match="gives no scheduled events"):
        scheduled_events(base_url=imds.url, timeout_s=2)
