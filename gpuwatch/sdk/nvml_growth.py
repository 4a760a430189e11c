"""How much a counter grew within the last hour. A counter that falls has begun anew: a reset, another board."""

from __future__ import annotations

WINDOW_NS = 3600 * 10**9
STEP_NS = 300 * 10**9  # between two marks, so that an hour is twelve of them


class Growth:
    """One counter."""

    __slots__ = ("_grown", "_last", "_marks")

    def __init__(self) -> None:
        self._last: int | None = None
        self._grown = 0
        self._marks: list[tuple[int, int]] = []  # (monotonic ns, grown until then)

    def add(self, value: int, now_ns: int) -> int | None:
        """The growth of the window that ends now; None at the first look, from which nothing grows yet."""
        last, self._last = self._last, value
        if last is None:
            self._marks.append((now_ns, 0))
            return None
        self._grown += max(0, value - last)
        while len(self._marks) > 1 and now_ns - self._marks[1][0] >= WINDOW_NS:
            del self._marks[0]
        if now_ns - self._marks[-1][0] >= STEP_NS:
            self._marks.append((now_ns, self._grown))
        return self._grown - self._marks[0][1]


class Share:
    """A counter of nanoseconds as the share of the time between two looks."""

    __slots__ = ("_at_ns", "_last")

    def __init__(self) -> None:
        self._last: int | None = None
        self._at_ns = 0

    def add(self, value_ns: int, now_ns: int) -> float | None:
        """None at the first look, and where the counter fell or no time has passed."""
        last, at_ns = self._last, self._at_ns
        self._last, self._at_ns = value_ns, now_ns
        if last is None or value_ns < last or now_ns <= at_ns:
            return None
        return min(1.0, (value_ns - last) / (now_ns - at_ns))
