"""The two files through which hands and agent speak."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from gpuwatch.hands.watch import TELL_EVERY_S, Watch
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.notify import ServiceManager
from tests.hands_node import HandsNode


@pytest.fixture
def node(tmp_path: Path) -> HandsNode:
    return HandsNode(tmp_path)


@pytest.fixture
def watch(node: HandsNode) -> Watch:
    return Watch(node.settings, node.clock, ServiceManager("", ""))


def told(node: HandsNode) -> HandsFacts:
    return msgspec.json.decode(node.settings.status_file.read_bytes(), type=HandsFacts)


def lay(node: HandsNode, text: bytes) -> None:
    """As the agent does."""
    new = node.folder / ".order.new"
    new.write_bytes(text)
    new.replace(node.settings.order_file)


def test_what_is_told(node: HandsNode, watch: Watch) -> None:
    watch.turn(node.hands)
    facts = told(node)
    assert facts.nonce
    assert (facts.units, facts.may_reset_gpu, facts.may_reboot) == (("slurmd.service",), True, True)
    assert facts.keys == (node.signer.public,)
    assert node.settings.status_file.stat().st_mode & 0o777 == 0o644


def test_an_order_is_taken_once_and_its_answer_told_with_the_next_nonce(node: HandsNode, watch: Watch) -> None:
    watch.turn(node.hands)
    nonce = told(node).nonce
    lay(node, node.sign(node.order()))
    for _ in range(3):
        watch.turn(node.hands)
    assert [(answer.action_id, answer.state) for answer in told(node).answers] == [("act-1", "done")]
    assert told(node).nonce not in ("", nonce)
    assert node.did() == ["restart slurmd.service"]


def test_the_same_order_laid_again_is_the_same(node: HandsNode, watch: Watch) -> None:
    text = node.sign(node.order())
    for _ in range(3):
        lay(node, text)
        watch.turn(node.hands)
    assert node.did() == ["restart slurmd.service"]


def test_nothing_new_is_not_told_all_the_time(node: HandsNode, watch: Watch) -> None:
    watch.turn(node.hands)
    first = node.settings.status_file.stat().st_ino
    node.fake.pass_s(TELL_EVERY_S - 1)
    watch.turn(node.hands)
    assert node.settings.status_file.stat().st_ino == first
    node.fake.pass_s(1)
    watch.turn(node.hands)
    assert told(node).told_monotonic_ns == node.fake.monotonic


def test_while_it_is_done_it_is_told_that_it_was_begun(node: HandsNode, watch: Watch) -> None:
    seen: list[str] = []

    def meanwhile() -> None:
        watch.alive(node.hands)
        seen.extend(answer.state for answer in told(node).answers)

    node.hands._meanwhile = meanwhile
    lay(node, node.sign(node.order()))
    watch.turn(node.hands)
    assert set(seen) <= {"begun"}
    assert told(node).answers[-1].state == "done"


def test_links_pipes_folders_and_floods_are_no_orders(node: HandsNode, watch: Watch) -> None:
    path = node.settings.order_file
    secret = node.folder / "secret"
    secret.write_bytes(node.sign(node.order()))
    path.symlink_to(secret)
    watch.turn(node.hands)
    path.unlink()
    os.mkfifo(path)
    watch.turn(node.hands)
    path.unlink()
    path.mkdir()
    watch.turn(node.hands)
    path.rmdir()
    path.write_bytes(secret.read_bytes() + b" " * 10_000)
    watch.turn(node.hands)
    assert node.did() == []
    assert told(node).answers == ()


def test_a_folder_that_takes_nothing_stops_no_order(node: HandsNode, watch: Watch) -> None:
    node.settings.status_file.parent.touch()
    lay(node, node.sign(node.order()))
    watch.turn(node.hands)
    assert node.did() == ["restart slurmd.service"]
