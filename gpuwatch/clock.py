"""The only reader of time. Everything else is handed a moment, so tests need no sleep."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: wall time for records, monotonic time for waiting."""

    def unix_ns(self) -> int:
        """Nanoseconds since 1970 UTC. May step backwards or forwards."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary start. Never steps; not comparable between machines."""


class SystemClock:
    """The machine's own clocks."""

    def unix_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()
