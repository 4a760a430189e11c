"""The child process of a source that can hang: `python -m gpuwatch.agent.probe NAME`, started by the agent alone.

Its orders are one line of JSON on standard input. It reads on its own clock, and at once where another line comes, and
writes frames to standard output until standard input ends. What it is about to call stands in a small memory file that
the agent reads when it hears nothing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import mmap
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from gpuwatch.agent.child import NOTE_BYTES
from gpuwatch.agent.frames import Frame, packed
from gpuwatch.agent.memory import settle, tidy_at
from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector, Reader, Unsupported
from gpuwatch.errors import GpuwatchError
from gpuwatch.model.wire import NO_FACTS

FIRST_WAITS = 0.3, 1.0  # shares of an interval after the first reading: a fleet that starts together must not march
ORPHAN_LEAVES_S = 120.0  # a slow call is given its time, as a living agent would give it

_encode = msgspec.msgpack.Encoder().encode


def leaf(source: str) -> Collector[Any]:
    """The one leaf that is needed; the registry would import all of them into this small process."""
    found = importlib.import_module(f"gpuwatch.collectors.{source}").COLLECTOR
    assert isinstance(found, Collector)
    return found


def main(source: str) -> int:
    """Read and tell until standard input ends."""
    for number in (signal.SIGINT, signal.SIGHUP):  # the agent's business, also where the whole unit is told
        signal.signal(number, signal.SIG_IGN)
    out = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not print into our frames
    orders = json.loads(_first_line())
    news: queue.SimpleQueue[bool] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(news,), name="news", daemon=True).start()
    collector = leaf(source)
    settings = msgspec.convert(orders["settings"], collector.settings)
    probe = _Probe(collector, settings, orders["note"])
    count = 0
    while True:
        frame = probe.frame()
        try:
            _write_all(out, packed(frame))
        except OSError:
            return 0  # the agent is gone
        if frame.status == "unsupported":
            return 0  # nothing to watch: do not sit here; the agent looks again now and then
        if probe.is_spent():
            return 0  # the agent starts another one
        count += 1
        if count == 1:
            settle()
        tidy_at(count)
        if not _goes_on(news, frame.next_in_s):
            return 0


class Note:
    """The memory file in which the agent finds what this process was about to call."""

    def __init__(self, file: int) -> None:
        self._memory = mmap.mmap(file, NOTE_BYTES)

    def __call__(self, text: str) -> None:
        self.ready(text)()

    def ready(self, text: str) -> Callable[[], None]:
        """Writes this text, at no cost of Python's."""
        words = text.encode()[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0")
        return functools.partial(self._memory.__setitem__, slice(None), words)


class _Probe:
    def __init__(self, collector: Collector[Any], settings: Any, note: int) -> None:
        self._collector = collector
        self._settings = settings
        self._note = Note(note)
        self._clock = SystemClock()
        self._reader: Reader | None = None
        self._failures = 0
        self._took_s = 0.0  # of the reading before
        self._next_ns = self._clock.monotonic_ns()
        self._share = FIRST_WAITS[0] + (FIRST_WAITS[1] - FIRST_WAITS[0]) * int.from_bytes(os.urandom(2), "big") / 65535

    def frame(self) -> Frame:
        """One reading, whatever comes of it."""
        at_unix_ns, begun_ns = self._clock.unix_ns(), self._clock.monotonic_ns()
        status: Any = "ok"
        reason: str | None = None
        facts, gaps, urgent = NO_FACTS, {}, False
        try:
            if self._reader is None:
                self._reader = self._collector.open(self._settings)
                if hasattr(self._reader, "watch"):
                    self._reader.watch(self._note)
            reading = self._reader.read()
            facts, gaps, urgent = msgspec.Raw(_encode(reading.facts)), reading.gaps, reading.urgent
            self._failures = 0
        except Unsupported as error:
            status, reason = "unsupported", str(error)
        except GpuwatchError as error:
            status, reason = "failed", error.what + (f": {error.why}" if error.why else "")
            self._failures += 1
        except Exception as error:  # a driver's surprise must not end the watch
            status, reason = "failed", f"{type(error).__name__}: {error}"
            self._failures += 1
        self._note("")
        took_s = (self._clock.monotonic_ns() - begun_ns) / 1e9
        return Frame(at_unix_ns, took_s, status, self._next_in_s(took_s), reason, facts, gaps, urgent)

    def is_spent(self) -> bool:
        """What this process has loaded is of no more use."""
        return bool(getattr(self._reader, "spent", False))

    def _next_in_s(self, took_s: float) -> float:
        """On our own clock; seldomer when reading fails, or is slow twice (once may be us who slept): it can harm."""
        interval_s, self._share = float(self._settings.interval_s) * self._share, 1.0
        if self._failures:
            interval_s *= min(8, 2 ** (self._failures - 1))
        slow_s, self._took_s = min(took_s, self._took_s), took_s
        if slow_s > interval_s / 2:
            interval_s = min(max(interval_s, 4 * slow_s), 12 * interval_s)
        now_ns = self._clock.monotonic_ns()
        if now_ns > self._next_ns - int(interval_s * 1e8):  # else this one was asked for: its turn is to come
            self._next_ns += int(interval_s * 1e9)
        self._next_ns = max(self._next_ns, now_ns + int(interval_s * 5e8))
        return (self._next_ns - now_ns) / 1e9


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            sys.exit(0)
        line += piece
    return line


def _goes_on(news: queue.SimpleQueue[bool], within_s: float) -> bool:
    """Wait until the next reading is due or asked for. False: the agent wants no more."""
    with contextlib.suppress(queue.Empty):
        going = news.get(timeout=within_s)
        while going:
            going = news.get_nowait()  # asked for several times meanwhile: one reading answers all
        return False
    return True


def _listen(news: queue.SimpleQueue[bool]) -> None:
    """True: read now. False: the end; where no agent follows the one that started us, a call that hangs must not keep
    this process for ever."""
    while os.read(0, 4096):
        news.put(True)
    news.put(False)
    time.sleep(ORPHAN_LEAVES_S)
    os._exit(1)


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
