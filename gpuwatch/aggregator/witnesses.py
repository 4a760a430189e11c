"""Two more pairs of eyes: what the scheduler and the cloud list, asked in threads of their own.

An error or a hung call is no witness; it is counted, and the last good answer only grows older. It is never "empty". A
thread that hangs in a call keeps nobody else waiting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from gpuwatch.clock import Clock
from gpuwatch.errors import GpuwatchError
from gpuwatch.model.moment import Moment

T = TypeVar("T")
LOG = logging.getLogger("gpuwatch.witnesses")


class Testimony(msgspec.Struct, Generic[T], frozen=True):
    """One good answer. `asked` is when the call began: what it tells is at least that fresh."""

    answer: T
    asked: Moment
    received: Moment


class Witness(Generic[T]):
    """Asks one source every so often and keeps its last good answer."""

    def __init__(self, name: str, ask: Callable[[], T], interval_s: float, clock: Clock) -> None:
        self.name = name
        self.interval_s = interval_s
        self._ask = ask
        self._clock = clock
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"witness-{name}", daemon=True)
        self._last: Testimony[T] | None = None
        self._error = ""
        self._asking_since_ns: int | None = None
        self.answer_count = 0
        self.error_count = 0

    def start(self) -> None:
        """Begin asking."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. A call under way is left to itself."""
        self._stopped.set()
        self._wake.set()

    def poke(self) -> None:
        """Ask now, not at the next interval."""
        self._wake.set()

    def last(self) -> Testimony[T] | None:
        """The last good answer, however old; None if there never was one."""
        return self._last

    def fresh(self, since_monotonic_ns: int) -> T | None:
        """An answer to a question put after this moment; None, and it is asked at once, if there is none yet."""
        last = self._last
        if last is not None and last.asked.monotonic_ns > since_monotonic_ns:
            return last.answer
        self.poke()
        return None

    def trouble(self) -> str:
        """Why it gives no fresh word now; empty if it does."""
        since_ns = self._asking_since_ns
        if since_ns is not None:
            waited_s = (self._clock.monotonic_ns() - since_ns) / 1e9
            if waited_s > max(10.0, 3 * self.interval_s):
                return f"has not answered for {waited_s:.0f} s"
        return self._error

    def ask_once(self) -> None:
        """One question and its answer, in the caller's thread."""
        asked = Moment(self._clock.unix_ns(), self._clock.monotonic_ns())
        self._asking_since_ns = asked.monotonic_ns
        try:
            answer = self._ask()
        except GpuwatchError as error:
            self._fail(error.what, str(error))
        except Exception as error:  # a leaf's bug must not end the watch
            self._fail(f"{type(error).__name__}: {error}", "", trace=True)
        else:
            if self._error:
                LOG.info("the %s answers again", self.name)
            self._error = ""
            self._last = Testimony(answer, asked, Moment(self._clock.unix_ns(), self._clock.monotonic_ns()))
            self.answer_count += 1
        finally:
            self._asking_since_ns = None

    def _fail(self, short: str, long: str, *, trace: bool = False) -> None:
        self.error_count += 1
        if short != self._error:  # the same words again and again say nothing new
            LOG.warning("the %s could not be asked: %s", self.name, long or short, exc_info=trace)
        self._error = short

    def _work(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            self.ask_once()
            self._wake.wait(self.interval_s)
