"""How Slurm is asked: what a silent database costs, and when a job is said to be gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwatch.errors import SchedulerError
from gpuwatch.sdk.slurm_command import Commands, Refused, TooSlow
from gpuwatch.sdk.slurm_source import TEXT_ANSWERS, History, Source
from tests.fakes import FakeClock


class Answers(Commands):
    """Answers as it is told to, and remembers what it was asked."""

    def __init__(self, answer: Callable[[tuple[str, ...]], str]) -> None:
        super().__init__(timeout_s=1.0)
        self.asked: list[tuple[str, ...]] = []
        self._answer = answer

    def run(self, *words: str) -> str:
        self.asked.append(words)
        return self._answer(words)


def test_a_database_that_hangs_is_asked_ever_more_seldom_and_as_ever_once_it_answers() -> None:
    clock, hangs = FakeClock(), True

    def answer(words: tuple[str, ...]) -> str:
        if hangs:
            raise TooSlow("no answer", retry=True)
        return ""

    commands = Answers(answer)
    history = History(commands, clock, use="yes", interval_s=60.0, pause_s=10.0)

    def asked_within(seconds: int) -> int:
        before = len(commands.asked)
        for _ in range(0, seconds, 5):
            clock.pass_s(5.0)
            assert history.tries({}, hurry=True) == []
        return len(commands.asked) - before

    assert asked_within(600) == 3  # at once, and 2 and 4 minutes later
    assert asked_within(3600) == 4  # 8 minutes later, then every 16
    hangs = False
    asked_within(960)
    assert asked_within(60) == 6


def test_one_answer_that_was_cut_off_does_not_make_us_read_text_for_ever() -> None:
    cut, text, whole = 1, "No jobs in the system\n", json.dumps({"jobs": [], "errors": []})

    def answer(words: tuple[str, ...]) -> str:
        nonlocal cut
        if words == ("scontrol", "--version"):
            return "slurm 22.05.8"
        if "--json" not in words:
            return text
        cut -= 1
        return whole[:5] if cut >= 0 else whole

    commands = Answers(answer)
    source = Source(commands, "auto")
    for _ in range(TEXT_ANSWERS + 2):
        assert source.jobs() == ()
    asked = ["--json" in words for words in commands.asked]
    assert asked == [False, True, False] + [False] * TEXT_ANSWERS + [True]


OTHER = {"job_id": 8, "job_state": "RUNNING", "name": "x", "nodes": "gpu1"}


@pytest.mark.parametrize("jobs", [[], [OTHER]], ids=["none", "others"])
def test_a_job_that_a_list_lacks_is_asked_for_by_its_number(jobs: list[object]) -> None:
    def answer(words: tuple[str, ...]) -> str:
        if words == ("scontrol", "--version"):
            return "slurm 22.05.8"
        if "--json" in words:
            return json.dumps({"jobs": jobs, "errors": []})
        raise Refused("failed", said=says, retry=True, next_step="")

    source = Source(Answers(answer), "auto")
    says = "slurm_load_jobs error: Invalid job id specified"
    assert source.job("7.0") is None
    says = "slurm_load_jobs error: Unable to contact slurm controller"
    with pytest.raises(SchedulerError):
        source.job("7.0")


@pytest.mark.parametrize("name", ["", "x", "7x", "²", "7\0", "-7", "7 8", "9" * 40, "ALL"])
def test_what_is_no_number_of_a_job_is_not_asked_for(name: str) -> None:
    commands = Answers(lambda _: "")
    with pytest.raises(SchedulerError, match="no job of Slurm's"):
        Source(commands, "text").job(f"{name}.0")
    assert commands.asked == []


def test_commands_that_are_not_there_or_cannot_be_run_are_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "squeue").write_text("#!/bin/sh\n")  # without the right to run it
    for name in ("scontrol", "squeue"):
        with pytest.raises(SchedulerError, match=f"{name} cannot be run") as caught:
            Commands(timeout_s=1.0).run(name, "x")
        assert caught.value.retry
        assert "PATH" in caught.value.next_step
    with pytest.raises(SchedulerError, match="embedded null byte") as caught:
        Commands(timeout_s=1.0).run("scontrol", "\0")
    assert not caught.value.retry
