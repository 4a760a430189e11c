"""Shared causes that stand: what the last ticks found, by pool, and since when. One for all who tell of them."""

from __future__ import annotations

import threading

import msgspec

from gpuwatch.aggregator.scene import Stage
from gpuwatch.aggregator.standing import Standing
from gpuwatch.clock import Clock
from gpuwatch.model.evidence import SharedCause

LINGER_S = 60.0  # nodes come and go in it; it is over when none of the ticks of a minute finds it


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """A shared cause, in which pool, and since when."""

    cause: SharedCause
    pool: str  # empty: nodes of several pools
    since_unix_ns: int

    def key(self) -> tuple[str, ...]:
        """What makes it the same, however many nodes show it."""
        subject = self.cause.subject
        return (self.cause.rule, subject.kind, subject.id, self.pool, self.cause.cause)


class Sharing:
    """Safe to ask from any thread."""

    def __init__(self, *, stage: Stage, clock: Clock) -> None:
        self._stage = stage
        self._clock = clock
        self._lock = threading.Lock()
        self._standing: Standing[tuple[str, ...], Together] = Standing(LINGER_S)
        self._began: dict[tuple[str, ...], int] = {}

    def now(self) -> tuple[Together, ...]:
        """Each once, the largest first."""
        with self._lock:
            scene = self._stage.scene
            pools = {view.slot: view.pool for view in scene.views.values()} if scene.shared else {}
            found = {}
            for cause in scene.shared:
                if any(_inside(cause, other) for other in scene.shared):
                    continue  # a rack's fault that has spread is one of the pool
                names = {pools.get(slot, "") for slot in cause.slots}
                pool = names.pop() if len(names) == 1 else ""
                one = Together(cause=cause, pool=pool, since_unix_ns=self._clock.unix_ns())
                key = one.key()
                began_ns = self._began.setdefault(key, one.since_unix_ns)
                found[key] = msgspec.structs.replace(one, since_unix_ns=began_ns)
            standing = self._standing.look(found, self._clock.monotonic_ns())
            self._began = {one.key(): one.since_unix_ns for one in standing}
            return tuple(sorted(standing, key=lambda one: (-len(one.cause.slots), one.key())))


def _inside(cause: SharedCause, other: SharedCause) -> bool:
    return (cause.rule, cause.cause) == (other.rule, other.cause) and set(cause.slots) < set(other.slots)
