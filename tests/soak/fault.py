"""What a fault of the soak is, which of them are in force, and the time in which an agent can be expected to speak."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.facts.kernel_log import KernelEvent
from tests.soak.judge import Look


def nothing() -> None:
    """Of a fault that needs no such step."""


@dataclass(frozen=True)
class Fault:
    """One fault: how it is made, by what it is known, how it is healed, and what may be said of the node meanwhile."""

    kind: str
    inject: Callable[[], None]
    seen: Callable[[Look], bool]
    heal: Callable[[], None] = nothing
    rules: tuple[str, ...] = ()
    words: str = ""  # part of the subject or the reason of what these rules may say
    well: Callable[[Look], bool] = lambda _: True  # beside the silence of its rules
    event: Callable[[KernelEvent], bool] | None = None  # the kernel's own word, which must leave at once
    within_s: float = 25.0  # of calm time
    well_within_s: float = 100.0
    hold_s: float = 2.0  # at most, after it was seen
    disturbs: bool = False  # while it lasts nothing can be expected of the agent

    def allows(self, found: Evidence) -> bool:
        """Whether this fault explains that finding."""
        return found.rule in self.rules and self.words in f"{found.subject.id} {found.because}"

    def is_over(self, look: Look) -> bool:
        """Whether this report shows a node without it."""
        return look.view is not None and not look.evidence(self.rules, self.words) and self.well(look)


class Force:
    """The faults in force."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: list[Fault] = []

    def begin(self, fault: Fault) -> None:
        with self._lock:
            self._now.append(fault)

    def end(self, fault: Fault) -> None:
        with self._lock:
            self._now.remove(fault)

    def allows(self, found: Evidence) -> bool:
        with self._lock:
            return any(fault.allows(found) for fault in self._now)

    def now(self) -> list[str]:
        with self._lock:
            return [fault.kind for fault in self._now]


class Calm:
    """A monotonic clock that stands still while the agent cannot be expected to be heard."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost_s = 0.0
        self._since_s: float | None = None
        self.windows: list[tuple[float, float]] = []

    def now_s(self) -> float:
        with self._lock:
            now_s = time.monotonic() if self._since_s is None else self._since_s
            return now_s - self._lost_s

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        with self._lock:
            self._since_s = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                begun_s, ended_s = self._since_s, time.monotonic()
                self._lost_s += ended_s - begun_s
                self._since_s = None
                self.windows.append((begun_s, ended_s))

    def disturbed_s(self, begun_s: float, ended_s: float) -> float:
        """How much of that time was disturbed."""
        with self._lock:
            windows = [*self.windows, *([] if self._since_s is None else [(self._since_s, ended_s)])]
        return sum(max(0.0, min(ended_s, end_s) - max(begun_s, begin_s)) for begin_s, end_s in windows)


@dataclass
class Tally:
    """What became of the faults of one kind."""

    injected: int = 0
    delays_s: list[float] = field(default_factory=list)

    def row(self, kind: str) -> str:
        delays = self.delays_s or [float("nan")]
        return f"{kind:34} {self.injected:5} {len(self.delays_s):5} {statistics.median(delays):8.2f} {max(delays):8.2f}"
