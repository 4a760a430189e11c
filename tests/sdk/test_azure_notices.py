"""Scheduled events: what the metadata service announces, and that silence is no good news."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.maintenance import Notice
from gpuwatch.sdk.azure_notices import MOST, TEXT_CHARACTERS, parse

AT_NS = 1474309787 * 10**9  # Mon, 19 Sep 2016 18:29:47 GMT


def event(**changes: Any) -> dict[str, Any]:
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


def read(*events: Any, own_name: Callable[[], str] = lambda: "gpu_3", now_ns: int = AT_NS) -> tuple[Notice, ...]:
    return parse(json.dumps({"DocumentIncarnation": 2, "Events": list(events)}), own_name, now_ns)


def test_what_is_announced_is_told_with_its_times() -> None:
    (notice,) = read(event(), now_ns=AT_NS - 600 * 10**9)
    assert (notice.kind, notice.started, notice.mine, notice.ends_work) == ("reboot", False, True, True)
    assert (notice.not_before_unix_ns, notice.in_s, notice.duration_s) == (AT_NS, 600.0, 9.0)
    assert not notice.by_user


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"EventType": "Freeze"}, "ends_work", False),
        ({"EventType": "Preempt"}, "ends_work", True),
        ({"EventType": "Terminate", "EventSource": "User"}, "by_user", True),
        ({"EventType": "SomethingNew"}, "ends_work", False),
        ({"EventStatus": "Started", "NotBefore": ""}, "not_before_unix_ns", None),
        ({"EventStatus": "Started", "NotBefore": ""}, "in_s", 0.0),
        ({"NotBefore": "soon"}, "in_s", None),
        ({"NotBefore": "Mon, 19 Sep 2015 18:29:47 GMT"}, "in_s", 0.0),
        ({"DurationInSeconds": -1}, "duration_s", None),
        ({"DurationInSeconds": 0}, "duration_s", 0.0),
        ({"Resources": ["GPU_3"]}, "mine", True),
        ({"Resources": ["gpu_33"]}, "mine", False),
        ({"Resources": None}, "mine", None),
        ({"Description": "ü\n" * 1000}, "text", ("ü " * 1000)[:TEXT_CHARACTERS]),
    ],
)
def test_each_field_as_it_may_come(changes: dict[str, Any], field: str, value: object) -> None:
    (notice,) = read(event(**changes))
    assert getattr(notice, field) == value


def test_what_is_over_is_left_out_and_a_flood_is_cut() -> None:
    assert read(event(EventStatus="Completed")) == ()
    assert len(read(*[event(EventId=str(n)) for n in range(1000)])) == MOST


def test_a_machine_that_does_not_know_its_name_cannot_say_whose_event_it_is() -> None:
    def refuses() -> str:
        raise ProbeError("no name")

    assert [notice.mine for notice in read(event(), own_name=refuses)] == [None]
    assert [notice.mine for notice in read(event(), own_name=lambda: "")] == [None]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"Events": 7}', '{"Events": [7]}', '{"Events": [{"EventStatus": "Started"}]}', "[" * 100_000],
)
def test_garbage_is_an_error_and_never_an_empty_list(text: str) -> None:
    with pytest.raises(ProbeError) as caught:
        parse(text, lambda: "gpu_3", AT_NS)
    assert caught.value.next_step
