"""Usual lengths: lower medians of the latest hundred."""

from __future__ import annotations

import pytest

from gpuwatch.runs.learned import appended, executed, lower_median, usual_ns


@pytest.mark.parametrize(
    ("values", "median"),
    [([7], 7), ([1, 2], 1), ([3, 1, 2], 2), ([4, 1, 3, 2], 2), (list(range(1, 101)), 50)],
)
def test_lower_median(values: list[int], median: int) -> None:
    assert lower_median(values) == median


def test_nothing_is_usual_before_there_are_three() -> None:
    assert usual_ns((5, 6)) is None
    assert usual_ns((5, 6, 7)) == 6


def test_only_the_latest_hundred_count() -> None:
    assert appended((1,) * 100, 9, 40) == (1,) * 60 + (9,) * 40
    assert appended((1,) * 100, 9, 10**9) == (9,) * 100


@pytest.mark.parametrize(
    ("before", "count", "taught"),
    [
        pytest.param(0, 10, 0, id="all-of-the-warm-up"),
        pytest.param(0, 11, 1, id="one-beyond-it"),
        pytest.param(9, 5, 4, id="across-its-end"),
        pytest.param(10, 5, 5, id="after-it"),
    ],
)
def test_the_first_ten_steps_of_an_attempt_teach_nothing(before: int, count: int, taught: int) -> None:
    assert executed((), 7, count, before) == (7,) * taught


@pytest.mark.parametrize(("each", "learned"), [(105, True), (106, False)])
def test_slow_steps_teach_nothing_once_a_hundred_are_known(each: int, learned: bool) -> None:
    known = (100,) * 100
    assert (executed(known, each, 1, 50) != known) is learned
