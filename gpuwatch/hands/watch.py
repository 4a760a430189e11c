"""The hands at work: look for an order, give out nonces, tell what became of the last orders. No port, no network."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import stat
import threading
from types import FrameType

import msgspec

from gpuwatch.clock import Clock
from gpuwatch.hands.carry import Hands
from gpuwatch.hands.settings import HandsSettings
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.order import MAX_ORDER_BYTES
from gpuwatch.notify import ServiceManager

log = logging.getLogger(__name__)

NS = 10**9
TELL_EVERY_S = 30.0  # though nothing has changed: an old word is one of hands that have ended
_encode = msgspec.json.Encoder().encode


class Watch:
    """One node's hands at work."""

    def __init__(self, settings: HandsSettings, clock: Clock, manager: ServiceManager) -> None:
        self._settings = settings
        self._clock = clock
        self._manager = manager
        self._hands: Hands | None = None
        self._seen: tuple[int, int, int] | None = None  # inode, mtime and size of the order file
        self._last = b""
        self._told: HandsFacts | None = None
        self._fed_ns = 0
        self._stop = threading.Event()
        self._complained = False

    def run(self, hands: Hands) -> None:
        """Until SIGTERM or SIGINT. A reboot under way is not ended by them: they are what it brings."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._hands = hands
        self.turn(hands)
        self._manager.ready(self._status())
        while not self._stop.wait(self._settings.look_every_s):
            self.turn(hands)
        self._manager.stopping("stopped")
        with contextlib.suppress(OSError):
            self._settings.status_file.unlink()

    def turn(self, hands: Hands) -> None:
        """One look."""
        hands.tick()
        text = self._order()
        if text:
            hands.take(text)
            hands.tick()
        self.alive(hands)

    def meanwhile(self) -> None:
        """While something is done: the agent is told that it was begun, and systemd that we live."""
        if self._hands is not None:
            self.alive(self._hands)

    def alive(self, hands: Hands) -> None:
        """Tell what is to be told."""
        facts = hands.facts()
        if self._told is None or self._is_news(facts, self._told):
            self._tell(facts)
        now_ns = self._clock.monotonic_ns()
        if self._manager.watchdog_s is not None and now_ns - self._fed_ns >= self._manager.watchdog_s / 4 * NS:
            self._fed_ns = now_ns
            self._manager.alive(self._status())

    def _is_news(self, facts: HandsFacts, told: HandsFacts) -> bool:
        if facts.told_monotonic_ns - told.told_monotonic_ns >= TELL_EVERY_S * NS:
            return True
        return msgspec.structs.replace(facts, told_monotonic_ns=told.told_monotonic_ns) != told

    def _tell(self, facts: HandsFacts) -> None:
        path = self._settings.status_file
        new = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(_encode(facts))
            new.chmod(0o644)  # nothing in it is secret: a nonce is of use to nobody without the key
            new.replace(path)
        except OSError as error:
            if not self._complained:
                log.error("%s cannot be written: %s; the aggregator will not know of these hands", path, error)
            self._complained = True
            return
        self._complained = False
        self._told = facts

    def _order(self) -> bytes:
        """A new order; empty: there is none. The folder is not ours: no link is followed, nothing large is read."""
        try:
            file = os.open(self._settings.order_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._seen = None
            return b""
        try:
            found = os.fstat(file)
            identity = (found.st_ino, found.st_mtime_ns, found.st_size)
            if identity == self._seen or not stat.S_ISREG(found.st_mode):
                return b""
            text = os.read(file, MAX_ORDER_BYTES + 1)
            self._seen = identity
        except OSError:
            return b""
        finally:
            os.close(file)
        if text == self._last:
            return b""
        self._last = text
        return text

    def _status(self) -> str:
        facts = self._told
        if facts is None:
            return "cannot tell anybody what they do"
        last = facts.answers[-1] if facts.answers else None
        words = f"last: {last.kind} {last.target}: {last.state}" if last is not None else "nothing was ordered yet"
        return f"{words}; {facts.refuses}" if facts.refuses else words

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._hands is not None and self._hands.rebooting:
            log.warning("%s comes while the node is to reboot: going on", signal.Signals(number).name)
            return
        self._stop.set()
