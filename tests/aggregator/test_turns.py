"""A long loop loses nothing by lying still in between, and lets another thread work meanwhile."""

from __future__ import annotations

import time

import pytest

from gpuwatch.aggregator import turns


def test_items_come_as_they_were_given_and_long_work_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = 0.0
    pauses: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: clock_s)
    monkeypatch.setattr(time, "sleep", pauses.append)
    seen = []
    for item in turns.in_turns(range(1000)):
        seen.append(item)
        clock_s += turns.TURN_S / 100
    assert seen == list(range(1000))
    assert 5 <= len(pauses) <= 10


def test_short_work_never_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("paused"))
    assert list(turns.in_turns("abc" * 100)) == list("abc" * 100)
