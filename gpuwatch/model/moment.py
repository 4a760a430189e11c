"""One reading of both clocks, taken together."""

from __future__ import annotations

import msgspec


class Moment(msgspec.Struct, frozen=True, gc=False):
    """Ages are differences of `monotonic_ns` (it never steps); records carry `unix_ns`."""

    unix_ns: int
    monotonic_ns: int

    def age_s(self, monotonic_ns: int) -> float:
        """Seconds since a monotonic stamp of the same process."""
        return (self.monotonic_ns - monotonic_ns) / 1e9
