"""The calls of one GPU's round, made one after another before any answer is looked at.

A driver's call waits, and whoever waits finds the processor's caches cold: Python between two calls then takes three
times as long as it would warm. So a round makes the calls that the last such round made, in one go with next to nothing
between them, and looks at all answers afterwards. Each answer lies in a record of its own until then. Where the looking
asks for another call than the one that was made in its place, it is made now, and the next round makes that one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuwatch.sdk.nvml_answers import GPU_IS_LOST

Step = tuple[Callable[[], Any], str, Any, tuple[Any, ...]]
"""What notes it, the function's name, the function, its arguments."""


class Routine:
    """One GPU's calls, as far as its handle is the same."""

    __slots__ = ("_at", "_codes", "_steps")

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._codes: list[int] = []
        self._at = 0

    def perform(self) -> None:
        """Make the calls of the last time. A lost GPU is asked nothing more: a stale handle has crashed monitors."""
        codes: list[int] = []
        for note, _, called, arguments in self._steps:
            note()
            code = called(*arguments)
            codes.append(code)
            if code == GPU_IS_LOST:
                break
        self._codes, self._at = codes, 0

    def code(self, function: str, arguments: tuple[Any, ...]) -> int | None:
        """The return code of the call that is asked for now; None: it was not made."""
        at = self._at
        if at < len(self._codes):
            step = self._steps[at]
            if step[1] == function and step[3] == arguments:
                self._at = at + 1
                return self._codes[at]
            if self._codes[-1] == GPU_IS_LOST:  # whatever is asked instead
                return GPU_IS_LOST
        self._codes = []
        return None

    def add(self, step: Step) -> None:
        """It was made now instead, and in this place from the next time on."""
        del self._steps[self._at :]
        self._steps.append(step)
        self._at += 1

    def end(self) -> None:
        """Nothing more is asked in this round."""
        del self._steps[self._at :]
