"""A child that cannot be ended: stuck in the kernel, or left by an earlier agent. Looked at until it is gone."""

from __future__ import annotations

import logging

import msgspec

from gpuwatch.agent.book import Book, ChildRecord
from gpuwatch.agent.child import Processes
from gpuwatch.model.moment import Moment

log = logging.getLogger(__name__)

NS = 10**9
ORPHAN_ENDS_S = 2.0  # an earlier agent's healthy child sees its input end


class Abandoned:
    """One of them. It gets one SIGKILL if it had none."""

    def __init__(self, record: ChildRecord, book: Book, processes: Processes) -> None:
        self.record = record
        self._book = book
        self._processes = processes
        self._found_ns: int | None = None

    def is_gone(self, source: str, now: Moment) -> bool:
        """Look. One that does not end by itself is killed, and written down as such, first."""
        record = self.record
        if not self._processes.is_alive(record.pid, record.start_ticks):
            log.warning("%s: the stuck probe %d is gone", source, record.pid)
            self._book.clear()
            return True
        if self._found_ns is None:
            self._found_ns = now.monotonic_ns
        if not record.killed and now.monotonic_ns - self._found_ns >= ORPHAN_ENDS_S * NS:
            waits = self._processes.what_it_waits_for(record.pid)
            reason = record.reason or f"an earlier agent's probe has not ended; child {waits}"
            since_unix_ns = record.since_unix_ns or now.unix_ns
            self.record = msgspec.structs.replace(record, killed=True, reason=reason, since_unix_ns=since_unix_ns)
            self._book.write(self.record)
            self._processes.kill_once(record.pid, record.start_ticks)
        return False
