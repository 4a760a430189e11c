"""Keeps one probe child going, and turns its silence into evidence.

Silent past its deadline: the source is `hung`, with the wait channel read before anything is done to the child. Silent
for much longer: one SIGKILL, never a second (killing a process inside a driver call can make it worse,
NVIDIA/dcgm-exporter#84). If that does not end it, it is stuck in the kernel: it is left alone and counted, and no other
child is started until it is gone, by this agent or any later one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from gpuwatch.agent.abandoned import ORPHAN_ENDS_S, Abandoned
from gpuwatch.agent.answers import Latest
from gpuwatch.agent.book import Book, ChildRecord
from gpuwatch.agent.child import Child, Processes, exit_words
from gpuwatch.agent.frames import Frame, Unpacker
from gpuwatch.collectors import Collector
from gpuwatch.errors import ProbeError
from gpuwatch.model.moment import Moment
from gpuwatch.model.wire import NO_FACTS, Envelope

log = logging.getLogger(__name__)

NS = 10**9
KILL_TAKES_S = 1.0  # a killed process that is not in the kernel is gone long before
EXIT_LOOK_S = 1.0  # between two looks whether one has ended that has not closed its pipe
MUTE_LOOK_S = 0.2  # between two looks at a child that has closed its pipe and not ended yet
AWAY_S = 1.0  # we wake this much too late: it was us who slept (SIGSTOP, a frozen machine), not the child
UNSUPPORTED_AGAIN_S = 600.0
RELEASE_LOOK_S = 1.0  # between two looks whether a release is over
MOST_INTERVALS = 60  # between two tries to start a probe that hangs or crashes


class Probe:
    """One source in a child process."""

    own_clock = True

    def __init__(
        self,
        name: str,
        leaf: Collector[Any],
        settings: Any,
        *,
        boot_id: str,
        book: Book,
        processes: Processes,
        released: Callable[[Moment], str] = lambda _: "",
    ) -> None:
        """`released`: why there must be no child now; empty: there may be one."""
        self.name = name
        self._leaf = leaf
        self._take_settings(settings)
        self._released = released
        self._leaving = False  # the child was sent away
        self._boot_id = boot_id
        self._book = book
        self._processes = processes
        self._child: Child | None = None
        self._unpacker = Unpacker()
        self._state: Literal["waiting", "running", "killed", "stuck"] = "waiting"
        self._start_ns = 0  # when to start the next child
        self._due_ns = 0  # when its next reading was to begin
        self._mute_ns: int | None = None  # since when its pipe is closed
        self._killed_ns = 0
        self._failures = 0
        self._abandoned: Abandoned | None = None
        self._look_ns = 0  # when to look again at a stuck one, or whether one that runs has ended
        self._latest: Latest | None = None
        self._urgent = self._hurried = False
        self._fresh_ns: int | None = None
        self._counts: Counter[str] = Counter()
        record = book.read()
        if record is not None and record.boot_id == boot_id and processes.is_alive(record.pid, record.start_ticks):
            self._state, self._abandoned = "stuck", Abandoned(record, book, processes)

    def change(self, settings: Any) -> None:
        """Go on with other settings: the child makes room for one that has them."""
        self._take_settings(settings)
        self._start_ns = 0
        self._send_away()

    def tick(self, now: Moment) -> None:
        """Start, watch, kill or wait, as the time asks."""
        released = self._released(now)
        if released:
            self._send_away()
        if self._state == "stuck":
            self._watch_stuck(now)
        if self._state == "waiting" and released:
            self._stay_away(released, now)
        elif self._state == "waiting" and now.monotonic_ns >= self._start_ns:
            self._start(now)
        elif self._state == "running":
            if now.monotonic_ns - self.wake_ns() > AWAY_S * NS:
                self._due_ns = now.monotonic_ns
            self._watch(now)
        elif self._state == "killed":
            self._watch_killed(now)

    def fileno(self) -> int:
        running = self._child is not None and self._state == "running" and self._mute_ns is None
        return self._child.fileno() if running and self._child is not None else -1

    def readable(self, now: Moment) -> None:
        if self._child is None:
            return
        said = self._child.read()
        if not said:  # it ended, or ends, which can take for ever inside the driver: not to be selected on again
            self._mute_ns = now.monotonic_ns
        self._hear(said, now)
        if self._state == "running" and not said:
            self._watch(now)

    def ask(self, now: Moment) -> None:
        pass  # it reads on its own clock

    def busy(self) -> bool:
        return False

    def fresh_ns(self) -> int | None:
        return self._fresh_ns

    def has_more(self) -> bool:
        return False

    def expected_ns(self, after_ns: int) -> int | None:
        if self._state != "running" or self._is_hung():
            return None
        every_ns = int(self._interval_s * NS)
        return self._due_ns + max(0, -(-(after_ns - self._due_ns) // every_ns)) * every_ns

    def wake_ns(self) -> int:
        if self._state == "waiting":
            return self._start_ns
        if self._state == "killed":
            return self._killed_ns + int(KILL_TAKES_S * NS)
        if self._state == "stuck":
            return self._look_ns
        if self._mute_ns is not None and not self._is_hung():
            return self._mute_ns + int(MUTE_LOOK_S * NS)
        return self._due_ns + int((self._kill_after_s if self._is_hung() else self._deadline_s) * NS)

    def latest(self) -> Latest | None:
        return self._latest

    def take(self) -> tuple[Envelope, bool] | None:
        self._fresh_ns = None
        if self._latest is None:
            return None
        return self._latest.envelope(self._latest.facts or NO_FACTS), False

    def hurry(self) -> None:
        """Read at once, and let a report carry it: another source was blind."""
        if self._state == "running" and self._child is not None and not self._leaving:
            self._child.hurry()
            self._hurried = True

    def urgent(self) -> bool:
        was, self._urgent = self._urgent, False
        return was

    def readings(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        """End our side. A healthy child ends by itself; one that hangs gets its SIGKILL if it had none."""
        if self._child is not None:
            if self._state == "running" and self._is_hung():
                self._record(killed=True)
                self._child.kill()
            self._child.let_go()
            self._child.exit_code()

    def _take_settings(self, settings: Any) -> None:
        self._settings = settings
        self._interval_s = float(settings.interval_s)
        self._deadline_s = float(getattr(settings, "deadline_s", self._leaf.deadline_s))
        kill_after_s = float(getattr(settings, "kill_after_s", 6 * self._leaf.deadline_s))
        self._kill_after_s = max(self._deadline_s, kill_after_s)

    def _send_away(self) -> None:
        """A child that hangs is watched as before; it learns of this when its call comes back."""
        if self._state == "running" and self._child is not None and not self._leaving:
            self._child.send_away()
            self._leaving = True

    def _stay_away(self, released: str, now: Moment) -> None:
        self._start_ns = now.monotonic_ns + int(RELEASE_LOOK_S * NS)
        if self._latest is None or self._latest.reason != released:
            self._tell(now, "failed", released)

    def _is_hung(self) -> bool:
        return self._latest is not None and self._latest.status == "hung"

    def _start(self, now: Moment) -> None:
        try:
            self._child = self._processes.start(self.name, self._settings)
        except OSError as error:
            self._failures += 1
            self._start_ns = now.monotonic_ns + self._back_off_ns()
            if not self._is_hung():
                self._tell(now, "failed", f"its child process cannot be started: {error}")
            return
        self._unpacker = Unpacker()
        self._state, self._mute_ns, self._leaving = "running", None, False
        self._due_ns = now.monotonic_ns + int(self._deadline_s * NS)  # starting may take as long again as a reading
        self._record(killed=False)

    def _hear(self, said: bytes, now: Moment) -> None:
        assert self._child is not None
        try:
            for frame in self._unpacker.feed(said):
                self._absorb(frame, now)
        except ProbeError as error:
            self._tell(now, "failed", str(error.why))
            self._child.kill()
            self._state, self._killed_ns = "killed", now.monotonic_ns

    def _absorb(self, frame: Frame, now: Moment) -> None:
        self._failures = 0 if frame.status != "failed" else self._failures
        self._due_ns = now.monotonic_ns + int(frame.next_in_s * NS)
        latest = Latest(
            collector=self.name,
            status=frame.status,
            at_unix_ns=frame.at_unix_ns,
            took_s=frame.took_s,
            reason=frame.reason,
            facts=frame.facts if frame.status == "ok" else None,
            gaps=frame.gaps,
        )
        self._urgent |= frame.urgent or self._hurried
        self._hurried = False
        self._fresh_ns = now.monotonic_ns
        self._now_latest(latest)

    def _watch(self, now: Moment) -> None:
        assert self._child is not None
        if now.monotonic_ns < min(self._look_ns, self._due_ns + int(self._deadline_s * NS)) and self._mute_ns is None:
            return  # while it lives its pipe is open
        self._look_ns = now.monotonic_ns + int(EXIT_LOOK_S * NS)
        code = self._child.exit_code()
        if code is not None or now.monotonic_ns - self._due_ns >= self._deadline_s * NS:
            self._hear(self._child.read(), now)  # its last words may lie in the pipe
            if self._state != "running":
                return
        if code is not None:
            self._ended(code, now)
            return
        if self._mute_ns is not None:
            self._mute_ns = now.monotonic_ns
        silent_s = (now.monotonic_ns - self._due_ns) / NS
        if silent_s >= self._deadline_s and not self._is_hung():
            doing = self._child.doing()
            where = f" in {doing}" if doing else ""
            reason = f"no answer for more than {self._deadline_s:g} s{where}; child {self._child.waits_for()}"
            self._tell(now, "hung", reason, since_unix_ns=now.unix_ns - (now.monotonic_ns - self._due_ns))
            self._record(killed=False)
        if silent_s >= self._kill_after_s and self._is_hung():
            self._record(killed=True)
            self._child.kill()
            self._state, self._killed_ns = "killed", now.monotonic_ns

    def _watch_killed(self, now: Moment) -> None:
        assert self._child is not None
        code = self._child.exit_code()
        if code is not None:
            self._ended(code, now)
        elif now.monotonic_ns - self._killed_ns >= KILL_TAKES_S * NS:
            record = self._child_record(self._latest, killed=True)
            self._state, self._abandoned = "stuck", Abandoned(record, self._book, self._processes)
            log.warning("%s: its probe %d cannot be killed and is left alone", self.name, self._child.pid)
            self._tell(now, "hung", record.reason, since_unix_ns=record.since_unix_ns, abandoned_count=1)

    def _watch_stuck(self, now: Moment) -> None:
        assert self._abandoned is not None
        self._look_ns = now.monotonic_ns + int(min(self._interval_s, ORPHAN_ENDS_S) * NS)
        if self._child is not None:
            self._child.exit_code()  # ours: waited for, so that it does not stay a zombie
        record = self._abandoned.record
        if self._abandoned.is_gone(self.name, now):
            self._let_go()
            self._abandoned = None
            self._state, self._start_ns = "waiting", now.monotonic_ns
        elif record.killed and not self._is_hung():
            self._tell(now, "hung", record.reason, since_unix_ns=record.since_unix_ns, abandoned_count=1)

    def _ended(self, code: int, now: Moment) -> None:
        was_killed = self._state == "killed"
        self._let_go()
        self._book.clear()
        self._state = "waiting"
        if self._latest is not None and self._latest.status == "unsupported":
            self._start_ns = now.monotonic_ns + int(UNSUPPORTED_AGAIN_S * NS)
            return
        spent = self._latest is not None and self._latest.status == "ok"  # and it said all that there was to say
        if code == 0 and (spent or self._leaving):
            self._start_ns = now.monotonic_ns if self._leaving else max(now.monotonic_ns, self._due_ns)
            return
        self._failures += 1
        self._start_ns = now.monotonic_ns + self._back_off_ns()
        if not self._is_hung() and not was_killed:
            self._tell(now, "failed", f"its probe ended with {exit_words(code)}")

    def _back_off_ns(self) -> int:
        return int(min(MOST_INTERVALS, 2 ** (self._failures - 1)) * self._interval_s * NS)

    def _let_go(self) -> None:
        if self._child is not None:
            self._child.let_go()
        self._child = None

    def _record(self, *, killed: bool) -> None:
        self._book.write(self._child_record(self._latest if self._is_hung() else None, killed=killed))

    def _child_record(self, about: Latest | None, *, killed: bool) -> ChildRecord:
        assert self._child is not None
        return ChildRecord(
            pid=self._child.pid,
            start_ticks=self._child.start_ticks,
            boot_id=self._boot_id,
            since_unix_ns=about.since_unix_ns if about else None,
            reason=about.reason or "" if about else "",
            killed=killed,
        )

    def _tell(
        self,
        now: Moment,
        status: Literal["failed", "hung"],
        reason: str,
        *,
        since_unix_ns: int | None = None,
        abandoned_count: int = 0,
    ) -> None:
        if self._is_hung() and self._latest is not None and self._latest.since_unix_ns is not None:
            since_unix_ns = self._latest.since_unix_ns  # the first silence, however many children came after
        latest = Latest(collector=self.name, status=status, at_unix_ns=now.unix_ns, reason=reason)
        self._now_latest(msgspec.structs.replace(latest, since_unix_ns=since_unix_ns, abandoned_count=abandoned_count))

    def _now_latest(self, latest: Latest) -> None:
        self._urgent |= self._latest is None or self._latest.status != latest.status
        self._counts[latest.status] += 1
        self._latest = latest
