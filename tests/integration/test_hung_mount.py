"""A file server that stands still: the agent says which mount, leaves at most one program behind, and stops at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch.model.facts.host import NetworkMount
from gpuwatch.model.wire import Report
from tests.agent_node import Aggregator, Node, envelope_of, facts_of
from tests.components import go_without
from tests.hung_mount import HungMount, alone

pytestmark = pytest.mark.needs("root")


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    made = Aggregator()
    yield made
    made.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HungMount]:
    place = tmp_path / "data"
    place.mkdir()
    with alone():
        try:
            mount = HungMount(place)
        except OSError as error:
            go_without("fuse", f"nothing can be mounted: {error}")
        yield mount
        mount.end()


@pytest.fixture
def node(tmp_path: Path, aggregator: Aggregator, server: HungMount) -> Iterator[Node]:
    made = Node(tmp_path / "node", aggregator.url)
    made.host = {"interval_s": 0.5, "mounts_every": 1, "mount_deadline_s": 0.5}
    yield made
    made.end()


def answer(report: Report, place: Path) -> NetworkMount | None:
    found = [mount for mount in facts_of(report, "host").network_mounts if mount.mount == str(place)]
    return found[0] if found else None


def says(place: Path, word: str) -> Callable[[Report], bool]:
    return lambda report: (mount := answer(report, place)) is not None and mount.answer == word


def abandoned(report: Report) -> int:
    envelope = envelope_of(report, "host")
    assert envelope is not None, "a report that says nothing of the host is no report of none"
    return envelope.abandoned_count


def test_the_mount_is_named_and_little_is_left_behind(node: Node, aggregator: Aggregator, server: HungMount) -> None:
    node.start()
    aggregator.wait(says(server.place, "ok"))
    server.answers = False
    _, report = aggregator.wait(says(server.place, "hung"))
    mount = answer(report, server.place)
    assert mount is not None
    assert mount.source == "server:/export"
    assert "request_wait_answer" in mount.reason
    envelope = envelope_of(report, "host")
    assert envelope is not None
    assert envelope.status == "ok"  # all else of the source is told as before
    first, agent_id = abandoned(report), report.agent_id
    assert 1 <= first <= 2  # the one for all mounts, and its own
    until_s = time.monotonic() + 4
    # What is not new is not said again: a report without the host's envelope says nothing of it.
    _, report = aggregator.wait(lambda new: time.monotonic() > until_s and envelope_of(new, "host") is not None)
    assert abandoned(report) == first  # eight looks later

    assert node.stop() < 2.0  # it waits for no such program
    node.start()
    _, report = aggregator.wait(lambda new: new.agent_id != agent_id and says(server.place, "hung")(new))
    assert abandoned(report) == first  # those of the agent before, and none beside them
    again = answer(report, server.place)
    assert again is not None
    assert again.since_unix_ns == mount.since_unix_ns

    server.die()
    aggregator.wait(lambda new: says(server.place, "failed")(new) and abandoned(new) == 0)
