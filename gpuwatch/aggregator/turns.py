"""Long work beside the server's thread, in turns: a thread that only thinks would hold the interpreter's lock.

Each piece of network work asks for that lock anew, and waits a whole switch interval for it while another thread works:
half a second of thinking would leave a second's reports unanswered. So a long loop lies still for as long as it worked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.002
LOOK_EVERY = 32  # items, between two looks at the clock


class _Paused(threading.local):
    ns = 0


_PAUSED = _Paused()


def paused_ns() -> int:
    """For how long this thread has lain still so far: that was no work."""
    return _PAUSED.ns


def in_turns(items: Iterable[T]) -> Iterator[T]:
    """The same items; whoever loops over them lets the other threads work in between."""
    until_s = time.monotonic() + TURN_S
    for number, item in enumerate(items):
        if number % LOOK_EVERY == 0 and time.monotonic() > until_s:
            began_s = time.monotonic()
            time.sleep(TURN_S)
            ended_s = time.monotonic()
            _PAUSED.ns += int((ended_s - began_s) * 1e9)
            until_s = ended_s + TURN_S
        yield item
