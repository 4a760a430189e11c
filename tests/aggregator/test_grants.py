"""A check on a node asks whether its failing may take the node out: what is granted, what is not, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.errors import GpuwatchError
from gpuwatch.model.token import machine_token
from tests.fakes_centre import SECRET, Centre

QUESTION = {"role": "prolog", "rule": "gpu_lost", "subject": "gpu 3", "because": "GPU 3 is lost"}


def ask(centre: Centre, slot: str, *, token_of: str = "", **changes: Any) -> tuple[bool, str]:
    machine = f"m-{slot}"
    token = machine_token(SECRET, token_of or machine)
    body = json.dumps({"machine": machine, **QUESTION, **changes}).encode()
    said = centre.grants.answer(f"Bearer {token}", body)
    assert said["ok"] is True
    return said["granted"], said["because"]


def test_within_the_budget_it_is_granted_written_down_and_counted(tmp_path: Path) -> None:
    centre = Centre(tmp_path, mode="drain")
    centre.settle()
    assert ask(centre, "gpu01") == (True, "within the budget")
    assert ask(centre, "gpu01") == (True, "gpu01 is out already")
    assert ask(centre, "gpu02")[0]
    granted, because = ask(centre, "gpu03")
    assert not granted
    assert because.startswith("budget: 2 of the pool are out, 2 may be")
    acts = centre.lines("human_act")
    assert [(act.who, act.subject) for act in acts] == [
        ("gpuwatch scan --as prolog", "gpu01"),
        ("gpuwatch scan --as prolog", "gpu02"),
    ]
    assert "GPU 3 is lost" in acts[0].what
    assert (centre.grants.granted_count, centre.grants.refused_count) == (3, 1)


def test_our_own_actions_leave_room_for_what_was_granted(tmp_path: Path) -> None:
    centre = Centre(tmp_path, mode="drain")
    centre.settle()
    for slot in ("gpu01", "gpu02"):
        assert ask(centre, slot)[0]
    centre.agents["m-gpu05"].xid(79)
    scene = centre.seconds(20)
    assert not any(call[1] == "gpu05" for call in centre.harm())
    assert [hold.reason for hold in scene.plan.holds if hold.slot == "gpu05"] == ["budget"]


def test_a_grant_outlives_a_restart_and_ends(tmp_path: Path) -> None:
    centre = Centre(tmp_path, mode="drain")
    centre.settle()
    assert ask(centre, "gpu01")[0]
    centre.boot()
    assert centre.grants.slots() == {"gpu01"}
    centre.clock.pass_s(901)
    assert centre.grants.slots() == frozenset()


def hold_file(centre: Centre) -> None:
    (centre.folder / "HOLD").write_text("maintenance")


def hold_by_hand(centre: Centre) -> None:
    centre.people.hold("gpu01", "ann", "mine")


def no_tick(centre: Centre) -> None:
    centre.clock.pass_s(31)


def late_server(centre: Centre) -> None:
    centre.lag_s = 100.0
    centre.second()


@pytest.mark.parametrize(
    ("mode", "happens", "because"),
    [
        ("observe", None, "the mode of pool p is observe"),
        ("recommend", None, "the mode of pool p is recommend"),
        ("approve", None, "the mode of pool p is approve"),
        ("drain", hold_file, "HOLD exists: maintenance"),
        ("replace", hold_by_hand, "a person holds gpu01"),
        ("drain", no_tick, "has not looked at the fleet"),
        ("drain", late_server, "we may be blind"),
    ],
)
def test_the_safety_envelope_says_no(
    tmp_path: Path, mode: str, happens: Callable[[Centre], None] | None, because: str
) -> None:
    centre = Centre(tmp_path, mode=mode)
    centre.settle()
    if happens is not None:
        happens(centre)
    granted, said = ask(centre, "gpu01")
    assert not granted
    assert because in said
    assert centre.lines("human_act") == [] or mode == "replace"


def test_right_after_a_start_nothing_is_granted(tmp_path: Path) -> None:
    centre = Centre(tmp_path, mode="drain")
    centre.seconds(10)
    granted, said = ask(centre, "gpu01")
    assert (granted, said) == (False, "the aggregator began 10 s ago and does not know yet who is out")


def test_a_machine_speaks_only_for_itself_and_garbage_is_refused(tmp_path: Path) -> None:
    centre = Centre(tmp_path, mode="drain")
    centre.settle()
    with pytest.raises(GpuwatchError, match="cannot speak for m-gpu01"):
        ask(centre, "gpu01", token_of="m-gpu02")
    with pytest.raises(GpuwatchError, match="the token is not that of"):
        ask(centre, "gpu01", token_of="nobody")
    for body in (
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"machine": 1}',
        json.dumps({"machine": "m" * 500, **QUESTION}).encode(),
    ):
        with pytest.raises(GpuwatchError, match="no question for a grant"):
            centre.grants.answer("Bearer x", body)
    token = machine_token(SECRET, "m-unheard")
    said = centre.grants.answer(f"Bearer {token}", json.dumps({"machine": "m-unheard", **QUESTION}).encode())
    assert (said["granted"], said["because"]) == (False, "m-unheard has not reported here yet")
