"""What every source of kernel messages hands to the collector, and how a message is dated."""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import Protocol

import msgspec

from gpuwatch.faults.event import Event
from gpuwatch.faults.prefix import Record
from gpuwatch.sdk.small_file import kernel_file

MAX_LINES = 2000  # about, a reading: a storm of messages must not keep us busy; the rest comes with the next
LOT_LINES = 256  # about, held at once; see kernel_lots
EARLIER_BOOT = "earlier"  # for a message that is older than this boot where nothing says which boot it was
SLACK_NS = 60 * 10**9  # how far the boot moment and a log's own wall clock may disagree
TO_COME_NS = 7200 * 10**9  # a stamp without a year so little in the future tells of a clock that was set back

_UNIX = re.compile(r"\d{9,11}\.\d+")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ENGLISH = re.compile(r"(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.\d+)?(?: (\d{4}))?")
_YEAR_INSIDE = re.compile(r"([A-Z][a-z]{2} \d\d) (\d{4}) (\d\d:\d\d:\d\d)")  # the fabric manager's


class Line(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One kernel message with its identity: the same line read again has the same boot and key."""

    record: Record
    boot_id: str
    key: str
    at_unix_ns: int
    event: Event | None = None  # of a daemon that may speak of its own subject; None: the kernel's, to be interpreted


class Source(Protocol):
    """An opened kernel log. `lost_count` is what was lost since it was last taken."""

    name: str
    behind: bool  # there was more than is held at once

    def read(self) -> list[Line]:
        """The kernel's next messages that may concern a GPU. Raises `OSError` only where there are none."""

    def take_lost(self) -> int:
        """How many messages were lost since this was last asked."""

    def position(self) -> str:
        """Where the next reading begins, for the cursor."""

    def close(self) -> None:
        """Let go of files and children."""


def this_boot_id() -> str:
    """The boot's id as the agent gives it (`GPUWATCH_BOOT_ID` where a node is simulated); empty: not known."""
    given = os.environ.get("GPUWATCH_BOOT_ID")
    if given:
        return given
    try:
        return kernel_file("/proc/sys/kernel/random/boot_id", 64).decode("ascii", "replace").strip()
    except OSError:
        return ""


def wall_unix_ns(stamp: str, now_unix_ns: int) -> int | None:
    """A log's own wall clock as ns UTC. None where it cannot be read: then the caller must find another bound.

    ISO stamps with a zone are exact. English syslog stamps have no zone and mostly no year: the node's own zone, and
    the latest moment that does not lie in the future. Months in other languages are not guessed.
    """
    text = _YEAR_INSIDE.sub(r"\1 \3 \2", stamp.replace(",", ".", 1))
    if _UNIX.fullmatch(text):
        return int(float(text) * 1e9)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        found = _ENGLISH.fullmatch(text)
        if found is None or found[1].lower() not in _MONTHS:
            return None
        return _english(found, now_unix_ns)
    try:
        return _latest(when, now_unix_ns)
    except (ValueError, OverflowError, OSError):  # year 1
        return None


def _latest(when: datetime, now_unix_ns: int) -> int:
    """Where the clock goes back in autumn, a stamp without a zone means two moments: what the kernel said since a boot
    within that hour is not of the boot before it. Raises what `datetime.timestamp` does."""
    first, second = sorted(int(when.replace(fold=fold).timestamp() * 1e9) for fold in (0, 1))
    return second if second <= now_unix_ns else first


def _english(found: re.Match[str], now_unix_ns: int) -> int | None:
    now = datetime.fromtimestamp(now_unix_ns / 1e9)
    day, hour, minute, second = map(int, found.group(2, 3, 4, 5))
    month = _MONTHS.index(found[1].lower()) + 1
    years = [int(found[6])] if found[6] is not None else [now.year + 1, now.year, now.year - 1]
    for year in years:
        try:
            when = _latest(datetime(year, month, day, hour, minute, second), now_unix_ns)
        except (ValueError, OverflowError, OSError):  # 29 February of another year
            continue
        if when <= now_unix_ns + TO_COME_NS or len(years) == 1:
            return when
    return None
