"""What the C library holds for a real agent's threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent_node import Aggregator, Node, status_is

ARENA_BYTES = 64 << 20  # glibc on 64 bits: reserved at once, at a multiple of itself
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    made = Aggregator()
    yield made
    made.close()


@pytest.fixture
def node(tmp_path: Path, aggregator: Aggregator) -> Iterator[Node]:
    made = Node(tmp_path / "node", aggregator.url)
    yield made
    made.end()


def arenas(pid: int) -> list[str]:
    """Mappings that are arenas of threads: the used part, and behind it what is only reserved."""
    found, before = [], ("", 0, 0)
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        begin, end = (int(side, 16) for side in span.split("-"))
        if rights == "---p" and before == ("rw-p", end - ARENA_BYTES, begin):
            found.append(line)
        before = (rights, begin, end)
    return found


def test_all_threads_of_an_agent_share_one_arena(node: Node, aggregator: Aggregator) -> None:
    process = node.start()
    aggregator.wait(status_is("nvml", "ok"))
    aggregator.wait(status_is("host", "ok"))
    assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) > 2
    assert arenas(process.pid) == []
