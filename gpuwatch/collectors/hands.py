"""What the node's own hands say (docs/hands.md), from the file in which they write it. Off unless the node has hands.

This collector only carries words: it neither knows the orders nor does anything. A file that is older than the hands
ever leave it is the word of hands that have ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from gpuwatch.clock import Clock, SystemClock
from gpuwatch.collectors import Collector, Reading, Sample, Unsupported
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.sdk.small_file import small_json

MOST_BYTES = 64 << 10
OLD_S = 90.0  # they tell at least every 30 s


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the two files are through which agent and hands speak."""

    enabled: bool = False
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    status_file: str = "/run/gpuwatch-hands/status"  # the hands write it
    order_file: str = "/run/gpuwatch/hands/order"  # the agent puts there what comes in the reply to a report


class _Reader:
    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._path = settings.status_file
        self._clock = clock
        self._answers: tuple[object, ...] | None = None

    def read(self) -> Reading:
        """Their last word. Urgent when an order was answered."""
        try:
            facts = small_json(self._path, HandsFacts, MOST_BYTES)
        except FileNotFoundError:
            raise Unsupported(f"no hands have written {self._path}") from None
        except (OSError, ValueError) as error:
            raise ProbeError(f"{self._path} cannot be read", why=str(error)) from error
        age_s = (self._clock.monotonic_ns() - facts.told_monotonic_ns) / 1e9
        if not 0 <= age_s <= OLD_S:
            raise ProbeError("the hands have said nothing", why=f"{self._path} is {age_s:.0f} s old; have they ended?")
        urgent = self._answers is not None and facts.answers != self._answers
        self._answers = facts.answers
        return Reading(facts=facts, urgent=urgent)

    def close(self) -> None:
        pass


def metrics(facts: HandsFacts) -> Iterable[Sample]:
    """Whether orders are taken."""
    text = "1 if the hands would look at an order now; 0: they refuse every one, for example because of a HOLD file."
    yield Sample(name="gpuwatch_hands_ready", help=text, value=not facts.refuses and bool(facts.nonce))


def open_reader(settings: Settings) -> _Reader:
    """A reader over the machine's own clock."""
    return _Reader(settings, SystemClock())


COLLECTOR = Collector(facts=HandsFacts, settings=Settings, open=open_reader, metrics=metrics)
