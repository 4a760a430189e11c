"""How long to wait before the next try: longer each time, never twice the same on two nodes."""

from __future__ import annotations

import random


class BackOff:
    """Doubles from `first_s` to `most_s`; each wait is a random half to whole of it, so that a fleet does not march."""

    def __init__(self, first_s: float, most_s: float, chance: random.Random | None = None) -> None:
        self._first_s = first_s
        self._most_s = max(first_s, most_s)
        self._chance = chance or random.Random()
        self._failures = 0

    def succeeded(self) -> None:
        """Start from the beginning next time."""
        self._failures = 0

    def failed(self, at_least_s: float = 0.0) -> float:
        """Seconds to wait now. `at_least_s`: what the other side asked for."""
        whole_s = min(self._most_s, self._first_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return max(at_least_s, whole_s * self._chance.uniform(0.5, 1.0))
