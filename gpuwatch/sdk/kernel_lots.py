"""A log's lines for one reading, of which only few are held at once.

A storm brings thousands in one reading. Python keeps the place that they took for good: three megabytes for an agent
that watches for months because of one bad second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuwatch.clock import Clock
from gpuwatch.sdk.kernel_lines import LOT_LINES, MAX_LINES, Line, Source

NS = 10**9
MOST_S = 0.05  # of one reading, after which the agent rests as long


class Lots:
    """Of one log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._broke: OSError | None = None

    def of(self, source: Source) -> Iterable[Line]:
        """What one reading may take; an empty tuple where nothing new is there. Raises `OSError` where that cannot be
        read. Where it breaks off later, what was said before is told first, and the next reading raises."""
        broke, self._broke = self._broke, None
        if broke is not None:
            raise broke
        begun_ns = self._clock.monotonic_ns()
        lines = source.read()
        return self._all(source, lines, begun_ns) if lines else ()

    def _all(self, source: Source, lines: list[Line], begun_ns: int) -> Iterator[Line]:
        most = MAX_LINES
        while lines:
            count = len(lines)
            most -= count
            lines.reverse()
            while lines:
                yield lines.pop()
            if not source.behind or count < LOT_LINES or most <= 0:
                return
            if self._clock.monotonic_ns() - begun_ns >= MOST_S * NS:
                return
            try:
                lines = source.read()
            except OSError as error:
                self._broke = error
