"""One line of log for one thing said, whatever words came from outside.

Kernel text, job names and reasons reach the log. A newline in them would forge a line of its own, an escape code would
talk to the terminal of whoever reads it.
"""

from __future__ import annotations

import logging
import re
import sys

_PARTS = ("why: ", "next: ")  # of `GpuwatchError`
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


class OneLine(logging.Formatter):
    """Control characters of the message are shown, not obeyed; a traceback keeps its lines, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        first, *rest = super().format(record).split("\n")
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
    logging.basicConfig(level=level, handlers=[handler])
