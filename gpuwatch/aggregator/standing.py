"""What stands for a while, out of what is seen at each look: no page for a moment, and no end for one either. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Standing(Generic[K, T]):
    """Ages are on the monotonic clock: a step of the wall clock neither begins nor ends anything."""

    def __init__(self, linger_s: float) -> None:
        """`linger_s`: what is not seen for so long is over."""
        self._linger_ns = int(linger_s * 1e9)
        self._seen: dict[K, tuple[int, int, T]] = {}  # first and last time (monotonic), and as it was then

    def look(
        self,
        found: Mapping[K, T],
        now_ns: int,
        *,
        after_s: Callable[[K], float] = lambda _key: 0.0,
        over: Callable[[K], bool] = lambda _key: False,
    ) -> tuple[T, ...]:
        """What stands now. `after_s`: how long it must have been seen. `over`: what is not seen is over at once."""
        for key, value in found.items():
            first_ns = self._seen[key][0] if key in self._seen else now_ns
            self._seen[key] = (first_ns, now_ns, value)
        for key, (_, last_ns, _) in list(self._seen.items()):
            if key not in found and (over(key) or now_ns - last_ns > self._linger_ns):
                del self._seen[key]
        return tuple(
            value for key, (first_ns, _, value) in self._seen.items() if now_ns - first_ns >= after_s(key) * 1e9
        )
