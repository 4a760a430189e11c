"""The agent's heart: asks sources, makes reports, feeds the watchdog. Blocks on nothing but its own wait.

It wakes as seldom as it can: a probe's frame that comes near the end of the interval makes the report at once, sources
that must be asked are asked together, and everything that can be selected on is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import select
import signal
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType

from gpuwatch.agent.answers import Source
from gpuwatch.agent.crew import Crew
from gpuwatch.agent.memory import settle
from gpuwatch.agent.report import Reporter
from gpuwatch.agent.sender import Parcel
from gpuwatch.clock import Clock
from gpuwatch.model.moment import Moment
from gpuwatch.model.wire import Goodbye
from gpuwatch.notify import ServiceManager

log = logging.getLogger(__name__)

NS = 10**9
FIRST_REPORT_WAITS_S = 1.5  # for the first answers of all sources; then it says what it has
ASKED_TOGETHER_S = 0.5  # how long a report waits for the sources that were asked for it
URGENT_GAP_S = 0.2  # a storm of urgent readings makes at most five reports a second …
URGENT_AT_ONCE = 3  # … but so many in a second go at once: a fatal event does not wait for what came just before it
EARLY, LATE = 0.25, 0.1  # shares of the interval in which a probe's frame makes the report
LEAST_GAP, MOST_GAP = 0.3, 1.5  # … and between which one report comes, once, so that the next ones have such a frame


class Loop:
    """One agent's loop. `put` takes a finished report and must not wait."""

    def __init__(
        self,
        sources: Sequence[Source],
        reporter: Reporter,
        put: Callable[[Parcel], None],
        *,
        interval_s: float,
        clock: Clock,
        manager: ServiceManager,
        status: Callable[[], str],
        reload: Callable[[], None] = lambda: None,
        chance: random.Random | None = None,
    ) -> None:
        self._sources = sources
        self._reporter = reporter
        self._put = put
        self._interval_ns = int(interval_s * NS)
        self._clock = clock
        self._manager = manager
        self._status = status
        self._reload = reload  # at SIGHUP, between two turns
        self._at_terminal = False  # there a SIGHUP means that it was closed
        self._hung_up = False
        self._chance = chance or random.Random()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        os.set_blocking(self._wake_in, False)
        self.crew = Crew(self.wake, clock)  # reads what can be read in a thread
        self._stop_reason = ""
        self._begun_ns = clock.monotonic_ns()
        self._next_ns = self._begun_ns
        self._asked_until_ns: int | None = None
        self._last_ns: int | None = None  # of the last report
        self._first = True
        self._urgent = False
        self._urgent_ns: deque[int] = deque(maxlen=URGENT_AT_ONCE)  # when the last urgent reports were made
        self._fed_ns: int | None = None

    def wake(self) -> None:
        """From any thread: look again now."""
        with contextlib.suppress(OSError):
            os.write(self._wake_in, b"\0")

    def stop(self, reason: str) -> None:
        """End soon."""
        self._stop_reason = self._stop_reason or reason
        self.wake()

    def change(self, interval_s: float) -> None:
        """Another interval, from the next report on."""
        self._interval_ns = int(interval_s * NS)
        self._next_ns = min(self._next_ns, self._clock.monotonic_ns() + self._interval_ns)

    def run(self) -> Goodbye:
        """Until stopped, by a signal or by `stop`. Installs handlers for SIGTERM, SIGINT and SIGHUP."""
        self._at_terminal = os.isatty(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        settled = False
        while not self._stop_reason:
            if self._hung_up:
                self._hung_up = False
                self._manager.reloading("reading the settings again")
                self._reload()
                self._manager.ready(self._status())
            self.turn(self._now())
            if self._last_ns is not None and not settled:
                settle()
                settled = True
            self._wait()
        return Goodbye(reason=self._stop_reason)

    def turn(self, now: Moment) -> None:
        """One look at everything."""
        self.crew.tick(now.monotonic_ns)
        for source in self._sources:
            source.tick(now)
            self._urgent |= source.urgent()
        if self._last_ns is not None and self._urgent and now.monotonic_ns >= self._urgent_from_ns():
            self._urgent_ns.append(now.monotonic_ns)
            self._report(now)
        elif self._report_is_due(now):
            self._report(now)
            self._plan_next(now)
        self._tell_manager(now)

    def wait_s(self, now: Moment) -> float:
        """How long nothing needs to be done unless a descriptor says so."""
        until = [self.crew.wake_ns(), *(source.wake_ns() for source in self._sources)]
        if self._asked_until_ns is not None:
            until.append(self._asked_until_ns)
        elif self._last_ns is None:
            until.append(self._begun_ns + int(FIRST_REPORT_WAITS_S * NS))
        else:
            until.append(self._next_ns + (self._late_ns() if self._frame_is_near() else 0))
        if self._urgent and self._last_ns is not None:
            until.append(self._urgent_from_ns())
        if self._manager.watchdog_s is not None:
            until.append(now.monotonic_ns + int(self._manager.watchdog_s / 3 * NS))
        return max(0.0, (min(until) - now.monotonic_ns) / NS)

    def _wait(self) -> None:
        poll = select.poll()  # made anew: a child's descriptor may be another one with the same number by now
        poll.register(self._wake_out, select.POLLIN)
        by_file = {file: source for source in self._sources if (file := source.fileno()) >= 0}
        for file in by_file:
            poll.register(file, select.POLLIN)
        wait_ms = self.wait_s(self._now()) * 1000 + 1
        self.crew.send_off()
        ready = poll.poll(wait_ms)
        now = self._now()
        for file, _ in ready:
            if file == self._wake_out:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_out, 4096)
            else:
                by_file[file].readable(now)

    def _report_is_due(self, now: Moment) -> bool:
        if self._last_ns is None:
            return self._first_report_is_due(now)
        if self._asked_until_ns is not None:
            answered = not any(source.busy() for source in self._sources)
            return answered or now.monotonic_ns >= self._asked_until_ns
        if not self._tick_is_due(now):
            return False
        self._ask_all(now)
        return not any(source.busy() for source in self._sources)

    def _first_report_is_due(self, now: Moment) -> bool:
        if self._asked_until_ns is None:
            self._ask_all(now)
        if all(source.latest() is not None for source in self._sources):
            return True
        return self._due(now, self._begun_ns, FIRST_REPORT_WAITS_S)

    def _tick_is_due(self, now: Moment) -> bool:
        early_ns = self._next_ns - int(EARLY * self._interval_ns)
        if any((at_ns := source.fresh_ns()) is not None and at_ns >= early_ns for source in self._clocked()):
            return True
        if now.monotonic_ns < self._next_ns:
            return False
        return now.monotonic_ns >= self._next_ns + (self._late_ns() if self._frame_is_near() else 0)

    def _frame_is_near(self) -> bool:
        """A probe's next frame is expected around the end of the interval."""
        early_ns, late_ns = self._next_ns - int(EARLY * self._interval_ns), self._next_ns + self._late_ns()
        return any(
            (expected := source.expected_ns(early_ns)) is not None and expected <= late_ns for source in self._clocked()
        )

    def _frame_to_join(self, now_ns: int) -> int | None:
        """When a probe that reads about as often as we report reads next. Once a report is made then, all come with its
        frames: fresh, and in one waking."""
        for source in self._clocked():
            at_ns = source.expected_ns(now_ns + int(LEAST_GAP * self._interval_ns))
            after_ns = None if at_ns is None else source.expected_ns(at_ns + 1)
            if at_ns is None or after_ns is None or at_ns > now_ns + int(MOST_GAP * self._interval_ns):
                continue
            if 1 - EARLY <= (after_ns - at_ns) / self._interval_ns <= 1 + LATE:
                return at_ns
        return None

    def _clocked(self) -> list[Source]:
        return [source for source in self._sources if source.own_clock]

    def _late_ns(self) -> int:
        return int(LATE * self._interval_ns)

    def _ask_all(self, now: Moment) -> None:
        for source in self._sources:
            source.ask(now)
        self._asked_until_ns = now.monotonic_ns + int(ASKED_TOGETHER_S * NS)

    def _report(self, now: Moment) -> None:
        self._put(self._reporter.make(self._sources))
        while any(source.has_more() for source in self._sources):
            self._put(self._reporter.make(self._sources))
        self._urgent = False
        self._first, self._last_ns = self._last_ns is None, now.monotonic_ns

    def _urgent_from_ns(self) -> int:
        """From when on an urgent report may be made."""
        made = self._urgent_ns
        return 0 if len(made) < URGENT_AT_ONCE else min(made[-1] + int(URGENT_GAP_S * NS), made[0] + NS)

    def _plan_next(self, now: Moment) -> None:
        """The second report comes at a random moment, so that a fleet that starts together does not report together; a
        probe's second frame does so too."""
        share = self._chance.uniform(0.3, 1.0) if self._first else self._chance.uniform(0.98, 1.02)
        self._next_ns = now.monotonic_ns + int(share * self._interval_ns)
        frame_ns = self._frame_to_join(now.monotonic_ns)
        self._next_ns = self._next_ns if frame_ns is None else frame_ns
        self._asked_until_ns = None

    def _tell_manager(self, now: Moment) -> None:
        if self._fed_ns is None:
            self._manager.ready(self._status())
        elif self._manager.watchdog_s is None or not self._due(now, self._fed_ns, self._manager.watchdog_s / 4):
            return
        else:
            self._manager.alive(self._status())
        self._fed_ns = now.monotonic_ns

    def _due(self, now: Moment, since_ns: int | None, after_s: float) -> bool:
        return since_ns is None or now.monotonic_ns - since_ns >= after_s * NS

    def _now(self) -> Moment:
        return Moment(self._clock.unix_ns(), self._clock.monotonic_ns())

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and not self._at_terminal:
            self._hung_up = True
            self.wake()
            return
        self.stop(f"stopped by {signal.Signals(number).name}")
