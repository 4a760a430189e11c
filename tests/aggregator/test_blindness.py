"""When we doubt ourselves, and for how long."""

from __future__ import annotations

import pytest

from gpuwatch.aggregator.blindness import Blindness
from gpuwatch.model.moment import Moment

S = 10**9


class Eyes:
    """A blindness with a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.wall_s = 0.0
        self.heard_s: float | None = 1000.0
        self.blindness = Blindness(self.moment())

    def moment(self) -> Moment:
        return Moment(int((self.now_s + self.wall_s + 1e9) * S), int(self.now_s * S))

    def wait(self, seconds: int) -> str:
        """Look every second; the last word."""
        return [self.look() for _ in range(seconds)][-1]

    def look(self, passed_s: float = 1.0, *, speak: bool = True, lag_s: float = 0.0, store_error: str = "") -> str:
        self.now_s += passed_s
        if speak:
            self.heard_s = self.now_s
        return self.blindness.look(
            self.moment(),
            lag_s=lag_s,
            store_error=store_error,
            heard_monotonic_ns=None if self.heard_s is None else int(self.heard_s * S),
            expected_machine_count=16,
            interval_s=5.0,
            tick_s=1.0,
        )


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_step_of_the_wall_clock_blinds_for_a_while(step_s: float) -> None:
    eyes = Eyes()
    assert eyes.look() == ""
    eyes.wall_s += step_s
    assert "wall clock stepped" in eyes.look()
    assert eyes.wait(15) != ""
    assert eyes.wait(1) == ""
    assert eyes.blindness.clock_step_count == 1


@pytest.mark.parametrize(("silent_s", "blind"), [(14.0, False), (15.0, False), (16.0, True)])
def test_a_silence_of_everybody_is_ours(silent_s: float, blind: bool) -> None:
    eyes = Eyes()
    said = ""
    for _ in range(int(silent_s)):
        said = eyes.look(speak=False)
    assert bool(said) is blind


def test_after_the_first_voice_there_is_time_for_the_others() -> None:
    eyes = Eyes()
    for _ in range(60):
        eyes.look(speak=False)
    assert eyes.wait(14) != ""
    assert eyes.wait(2) == ""


def test_nobody_yet_heard_since_the_start_is_doubt_too() -> None:
    eyes = Eyes()
    eyes.heard_s = None
    assert eyes.look(9, speak=False) == ""
    assert "no agent at all" in eyes.look(9, speak=False)


@pytest.mark.parametrize(
    ("kwargs", "word"),
    [
        pytest.param({"passed_s": 60.0}, "stood still", id="stopped-process"),
        pytest.param({"lag_s": 6.0}, "behind", id="slow-loop"),
        pytest.param({"store_error": "disk full"}, "disk full", id="ledger"),
    ],
)
def test_other_doubts(kwargs: dict[str, float], word: str) -> None:
    assert word in Eyes().look(**kwargs)  # type: ignore[arg-type]


def test_a_ledger_that_works_again_is_trusted_at_once() -> None:
    eyes = Eyes()
    assert eyes.look(store_error="disk full")
    assert eyes.look() == ""
