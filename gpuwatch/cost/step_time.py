"""The ideal step time, and the usual length of a phase: lower medians of the latest hundred."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

WINDOW = 100
WARM_UP = 10  # first executions of an attempt that do not count
USUAL_NS = {"init": 30 * 60 * 10**9, "checkpoint": 10 * 60 * 10**9, "evaluate": 60 * 60 * 10**9}
"""Usual length of a phase before the run has shown one (config)."""


def lower_median(values: Sequence[int]) -> int:
    """The middle one, of an even number the lower of the two: the 50th of 100."""
    return sorted(values)[(len(values) - 1) // 2]


def is_slow(length_ns: int, count: int, ideal_ns: int | None) -> bool:
    """`count` executions that took `length_ns` together are each longer than 1.05 x ideal.

    An ideal of 0 (steps shorter than can be measured) makes nothing slow.
    """
    return bool(ideal_ns) and 20 * length_ns > 21 * (ideal_ns or 0) * count


class Recent:
    """A multiset of the latest hundred values with its lower median."""

    def __init__(self) -> None:
        self._queue: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, value: int) -> None:
        self._queue.append(value)
        insort(self._sorted, value)
        if len(self._queue) > WINDOW:
            old = self._queue.popleft()
            del self._sorted[bisect_left(self._sorted, old)]

    def median(self) -> int:
        return self._sorted[(len(self._sorted) - 1) // 2]


class StepTime:
    """Learns one run's ideal step time, execution by execution in the order in which they ended."""

    def __init__(self) -> None:
        self._recent = Recent()
        self._scale: object = None
        self._seen_in_attempt = 0
        self._expected_ns: int | None = None

    def begin_attempt(self, scale: object, expected_ns: int | None) -> None:
        """A change of scale (node count, world size, tokens per step) starts afresh."""
        if scale != self._scale:
            self._recent, self._scale = Recent(), scale
        self._seen_in_attempt = 0
        self._expected_ns = expected_ns

    def ideal_ns(self) -> int | None:
        """For `slow`: learned from a full window, else configured, else None (then nothing is slow)."""
        if len(self._recent) >= WINDOW:
            return self._recent.median()
        return self._expected_ns

    def cut_ns(self) -> int:
        """To cut lost work from a hang: as `ideal_ns`, else the median of what exists, else 0."""
        ideal = self.ideal_ns()
        if ideal is not None:
            return ideal
        return self._recent.median() if len(self._recent) else 0

    def executed(self, length_ns: int, count: int) -> list[tuple[int, int | None]]:
        """`count` executions of equal length ended: (how many, the ideal frozen for them), in order."""
        each = length_ns // count
        chunks: list[tuple[int, int | None]] = []
        left = count
        while left:
            ideal = self.ideal_ns()
            now = left
            if is_slow(length_ns, count, ideal):
                pass  # slow ones teach nothing, so the ideal stays as it is
            elif self._seen_in_attempt < WARM_UP:
                now = min(now, WARM_UP - self._seen_in_attempt)
            elif len(self._recent) < WINDOW:
                now = min(now, WINDOW - len(self._recent))
            chunks.append((now, ideal))
            if self._seen_in_attempt >= WARM_UP and not is_slow(length_ns, count, ideal):
                for _ in range(min(now, WINDOW)):
                    self._recent.add(each)
            self._seen_in_attempt += now
            left -= now
        return chunks


class UsualLength:
    """Learns how long one run's phases take that end by themselves."""

    def __init__(self) -> None:
        self._recent: dict[str, Recent] = {}

    def ended(self, phase: str, length_ns: int) -> None:
        self._recent.setdefault(phase, Recent()).add(length_ns)

    def ns(self, phase: str) -> int:
        """The lower median of the latest hundred; before the first one 30, 10 or 60 min."""
        known = self._recent.get(phase)
        return known.median() if known is not None else USUAL_NS[phase]
