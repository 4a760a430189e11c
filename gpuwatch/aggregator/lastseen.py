"""Keeps what must survive a restart of each machine: who it was, its boot, its agent, when it was last heard."""

from __future__ import annotations

import logging
import threading

from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.turns import in_turns
from gpuwatch.errors import StoreError
from gpuwatch.store.sqlite import Store

LOG = logging.getLogger("gpuwatch.lastseen")
EVERY_S = 3.0  # by the monotonic clock: a restart's memory must not wait for the wall clock
TURNS = 10


class LastSeenKeeper:
    """What changed in kind is written at once, everything else in turns: each row at least every half minute."""

    def __init__(self, store: Store, fleet: Fleet) -> None:
        self._store = store
        self._fleet = fleet
        self._kept: dict[str, tuple[object, ...]] = {}
        self._turn = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="last-seen", daemon=True)

    def start(self) -> None:
        """Write every few seconds until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Write everything once more."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        try:
            self._store.keep(seen=[record.last_seen() for record in self._fleet.machines()])
        except StoreError as error:
            LOG.error("%s", error)

    def flush(self) -> None:
        """Write what is due. Raises `StoreError`; then everything is due again."""
        self._turn += 1
        rows = []
        for number, record in enumerate(in_turns(self._fleet.machines())):
            heard = record.heard
            shape = (record.slot, record.lifecycle, heard and heard.boot, heard and heard.agent_id)
            if self._kept.get(record.machine) != shape or (number + self._turn) % TURNS == 0:
                self._kept[record.machine] = shape
                rows.append(record.last_seen())
        try:
            self._store.keep(seen=rows)
        except StoreError:
            self._kept.clear()
            raise

    def _work(self) -> None:
        while not self._stopped.wait(EVERY_S):
            try:
                self.flush()
            except StoreError:
                continue  # the brain says it, and is blind meanwhile
