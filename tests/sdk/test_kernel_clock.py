"""The kernel's own word on its clock, and who is asked where the kernel may not be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gpuwatch.sdk import kernel_clock
from gpuwatch.sdk.errand import Errands, Outcome
from gpuwatch.sdk.kernel_clock import ASKED_EVERY, KernelClock, clock_says


class Said(Errands):
    """timedatectl, as the test says."""

    def __init__(self, *answers: bytes) -> None:
        super().__init__("test")
        self.answers = list(answers)

    def ask(self, wanted: Mapping[str, Sequence[str]], **_: Any) -> dict[str, Outcome]:
        assert [words[0] for words in wanted.values()] == ["timedatectl"]
        return {subject: Outcome(status="ok", out=self.answers.pop(0)) for subject in wanted}


def refused() -> Any:
    raise OSError(1, "Operation not permitted")


def test_this_machine() -> None:
    said = clock_says()
    assert said.max_error_s is not None
    assert 0 <= said.max_error_s <= 60
    assert KernelClock(Said()).look() == said or said.synchronised


@pytest.mark.parametrize(("answer", "synchronised"), [(b"yes\n", True), (b"no\n", False)])
def test_where_the_kernel_may_not_be_asked(monkeypatch: pytest.MonkeyPatch, answer: bytes, synchronised: bool) -> None:
    monkeypatch.setattr(kernel_clock, "clock_says", refused)
    clock = KernelClock(Said(answer, b""))
    seen = {clock.look() for _ in range(ASKED_EVERY)}  # it is asked once
    assert [(said.synchronised, said.offset_s) for said in seen] == [(synchronised, None)]
    with pytest.raises(OSError, match="timedatectl does not know either"):
        clock.look()
