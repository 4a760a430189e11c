"""Growth within an hour, and shares of time: at first, steady, after a reset, and past the window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sdk.nvml_growth import Growth, Share

S = 10**9


def test_nothing_grows_from_the_first_look() -> None:
    growth = Growth()
    assert growth.add(4711, 0) is None
    assert growth.add(4711, 30 * S) == 0
    assert growth.add(4713, 60 * S) == 2


def test_a_counter_that_fell_has_begun_anew() -> None:
    growth = Growth()
    growth.add(100, 0)
    growth.add(105, 30 * S)
    assert growth.add(3, 60 * S) == 5  # a reset: what it shows now is not known to be of this hour
    assert growth.add(4, 90 * S) == 6


def test_what_is_older_than_an_hour_is_forgotten() -> None:
    growth = Growth()
    seen = [growth.add(value, at * 30 * S) for at, value in enumerate([0] + [7] * 300)]
    assert (seen[1], seen[119]) == (7, 7)
    assert seen[135] == 0  # within one mark's length past the hour


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 4000)), min_size=2, max_size=60))
def test_growth_is_never_negative_and_never_more_than_what_was_added(steps: list[tuple[int, int]]) -> None:
    growth, now, added, last = Growth(), 0, 0, None
    for value, seconds in steps:
        now += seconds * S
        added += max(0, value - last) if last is not None else 0
        grown = growth.add(value, now)
        assert grown is None or 0 <= grown <= added
        last = value


@pytest.mark.parametrize(
    ("looks", "share"),
    [
        pytest.param([(0, 0)], None, id="first"),
        pytest.param([(0, 0), (15 * S, 30 * S)], 0.5, id="half"),
        pytest.param([(0, 0), (90 * S, 30 * S)], 1.0, id="more-than-there-was"),
        pytest.param([(50 * S, 0), (1 * S, 30 * S)], None, id="fell"),
        pytest.param([(0, 5), (1, 5)], None, id="no-time"),
    ],
)
def test_a_share_of_time(looks: list[tuple[int, int]], share: float | None) -> None:
    counter = Share()
    told = [counter.add(value, at) for value, at in looks]
    assert told[-1] == share
