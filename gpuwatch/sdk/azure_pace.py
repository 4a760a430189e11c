"""How often a change under way is looked at, and for how long we have known of it. In this process's memory only."""

from __future__ import annotations

import msgspec

from gpuwatch.clock import Clock


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at a change found. Not done: look again later."""

    done: bool
    machine: str = ""
    because: str = ""


class Pace:
    """Steps are carried on several times a second; Azure counts each question against a limit."""

    def __init__(self, clock: Clock, *, look_every_s: float, most_s: float) -> None:
        self._clock = clock
        self._look_every_s = look_every_s
        self._most_s = most_s
        self._not_before: dict[str, tuple[int, str]] = {}  # action -> when to look again, and why it waits
        self._since_ns: dict[str, int] = {}  # action -> first seen under way by this process

    def early(self, action_id: str) -> Outcome | None:
        """The last answer, while it is too soon to ask again."""
        until_ns, because = self._not_before.get(action_id, (0, ""))
        return None if self._clock.monotonic_ns() >= until_ns else Outcome(done=False, because=because)

    def pending(self, action_id: str, because: str, wait_s: float = 0.0) -> Outcome:
        """Not yet. `wait_s`: the patience that Azure asked for."""
        patience_ns = int(min(max(wait_s, self._look_every_s), self._most_s) * 1e9)
        self._not_before[action_id] = (self._clock.monotonic_ns() + patience_ns, because)
        return Outcome(done=False, because=because)

    def age_s(self, action_id: str) -> float:
        """Since we know of it. Monotonic: no step of a wall clock makes a young change old; a restart begins anew."""
        now_ns = self._clock.monotonic_ns()
        return (now_ns - self._since_ns.setdefault(action_id, now_ns)) / 1e9

    def forget(self, action_id: str) -> None:
        """It is over."""
        self._not_before.pop(action_id, None)
        self._since_ns.pop(action_id, None)
