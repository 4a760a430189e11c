"""Patience grows, is bounded, and differs from node to node."""

from __future__ import annotations

import random

from gpuwatch.agent.backoff import BackOff


def test_patience_doubles_up_to_its_bound_and_begins_again() -> None:
    back_off = BackOff(1.0, 15.0, random.Random(4))
    waits = [back_off.failed() for _ in range(40)]
    for wait, whole in zip(waits, [1, 2, 4, 8] + [15] * 36, strict=True):
        assert whole / 2 <= wait <= whole
    back_off.succeeded()
    assert back_off.failed() <= 1.0


def test_the_other_side_may_ask_for_more() -> None:
    assert BackOff(1.0, 15.0).failed(at_least_s=40.0) == 40.0


def test_two_nodes_do_not_march() -> None:
    assert len({BackOff(1.0, 15.0).failed() for _ in range(50)}) > 40
