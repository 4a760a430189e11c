"""Durable writes for the server's thread: many reports' events share one transaction and one wait for the disk."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from gpuwatch.errors import GpuwatchError
from gpuwatch.store.records import EventKey, LastSeen, StoredEvent
from gpuwatch.store.sqlite import Store

LOG = logging.getLogger("gpuwatch.committer")
_Job = tuple[Sequence[StoredEvent], Sequence[LastSeen], "Future[set[EventKey]]"]
MAX_BATCH = 512


class Committer:
    """One thread that writes whatever has gathered while it wrote the batch before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="committer", daemon=True)
        self._thread.start()

    def keep(self, events: Sequence[StoredEvent], seen: Sequence[LastSeen] = ()) -> Future[set[EventKey]]:
        """Store these; the future gives the events that were new, once they are on the disk, or the `StoreError`."""
        future: Future[set[EventKey]] = Future()
        self._jobs.put((events, seen, future))
        return future

    def close(self) -> None:
        """Write what is queued and end."""
        self._jobs.put(None)
        self._thread.join(timeout=10.0)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            batch = [job]
            last = False
            while len(batch) < MAX_BATCH:
                try:
                    more = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    last = True
                    break
                batch.append(more)
            self._write(batch)
            if last:
                return

    def _write(self, batch: list[_Job]) -> None:
        events = [event for job in batch for event in job[0]]
        seen = [row for job in batch for row in job[1]]
        try:
            fresh = self._store.keep(events, seen)
        except Exception as error:  # whatever it was: who waits must be told, and the thread must go on
            if not isinstance(error, GpuwatchError):
                LOG.exception("a batch of events met a bug of ours")
            for job in batch:
                job[2].set_exception(error)
            return
        for own, _, future in batch:
            new = {item.key() for item in own} & fresh
            fresh -= new  # two reports with the same event in one batch: the first counts it
            future.set_result(new)
