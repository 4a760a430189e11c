"""Sends reports in a thread of its own: in order, each until it is accepted or refused for ever, through the spool."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from gpuwatch.agent.backoff import BackOff
from gpuwatch.agent.spool import Spool
from gpuwatch.agent.wire_client import Line, Outcome
from gpuwatch.clock import Clock

log = logging.getLogger(__name__)

NS = 10**9
MOST_IN_MEMORY = 64  # reports that the disk did not take
MOST_QUEUED, MOST_QUEUED_BYTES = 256, 8 << 20  # that came while one try took long
TRY_TAKES_S = 30.0  # an answer that trickles in, a byte every few seconds, is none


class Parcel(msgspec.Struct, frozen=True):
    """One report, encoded once: a retry sends the same bytes, so that it is the same report."""

    data: bytes
    events: bool = False  # kept longest, and sent without waiting for the end of a pause


class Sender:
    """One queue, one thread, one or two aggregators of which one at a time is spoken to."""

    def __init__(self, lines: Sequence[Line], spool: Spool, back_off: BackOff, clock: Clock) -> None:
        self._lines = list(lines)
        self._spool = spool
        self._back_off = back_off
        self._clock = clock
        self._other: tuple[list[Line], BackOff] | None = None  # to be spoken to from the next try on
        self._turn = 0
        self._tried = 0  # addresses that failed in a row
        self._trying_since_ns: int | None = None
        self._outbox: deque[Parcel] = deque()
        self._change = threading.Condition()
        self._stopping = False
        self._cut = False
        self._hurry = False
        self.accepted_count = 0
        self.repeated_count = 0
        self.refused: Counter[int] = Counter()  # HTTP status -> reports
        self.failures: Counter[str] = Counter()  # HTTP status or "unreachable" -> tries
        self.last_accepted_unix_ns: int | None = None
        self.last_trouble = ""
        self._thread = threading.Thread(target=self._work, name="sender", daemon=True)

    def start(self) -> None:
        """Begin; with what an earlier agent left in the spool, if anything."""
        self._thread.start()

    def change(self, lines: Sequence[Line], back_off: BackOff) -> None:
        """Other aggregators, from the next try on; what waits is theirs."""
        with self._change:
            self._other = list(lines), back_off
            self._hurry = True
            self._change.notify()

    def put(self, parcel: Parcel) -> None:
        """Queue a report. Never waits."""
        with self._change:
            self._outbox.append(parcel)
            while len(self._outbox) > MOST_QUEUED or sum(len(held.data) for held in self._outbox) > MOST_QUEUED_BYTES:
                if not self._give_up_one("memory"):
                    break
            self._hurry |= parcel.events
            self._change.notify()
        began_ns = self._trying_since_ns
        if began_ns is not None and self._clock.monotonic_ns() - began_ns > TRY_TAKES_S * NS:
            self._lines[self._turn].interrupt()

    def waiting_count(self) -> int:
        """Reports that are not delivered yet."""
        return len(self._outbox) + len(self._spool)

    def spool_bytes(self) -> int:
        """Bytes of them that are on disk."""
        return self._spool.bytes

    def lost(self) -> dict[str, int]:
        """Reports that will never be delivered, by reason."""
        return dict(self._spool.lost)

    def finish(self, last: Parcel, within_s: float) -> bool:
        """Queue a last report and wait until all is delivered, or the time is over: then the rest goes to the spool."""
        with self._change:
            self._outbox.append(last)
            self._hurry = self._stopping = True
            self._change.notify()
        self._thread.join(within_s)
        if self._thread.is_alive():
            self._cut = True
            for line in self._lines:
                line.interrupt()
            self._thread.join(0.2)
        self._to_disk()  # even if a name look-up holds the thread: what it may still deliver is then delivered twice
        return self.waiting_count() == 0

    def _work(self) -> None:
        while not self._cut:
            with self._change:
                while not self._stopping and not self._outbox and not len(self._spool):
                    self._change.wait()
                self._hurry = False
                self._take_other()
            try:
                pause_s = self._send_next()
            except Exception as error:  # whatever it is, it must not silence this node for ever
                log.exception("a report could not be sent")
                self.failures["fault"] += 1
                self.last_trouble = f"{type(error).__name__}: {error}"
                pause_s = self._back_off.failed()
            if pause_s is None:
                if self._stopping and not self.waiting_count():
                    return
                continue
            with self._change:
                if self._stopping:
                    return  # the spool keeps what is left; the next agent sends it
                self._change.wait_for(lambda: self._hurry or self._stopping, pause_s)

    def _take_other(self) -> None:
        if self._other is None:
            return
        for line in self._lines:
            line.close()
        self._turn = self._tried = 0
        (self._lines, self._back_off), self._other = self._other, None

    def _send_next(self) -> float | None:
        """One try. None: go on; else seconds to wait."""
        if len(self._spool):
            self._to_disk()  # behind those that are older, of which some may have to go for it
        stored = self._spool.first()
        parcel: Parcel | None = None
        if stored is not None:
            number, data = stored
        elif self._outbox:
            parcel = self._outbox[0]
            number, data = 0, parcel.data
        else:
            return None
        line = self._lines[self._turn]
        self._trying_since_ns = self._clock.monotonic_ns()
        outcome = line.send(data)
        self._trying_since_ns = None
        if outcome.kind == "again":
            return self._failed(outcome)
        self._tried = 0
        self._back_off.succeeded()
        if outcome.kind == "refused":
            self.refused[outcome.code] += 1
            trouble = f"{line.url} refused a report for ever: {outcome.why}"
            if trouble != self.last_trouble:  # a whole spool may be refused for one reason
                log.error("%s", trouble)
            self.last_trouble = trouble
            self._spool.set_aside(data, f"{outcome.code} {outcome.why}")
        else:
            if self.last_trouble:
                log.warning("%s takes reports again; %d wait", line.url, self.waiting_count() - 1)
            self.accepted_count += 1
            self.repeated_count += outcome.repeated
            self.last_accepted_unix_ns = self._clock.unix_ns()
            self.last_trouble = ""
        if parcel is None:
            self._spool.done(number)
        else:
            self._taken(parcel)
        return None

    def _failed(self, outcome: Outcome) -> float | None:
        self.failures[str(outcome.code or "unreachable")] += 1
        line = self._lines[self._turn]
        if not self.last_trouble:
            log.warning("%s takes no reports: %s", line.url, outcome.why)
        self.last_trouble = f"{line.url}: {outcome.why}"
        self._to_disk()
        self._turn = (self._turn + 1) % len(self._lines)
        self._tried += 1
        if self._tried < len(self._lines):
            return None  # the other address first
        self._tried = 0
        return self._back_off.failed(outcome.wait_s)

    def _to_disk(self) -> None:
        """What waits in memory goes behind what waits on disk; what the disk does not take stays, within bounds."""
        while self._outbox:
            with self._change:
                parcel, pressing = self._outbox[0], self._is_pressing()
            if not self._spool.put(parcel.data, events=parcel.events, give_up=pressing):
                break
            self._taken(parcel)
        with self._change:
            while len(self._outbox) > MOST_IN_MEMORY:
                self._give_up_one("disk")

    def _is_pressing(self) -> bool:
        """An older gauge may go from a full disk: memory has no room either, or an event waits that must outlive us."""
        return len(self._outbox) > MOST_IN_MEMORY or any(parcel.events for parcel in self._outbox)

    def _taken(self, parcel: Parcel) -> None:
        with self._change:
            if self._outbox and self._outbox[0] is parcel:  # else a last look before the end took it already
                self._outbox.popleft()

    def _give_up_one(self, why: str) -> bool:
        """The oldest gauge, else the oldest event; never the very first report, which may be on its way."""
        behind = range(1, len(self._outbox))
        if not behind:
            return False
        del self._outbox[next((at for at in behind if not self._outbox[at].events), 1)]
        self._spool.lost[why] += 1
        return True
