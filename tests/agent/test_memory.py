"""What an agent gives back now and then."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from gpuwatch.agent.memory import TIDY_EVERY, tidy_at

LENGTHS = range(1, 10)
REPORTS = 20 * TIDY_EVERY
MOST_BLOCKS = 2 * TIDY_EVERY * len(LENGTHS)  # half as many where it was written; ten times as many without it


@pytest.fixture(autouse=True)
def _as_an_agent_has_it() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def made_of_generators() -> int:
    """As facts are put together: tuples of which the length is not known before."""
    return sum(len(tuple(number for number in range(length))) for length in LENGTHS)


def test_freed_tuples_do_not_pile_up() -> None:
    before = sys.getallocatedblocks()
    most = 0
    for number in range(1, REPORTS + 1):
        made_of_generators()
        most = max(most, sys.getallocatedblocks() - before)
        tidy_at(number)
    assert most < MOST_BLOCKS
    assert sys.getallocatedblocks() - before < TIDY_EVERY


def test_a_ring_of_objects_waits_no_longer_than_for_that() -> None:
    class Link:
        to: Link | None = None

    def links() -> int:
        return sum(type(held) is Link for held in gc.get_objects())

    for number in range(1, TIDY_EVERY):
        one = Link()
        one.to = one
        tidy_at(number)
    del one
    assert links() == TIDY_EVERY - 1
    tidy_at(TIDY_EVERY)
    assert links() == 0
