"""What is called ahead, what of it counts, and what the next round calls."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpuwatch.sdk.nvml_answers import GPU_IS_LOST
from gpuwatch.sdk.nvml_routine import Routine


class Driver:
    """Answers from a table and remembers what it was called for, and whether that was ahead."""

    def __init__(self) -> None:
        self.answers: dict[str, int] = {}
        self.called: list[str] = []
        self.noted: list[str] = []
        self.ahead = False

    def note(self, words: str) -> None:
        self.noted.append(words)

    def function(self, name: str) -> Any:
        def called(*_: Any) -> int:
            self.called.append(f"{name} ahead" if self.ahead else name)
            return self.answers.get(name, 0)

        return called


def perform(routine: Routine, driver: Driver) -> None:
    driver.called, driver.noted, driver.ahead = [], [], True
    routine.perform()
    driver.ahead = False


def ask(routine: Routine, driver: Driver, *names: str, handle: object = 1) -> list[int]:
    """A round that looks at these, as `Calls.code` does it."""
    codes = []
    for name in names:
        code = routine.code(name, (handle,))
        if code is None:
            called = driver.function(name)
            routine.add((partial(driver.note, f"{name}!"), name, called, (handle,)))
            code = called(handle)
        codes.append(code)
    routine.end()
    return codes


def test_the_first_round_calls_when_asked_and_all_others_ahead() -> None:
    routine, driver = Routine(), Driver()
    perform(routine, driver)
    assert ask(routine, driver, "a", "b") == [0, 0]
    assert driver.called == ["a", "b"]
    driver.answers = {"b": 3}
    perform(routine, driver)
    assert driver.noted == ["a!", "b!"]
    assert ask(routine, driver, "a", "b") == [0, 3]
    assert driver.called == ["a ahead", "b ahead"]


def test_each_call_ahead_counts_once() -> None:
    routine, driver = Routine(), Driver()
    ask(routine, driver, "a")
    perform(routine, driver)
    assert ask(routine, driver, "a", "a") == [0, 0]
    assert driver.called == ["a ahead", "a"]


def test_another_question_is_called_now_and_ahead_from_then_on() -> None:
    routine, driver = Routine(), Driver()
    ask(routine, driver, "a", "b", "c")
    perform(routine, driver)
    ask(routine, driver, "a", "new", "c")  # what was called ahead for later places is old by then: called again
    assert driver.called == ["a ahead", "b ahead", "c ahead", "new", "c"]
    perform(routine, driver)
    ask(routine, driver, "a", "new", "c")
    assert driver.called == ["a ahead", "new ahead", "c ahead"]


def test_other_arguments_are_another_question() -> None:
    routine, driver = Routine(), Driver()
    ask(routine, driver, "a", handle=1)
    perform(routine, driver)
    ask(routine, driver, "a", handle=2)
    assert driver.called == ["a ahead", "a"]


def test_what_is_not_asked_any_more_is_not_called_any_more() -> None:
    routine, driver = Routine(), Driver()
    ask(routine, driver, "a", "b", "c")
    perform(routine, driver)
    ask(routine, driver, "a")
    perform(routine, driver)
    assert driver.called == ["a ahead"]


def test_a_lost_gpu_is_asked_nothing_more() -> None:
    routine, driver = Routine(), Driver()
    ask(routine, driver, "a", "b", "c")
    driver.answers = {"b": GPU_IS_LOST}
    perform(routine, driver)
    assert driver.called == ["a ahead", "b ahead"]
    assert ask(routine, driver, "a", "b") == [0, GPU_IS_LOST]


def test_a_gpu_that_was_lost_ahead_is_lost_whatever_is_asked() -> None:
    routine, driver = Routine(), Driver()
    ask(routine, driver, "a", "b", "c")
    driver.answers = {"b": GPU_IS_LOST}
    perform(routine, driver)
    assert ask(routine, driver, "new") == [GPU_IS_LOST]
    assert driver.called == ["a ahead", "b ahead"]
