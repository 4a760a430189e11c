"""Opens, reads and closes one source, in whichever thread does it; one at a time. An exception is an answer."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from gpuwatch.agent.answers import Latest
from gpuwatch.clock import Clock
from gpuwatch.collectors import Collector, Hung, Reader, Unsupported
from gpuwatch.errors import GpuwatchError

log = logging.getLogger(__name__)


class Answer(msgspec.Struct):
    """What came of one reading."""

    latest: Latest
    urgent: bool = False
    more: bool = False
    ask: tuple[str, ...] = ()


class Readings:
    """One source's reader and what it has answered. `do` is the thread's, everything else the loop's."""

    def __init__(
        self, name: str, leaf: Collector[Any], settings: Any, *, clock: Clock, state_dir: Path | None, owner: bool
    ) -> None:
        """`state_dir`: what outlives the agent; only its `owner` writes there."""
        self.settings = settings  # of the next reading
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.thread_id = 0  # native, of the reading that is under way; 0: not begun
        self.others: Callable[[str], Any] | None = None  # the last facts of another source, for a reader that joins
        self._name = name
        self._leaf = leaf
        self._clock = clock
        self._state_dir, self._owner = state_dir, owner
        self._reader: Reader | None = None
        self._opened_with: Any = None
        self._state = threading.Lock()
        self._reading = self._ended = False

    def do(self) -> bool:
        """One reading; the last time the reader is closed instead. True: it says something that must not wait."""
        with self._state:
            reads = self._reading = not self._ended
        if reads:
            self.thread_id = threading.get_native_id()
            answer = self._read()
            with self._state:  # before it is answered: from then on another thread may begin the next one
                self._reading, ended = False, self._ended
            self.answers.put(answer)
            if not ended:
                return answer.urgent or bool(answer.ask)
        with self._state:  # a reading that was asked for before the end closes as well
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        return False

    def end(self) -> bool:
        """No more readings. True: `do` must be called once more, to close the reader."""
        with self._state:
            self._ended = True
            return not self._reading

    def descriptor(self) -> Callable[[], int] | None:
        """What tells of news, where the reader has such a thing. Not while it is read."""
        return getattr(self._reader, "fileno", None)

    def _opened(self, settings: Any) -> Reader:
        reader = self._leaf.open(settings)
        if self._state_dir is not None and hasattr(reader, "keep"):
            reader.keep(self._state_dir, ours=self._owner)
        if self.others is not None and hasattr(reader, "meet"):
            reader.meet(self.others)
        return reader

    def _read(self) -> Answer:
        at_unix_ns, begun_ns = self._clock.unix_ns(), self._clock.monotonic_ns()
        status: Any = "ok"
        reason: str | None = None
        since_unix_ns: int | None = None
        facts, gaps, urgent, more, abandoned_count = None, {}, False, False, 0
        ask: tuple[str, ...] = ()
        try:
            settings = self.settings
            if self._reader is not None and not _same_but_interval(settings, self._opened_with):
                reader, self._reader = self._reader, None
                reader.close()
            if self._reader is None:
                self._reader, self._opened_with = self._opened(settings), settings
            reading = self._reader.read()
            facts, gaps, urgent, more = reading.facts, reading.gaps, reading.urgent, reading.more
            abandoned_count, ask = reading.abandoned_count, reading.ask
        except Hung as error:
            status, reason, since_unix_ns = "hung", str(error), error.since_unix_ns
            abandoned_count = error.abandoned_count
        except Unsupported as error:
            status, reason = "unsupported", str(error)
        except GpuwatchError as error:
            status, reason = "failed", error.what + (f": {error.why}" if error.why else "")
        except Exception as error:  # one source's fault must not end the agent
            log.warning("%s: %s", self._name, error, exc_info=log.isEnabledFor(logging.DEBUG))
            status, reason = "failed", f"{type(error).__name__}: {error}"
        took_s = (self._clock.monotonic_ns() - begun_ns) / 1e9
        latest = Latest(
            collector=self._name,
            status=status,
            at_unix_ns=at_unix_ns,
            took_s=took_s,
            reason=reason,
            since_unix_ns=since_unix_ns,
            facts=facts,
            gaps=gaps,
            abandoned_count=abandoned_count,
        )
        return Answer(latest, urgent, more, ask)


def _same_but_interval(one: Any, other: Any) -> bool:
    return bool(msgspec.structs.replace(one, interval_s=other.interval_s) == other)
