"""Whether two log lines are close in time, for every way in which a kernel log prints time.

Only nearness is asked, so a month may stay in any language and a year may be missing.
"""

from __future__ import annotations

import re

from gpuwatch.faults.prefix import Record

_CLOCK = re.compile(r"(?<![0-9a-fA-F:])(\d{1,2}):(\d\d)(?::(\d\d))?")
_DAY = re.compile(r"(?<![\d:.+-])(\d{1,2})(?![\d:])")
_DATE = re.compile(r"(\d{4}-\d\d)-(\d\d)")
_WORD = re.compile(r"[^\W\d_]+|\d{4}")
_UNIX = re.compile(r"\d{9,11}\.\d+")


def apart(one: Record, other: Record, limit_s: float) -> bool:
    """Whether two messages are surely further apart than this. False where their times cannot be compared."""
    if one.uptime_us is not None and other.uptime_us is not None:
        return abs(other.uptime_us - one.uptime_us) > limit_s * 1e6
    if one.stamp == other.stamp or not one.stamp or not other.stamp:
        return False
    first, second = _wall(one.stamp), _wall(other.stamp)
    if first is None or second is None:
        return False
    return first[0] != second[0] or abs(second[1] - first[1]) > limit_s


def _wall(stamp: str) -> tuple[str, float] | None:
    """`(month or what stands for it, seconds into it)`; None: no wall clock in it."""
    if _UNIX.fullmatch(stamp):
        return "unix", float(stamp)
    clock = _CLOCK.search(stamp)
    if clock is None:
        return None
    seconds = int(clock[1]) * 3600 + int(clock[2]) * 60 + int(clock[3] or 0)
    dated = _DATE.search(stamp)
    if dated is not None:
        return dated[1], int(dated[2]) * 86_400.0 + seconds
    before = stamp[: clock.start()]
    day = _DAY.search(before)
    if day is None:
        return "", float(seconds)
    words = _WORD.findall(before)
    return words[-1] if words else "", int(day[1]) * 86_400.0 + seconds
