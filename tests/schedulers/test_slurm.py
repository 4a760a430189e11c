"""What Slurm's words about a node mean, release by release, and what is no answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.errors import SchedulerError
from gpuwatch.schedulers.slurm import _node_fact
from gpuwatch.sdk import slurm_history, slurm_jobs, slurm_nodes
from gpuwatch.sdk.slurm_nodes import Node
from tests.slurm_answers import JSON_24, NODE_22, node_text


@pytest.mark.parametrize(
    ("state", "jobs", "word", "owner"),
    [
        ("IDLE", [], "idle", ""),
        ("MIXED", ["7.0"], "allocated", ""),
        ("ALLOCATED", ["7.0"], "allocated", ""),
        ("ALLOCATED*", ["7.0"], "allocated", ""),
        ("ALLOCATED+COMPLETING", ["7.0"], "allocated", ""),
        ("IDLE+COMPLETING", ["7.0"], "allocated", ""),
        ("IDLE*", [], "unknown", ""),
        ("IDLE+NOT_RESPONDING", [], "unknown", ""),
        ("IDLE+PLANNED", [], "idle", ""),
        ("IDLE-", [], "idle", ""),
        ("PLANNED", [], "idle", ""),
        ("RESERVED", [], "idle", ""),
        ("IDLE+RESERVED", [], "idle", ""),
        ("MAINT", [], "idle", ""),
        ("IDLE$", [], "idle", ""),
        ("IDLE+MAINTENANCE", [], "idle", ""),
        ("IDLE+CLOUD", [], "idle", ""),
        ("MIXED+DRAIN", ["7.0"], "draining", "foreign"),
        ("IDLE+DRAIN", [], "drained", "foreign"),
        ("IDLE+COMPLETING+DRAIN", [], "draining", "foreign"),
        ("ALLOCATED+DRAIN", [], "draining", "foreign"),
        ("DRAINED", [], "drained", "foreign"),
        ("DRAINING", [], "draining", "foreign"),
        ("IDLE+DRAIN+NOT_RESPONDING", [], "drained", "foreign"),
        ("IDLE+FAIL", [], "drained", "foreign"),
        ("DOWN", [], "down", ""),
        ("DOWN*", [], "down", ""),
        ("DOWN+NOT_RESPONDING", [], "down", ""),
        ("DOWN*+DRAIN", [], "down", "foreign"),
        ("IDLE~", [], "unknown", ""),
        ("IDLE+CLOUD+POWERED_DOWN", [], "unknown", ""),
        ("DOWN+POWERED_DOWN", [], "unknown", ""),
        ("ALLOCATED#", ["7.0"], "unknown", ""),
        ("IDLE+POWERING_DOWN", [], "unknown", ""),
        ("IDLE%", [], "unknown", ""),
        ("INVAL", [], "unknown", ""),
        ("IDLE+INVALID_REG", [], "unknown", ""),
        ("DOWN+REBOOT_ISSUED", [], "unknown", ""),
        ("DOWN^", [], "unknown", ""),
        ("IDLE@", [], "idle", ""),
        ("IDLE^", [], "unknown", ""),
        ("IDLE+REBOOT_ISSUED", [], "unknown", ""),
        ("REBOOT^", [], "unknown", ""),
        ("MIXED+DRAIN+NOT_RESPONDING", ["7.0"], "draining", "foreign"),
        ("MIXED+PLANNED", ["7.0"], "allocated", ""),
        ("IDLE+DRAIN+MAINTENANCE+RESERVED", [], "drained", "foreign"),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", [], "unknown", "foreign"),
        ("IDLE+DYNAMIC_NORM+BLOCKED", [], "idle", ""),
        ("UNKNOWN", [], "unknown", ""),
        ("ERROR", [], "unknown", ""),
        ("A_WORD_OF_A_LATER_RELEASE", [], "unknown", ""),
    ],
)
def test_what_each_state_means(state: str, jobs: list[str], word: str, owner: str) -> None:
    fact = _node_fact(node_text(state), jobs)
    assert (fact.state, fact.drain_owner) == (word, owner)
    old = {"name": "gpu1", "state": state.split("+")[0].lower(), "state_flags": state.split("+")[1:], "reason": ""}
    new = {"name": "gpu1", "state": state.split("+"), "reason": "", "reason_changed_at": {"set": False, "number": 0}}
    for item in (old, new):
        (found,) = slurm_nodes.from_json(json.dumps({"nodes": [item], "errors": []}))
        assert _node_fact(found, jobs) == fact


def test_a_node_that_says_it_holds_a_job_is_not_empty_though_none_is_listed() -> None:
    assert _node_fact(node_text("MIXED+DRAIN"), []).jobs == ("unlisted",)
    assert _node_fact(node_text("IDLE+COMPLETING+DRAIN"), []).jobs == ("unlisted",)
    assert _node_fact(node_text("IDLE+DRAIN"), []).jobs == ()


def test_a_node_of_the_future_is_none() -> None:
    both = NODE_22.format(state="FUTURE", reason="") + "\n" + NODE_22.format(state="IDLE", reason="") + "\n"
    assert [node.state for node in slurm_nodes.from_text(both)] == [("IDLE",)]


@pytest.mark.parametrize(
    ("written", "reason", "by"),
    [
        ("Reason=gpuwatch: xid 79 [a/drain] [root@1796055867]", "gpuwatch: xid 79 [a/drain]", "root"),
        ('Reason=xid = "bad" State=IDLE [bob@2026-11-30T16:20:00]', 'xid = "bad" State=IDLE', "bob"),
        ("Reason=Not responding [slurm@1796055867]", "Not responding", "slurm"),
        ("Reason=mail ops@example.com [x] [bob@1796055867] Comment=rack 7", "mail ops@example.com [x]", "bob"),
        ("Reason=no stamp at all", "no stamp at all", ""),
        ("Reason=no stamp at all Comment=rack 7", "no stamp at all", ""),
        ("Reason=xid 79 [bob@1] seen [bob@1796055867]", "xid 79 [bob@1] seen", "bob"),
        ("Reason=fan [bob@1796055867] Comment=a\nb Extra=x Reason=y", "fan", "bob"),
        ("Reason=fan [bob@1796055867] Extra=x=1 InstanceId=i-1 InstanceType=nd96", "fan", "bob"),
        ("Reason=gpuwatch: x [a/drain] [root@1796055867] InstanceId=i-1 ", "gpuwatch: x [a/drain]", "root"),
        ("Reason=fan [bob@1796055867] ReservationName=maint", "fan", "bob"),
        (
            'Reason=fan [bob@1796055867]        its "tray"        é\u2028\x85z Comment=x',
            'fan\nits "tray"\né\u2028\x85z',
            "bob",
        ),
        ("Reason=unknown [bob@1796055867]", "unknown", "bob"),
        ("Comment=rack 7 Reason=gpuwatch: x [a/drain] [root@1796055867]", "", ""),
        ("Comment=rack 7", "", ""),
        ("", "", ""),
    ],
)
def test_a_reason_with_anything_in_it(written: str, reason: str, by: str) -> None:
    found = node_text("IDLE+DRAIN", written)
    assert (found.state, found.reason, found.reason_by) == (("IDLE", "DRAIN"), reason, by)


@pytest.mark.parametrize(
    ("reason", "owner"),
    [
        ("Not responding", ""),
        ("Node unexpectedly rebooted", ""),
        ("Low RealMemory (reported:1 < 100.00% of configured:2)", ""),
        ("gres/gpu count reported lower than configured (7 < 8)", ""),
        ("", ""),
        ("PSU is out, bob", "foreign"),
        ("gpuwatch: xid 79 [a/drain]", "gpuwatch"),
        ("gpuwatch: xid 79 [a/drain], gres/gpu count reported lower than configured (7 < 8)", "gpuwatch"),
        ("gpuwatch: xid 79 [a/drain] : Not responding", "gpuwatch"),
        ("gpuwatch: xid 79 [a/drain] bob looks at it", "foreign"),
        ("gpuwatch: xid 79 [a/drain], keep out [bob]", "foreign"),
        ("gpuwatch: I drain it for gpuwatch, bob", "foreign"),
        ("low priority repair, bob", "foreign"),
        ("unknown", "foreign"),
    ],
)
def test_whose_word_it_is_that_a_node_is_down(reason: str, owner: str) -> None:
    fact = _node_fact(Node(name="gpu1", state=("DOWN", "NOT_RESPONDING"), reason=reason), [])
    assert (fact.state, fact.drain_owner) == ("down", owner)


def test_a_new_machine_is_not_down_because_our_drain_keeps_slurm_from_letting_it_return() -> None:
    ours = Node(name="gpu1", state=("DOWN", "DRAIN"), reason="gpuwatch: dead [a/drain]")
    assert _node_fact(ours, []).state == "drained"
    assert _node_fact(Node(name="gpu1", state=("DOWN", "DRAIN"), reason="bob"), []).state == "down"


def test_a_reboot_that_slurm_knows_of_is_told() -> None:
    assert _node_fact(Node(name="gpu1", state=("DOWN", "REBOOT_ISSUED"), reason="new kernel"), []).reason == (
        "reboot ordered: new kernel"
    )


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\n",
        "slurm_load_node error: Unable to contact slurm controller",
        "NodeName=gpu1 Arch=x86",
        NODE_22.format(state="IDLE", reason="") + "\nNodeName=gpu2 Arch=x86_64 Cor",
        NODE_22.format(state="IDLE", reason="") + "\nNodeName=gpu2 Arch=x86_64 Cor\n",
        NODE_22.format(state="IDLE", reason="") + "\nNodeN",
        NODE_22.format(state="IDLE", reason="") + "\nSegmentation fault\n",
        NODE_22.format(state="IDLE", reason="") + "\n" + NODE_22.format(state="IDLE", reason=""),
    ],
)
def test_no_answer_about_nodes_is_never_an_empty_one(answer: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        slurm_nodes.from_text(answer)
    assert caught.value.retry


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"nodes": []}',
        '{"nodes": null, "jobs": null}',
        '{"nodes": [7], "jobs": [7]}',
        '{"nodes": [{"name": "gpu1"}], "jobs": [{"job_id": 7}]}',
        '{"nodes": [{"name": "gpu1", "state": "idle"}], "errors": [{"error": "x"}], "jobs": []}',
        '{"nodes": [{"name": "gpu1", "state": "idle"}',
    ],
)
def test_no_json_answer_is_never_an_empty_one(answer: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        slurm_nodes.from_json(answer)
    assert caught.value.retry
    if answer != '{"nodes": []}':
        with pytest.raises(SchedulerError):
            slurm_jobs.from_json(answer)


def test_no_jobs_is_an_answer_and_silence_is_none() -> None:
    assert slurm_jobs.from_text("No jobs in the system\n") == ()
    assert slurm_jobs.from_json('{"jobs": [], "errors": []}') == ()
    for answer in (
        "",
        "\n",
        "Segmentation fault",
        "JobId=7",
        "JobId=7 JobName=opt UserId=ada(1) JobState=RUNNING NodeList=gpu[",
    ):
        with pytest.raises(SchedulerError):
            slurm_jobs.from_text(answer)


@given(st.text(max_size=200))
def test_any_text_is_a_list_or_a_scheduler_error(answer: str) -> None:
    for read in (slurm_nodes.from_text, slurm_nodes.from_json, slurm_jobs.from_text, slurm_jobs.from_json):
        try:
            read(answer)
        except SchedulerError:
            continue
    slurm_history.from_sacct(answer)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(sorted(JSON_24)),
)
def test_any_json_is_a_list_or_a_scheduler_error(value: Any, key: str) -> None:
    item = JSON_24 | {key: value, "name": "gpu1", "state": value}
    answer = json.dumps({"nodes": [item], "jobs": [JSON_24 | {key: value}], "errors": []})
    for read in (slurm_nodes.from_json, slurm_jobs.from_json):
        try:
            read(answer)
        except SchedulerError:
            continue
