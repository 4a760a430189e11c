"""The threads that read sources: as a rule one that reads all that are due, one after another; where one of them takes
long, another thread goes on with the rest. So a source that blocks blocks nobody else, and a round of many sources is
two wakings, one of the thread and one of the loop, not two for each source.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from gpuwatch.clock import Clock

log = logging.getLogger(__name__)

PATIENCE_NS = 50_000_000  # so long the rest of a lot waits for one that takes long, then it is another thread's
MOST_IDLE = 2  # threads that wait for work; those that come free beside them end
AGAIN_NS = 1_000_000_000  # between two tries to start a thread where the node, or our unit, has no more to give
NEVER_NS = 1 << 62


class Work(Protocol):
    """Something that may take long."""

    def do(self) -> bool:
        """Do it. True: the loop must hear of it now, not when the whole lot is done."""


class _Hand:
    """One thread. `lot` is what it has been given and not begun; None: it is free."""

    def __init__(self) -> None:
        self.lots: queue.SimpleQueue[deque[Work] | None] = queue.SimpleQueue()
        self.lot: deque[Work] | None = None
        self.since_ns = 0


class Crew:
    """Used by one thread, the loop's. What is asked for is begun by `send_off`."""

    def __init__(self, wake: Callable[[], None], clock: Clock) -> None:
        """`wake` is called from the threads."""
        self._wake = wake
        self._clock = clock
        self._hands: list[_Hand] = []
        self._asked: deque[Work] = deque()
        self._hired = 0
        self._no_more_until_ns = 0

    def ask(self, work: Work, *, first: bool = False) -> None:
        """Do this soon; before all others that are asked for now."""
        if first:
            self._asked.appendleft(work)
        else:
            self._asked.append(work)

    def send_off(self) -> None:
        """Begin what was asked for. Best just before the loop sleeps: until then it holds the interpreter. Where no
        thread can be started it stays asked for, until one comes free or can be started."""
        if not self._asked:
            return
        hand = next((hand for hand in self._hands if hand.lot is None), None) or self._hire()
        if hand is None:
            return
        hand.lot, self._asked, hand.since_ns = self._asked, deque(), self._clock.monotonic_ns()
        hand.lots.put(hand.lot)

    def tick(self, now_ns: int) -> None:
        """Ask anew for what stands behind something that takes long; let go who has nothing to do."""
        for hand in self._hands:
            lot = hand.lot  # looked at once: its thread takes from it, and takes it away, at any moment
            while lot and now_ns - hand.since_ns >= PATIENCE_NS:
                try:
                    self._asked.append(lot.popleft())
                except IndexError:
                    break  # it has just gone on by itself
        idle = [hand for hand in self._hands if hand.lot is None]
        for hand in idle[MOST_IDLE:]:
            self._hands.remove(hand)
            hand.lots.put(None)

    def wake_ns(self) -> int:
        """When `tick` has something to do at the latest."""
        since = [hand.since_ns for hand in self._hands if hand.lot]
        if self._asked:
            since.append(max(self._clock.monotonic_ns(), self._no_more_until_ns - PATIENCE_NS))
        return min(since) + PATIENCE_NS if since else NEVER_NS

    def _hire(self) -> _Hand | None:
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._no_more_until_ns:
            return None
        hand = _Hand()
        try:
            threading.Thread(target=self._work, args=(hand,), name=f"sources-{self._hired + 1}", daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            if self._no_more_until_ns == 0:
                log.warning("no thread can be started: %s; sources wait until one comes free", error)
            self._no_more_until_ns = now_ns + AGAIN_NS
            return None
        self._hired, self._no_more_until_ns = self._hired + 1, 0
        self._hands.append(hand)
        return hand

    def _work(self, hand: _Hand) -> None:
        while (lot := hand.lots.get()) is not None:
            while lot:
                try:
                    work = lot.popleft()
                except IndexError:
                    break  # the rest was taken from us
                try:
                    if work.do() and lot:
                        self._wake()
                except Exception:
                    log.exception("a source could not be read")
            hand.lot = None
            self._wake()
