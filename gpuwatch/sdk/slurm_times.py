"""Slurm's times and durations. sacct prints local time without a zone, so the reader must be told which.

In the hour that a clock goes through twice, a stamp means two moments; how long the job held its nodes tells which.
"""

from __future__ import annotations

import os
import re
from datetime import datetime, tzinfo
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

from gpuwatch.errors import UsageError

NO_TIME = frozenset({"", "Unknown", "None", "N/A", "UNKNOWN", "NONE", "(null)", "0"})
_HOUR = re.compile(r"\d{4}-\d\d-\d\dT\d\d", re.ASCII)
_HOURS_KEPT = 200_000  # twenty-two years
_DURATION = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_LOCAL = Path("/etc/localtime")


def open_zone(name: str) -> tuple[tzinfo, str]:
    """A zone and its name; empty: this machine's. Raises `UsageError` for a zone that is not known here."""
    wanted = name or os.environ.get("TZ", "").removeprefix(":")
    if not wanted:
        try:
            target = str(_LOCAL.resolve(strict=True))
            known = target.partition("zoneinfo/")[2]
            with _LOCAL.open("rb") as file:
                return ZoneInfo.from_file(file, key=known or str(_LOCAL)), known or str(_LOCAL)
        except (OSError, ValueError):
            wanted = "UTC"  # what the C library takes too where there is no /etc/localtime
    try:
        return ZoneInfo(wanted), wanted
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"the time zone {wanted!r} is not known on this machine",
            why=str(error),
            next_step="name it as --tz America/New_York or --tz UTC; the names come with the package tzdata",
        ) from None


class Hours(dict[str, int]):
    """`2026-11-30T13` -> unix seconds of that hour's begin. `KeyError` for what is no hour, and for an hour in which
    the clocks change or which comes twice: its stamps are read by `moments`."""

    def __init__(self, zone: tzinfo) -> None:
        super().__init__()
        self._zone = zone

    def __missing__(self, text: str) -> int:
        if _HOUR.fullmatch(text) is None:
            raise KeyError(text)
        try:
            begin = datetime.fromisoformat(f"{text}:00:00").replace(tzinfo=self._zone)
            ends = (begin, begin.replace(minute=59, second=59))
            offsets = {moment.replace(fold=fold).utcoffset() for moment in ends for fold in (0, 1)}
            unix_s = int(begin.timestamp())
        except (ValueError, OverflowError):
            raise KeyError(text) from None
        if len(offsets) != 1 or unix_s < 0:
            raise KeyError(text)
        if len(self) >= _HOURS_KEPT:
            self.clear()
        self[text] = unix_s
        return unix_s


@cache
def within_hour() -> dict[str, int]:
    """`:05:59` -> seconds since the hour began. Small enough to stay in a processor's cache: it is asked millions of
    times, and a table of every second of a day took three times as long."""
    return {f":{s // 60:02d}:{s % 60:02d}": s for s in range(3600)}


def moments(text: str, zone: tzinfo) -> tuple[int, ...]:
    """The unix seconds that a stamp may mean: none (not known), one, or two. Raises `ValueError`."""
    text = text.strip()
    if text in NO_TIME:
        return ()
    if text.isascii() and text.isdigit():  # SLURM_TIME_FORMAT=%s
        return _sane(int(text))
    moment = datetime.fromisoformat(text)
    try:
        if moment.tzinfo is not None:
            return _sane(int(moment.timestamp()))
        early = int(moment.replace(tzinfo=zone, fold=0).timestamp())
        late = int(moment.replace(tzinfo=zone, fold=1).timestamp())
    except OverflowError:
        raise ValueError(f"{text!r} is no time") from None
    return _sane(early) if early == late else (early, late)


def _sane(unix_s: int) -> tuple[int, ...]:
    if not 0 <= unix_s < 1 << 35:
        raise ValueError(f"{unix_s} seconds is no time")
    return (unix_s,)


def span(begins: tuple[int, ...], ends: tuple[int, ...], held_s: int | None) -> tuple[int, int] | None:
    """Which begin and which end: the pair that lasts as long as the job held, else the first that does not go
    backwards. None: every pair does."""
    pairs = [(begin, end) for begin in begins for end in ends if begin <= end]
    return next((pair for pair in pairs if pair[1] - pair[0] == held_s), pairs[0] if pairs else None)


def seconds(text: str) -> int | None:
    """`1-02:03:04`, `02:03:04`, `03:04.500` or plain seconds; None: not known. Raises `ValueError`."""
    text = text.strip()
    if not text or text in ("Unknown", "INVALID", "UNLIMITED", "Partition_Limit"):
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no length of time")
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest
