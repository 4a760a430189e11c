"""One line of log for one thing said, whatever words came from outside, and however often it is said.

Kernel text, job names and reasons reach the log. A newline in them would forge a line of its own, an escape code would
talk to the terminal of whoever reads it. And what goes wrong each second must not fill the disk (NVIDIA/DCGM#279): of
the same warning a few are written a minute, and the next one says how many were left out.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable

_PARTS = ("why: ", "next: ")  # of `GpuwatchError`
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


SAME_A_MINUTE = 5
MOST_REMEMBERED = 500  # different ones
_MINUTE_S = 60.0


class Repeats(logging.Filter):
    """Lets the first few of the same warning or error of a minute pass. What is only told, as INFO, always passes."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._seen: dict[
            tuple[object, ...], tuple[float, int]
        ] = {}  # what was said -> when the minute began, how often

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is written. Called under the handler's lock."""
        if record.levelno < logging.WARNING:
            return True
        error = repr(record.exc_info[1]) if record.exc_info else ""
        key = (record.name, record.lineno, record.getMessage(), error)
        now_s = self._clock_s()
        begun_s, count = self._seen.get(key, (now_s, 0))
        if now_s - begun_s >= _MINUTE_S:
            if count > SAME_A_MINUTE:
                record.__dict__["left_out_count"] = count - SAME_A_MINUTE
            begun_s, count = now_s, 0
        elif not count and len(self._seen) >= MOST_REMEMBERED:
            self._seen.clear()
        self._seen[key] = begun_s, count + 1
        return count < SAME_A_MINUTE


class OneLine(logging.Formatter):
    """Control characters of the message are shown, not obeyed; a traceback keeps its lines, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        first, *rest = super().format(record).split("\n")
        if left_out_count := getattr(record, "left_out_count", 0):
            first += f" (left out before: {left_out_count} times the same)"
        trace = record.exc_text or record.stack_info
        if trace:
            joined = "\n  ".join([first, *rest])
        else:  # the parts of our own errors are words of one sentence; any other new line is shown as what it is
            joined = first + "".join(f"; {more}" if more.startswith(_PARTS) else f"\\n{more}" for more in rest)
        return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", joined)


def set_up(level: int, text: str) -> None:
    """Log to standard error, as a service does: the journal adds what it wants."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(text))
    handler.addFilter(Repeats())
    logging.basicConfig(level=level, handlers=[handler])
