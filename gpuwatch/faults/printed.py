"""Forms in which a log comes several lines an entry: `journalctl -o export`, `-o verbose`, `dmesg --json`.

Lines are gathered until an entry is whole; then it is judged as the journal's other forms are. Nothing else of a log
begins as these do, so a plain log passes by at the cost of one comparison a line.
"""

from __future__ import annotations

import json
import re

from gpuwatch.faults.prefix import MAX_LINE, Record

MAX_FIELDS = 200  # of one entry
_FIELD = re.compile(r"(?: {4})?(?P<key>_{0,2}[A-Z][A-Z0-9_]{0,62})=(?P<value>.*)", re.DOTALL)
_VERBOSE = re.compile(rb"\S.{8,60}\[s=[0-9a-f]+;i=[0-9a-f]+;")
_DMESG = re.compile(r'\s*"(?P<key>pri|fac|time|msg|caller)"\s*:\s*(?P<value>"(?:[^"\\]|\\.)*"|[\d.]+),?\s*$')


class JournalText:
    """`-o export` and `-o verbose`: one field a line."""

    def __init__(self) -> None:
        self._fields: dict[str, str] | None = None  # None: no entry has begun

    def begins(self, raw: bytes) -> bool:
        """Whether an entry begins in this line."""
        return raw.startswith(b"__CURSOR=") or (b"[s=" in raw and _VERBOSE.match(raw) is not None)

    def feed(self, raw: bytes) -> tuple[bool, dict[str, str] | None]:
        """Whether the line belongs to such an entry, and the entry that it ended."""
        if self.begins(raw):
            whole, self._fields = self._fields, {}
            self._take(raw)
            return True, whole
        if self._fields is None:
            return False, None
        if not raw.strip():
            return True, self.finish()
        if self._take(raw):
            return True, None
        return False, self.finish()

    def finish(self) -> dict[str, str] | None:
        """The entry that was begun."""
        whole, self._fields = self._fields, None
        return whole

    def _take(self, raw: bytes) -> bool:
        found = _FIELD.match(raw[: 4 * MAX_LINE].decode("utf-8", "replace").rstrip("\r\n"))
        if found is None:
            return raw.startswith(b"        ") or self._fields == {}  # a value goes on; the heading of an entry
        assert self._fields is not None
        if len(self._fields) < MAX_FIELDS:
            self._fields.setdefault(found["key"], found["value"])
        return True


class DmesgJson:
    """`dmesg --json`: an object a message, a member a line."""

    def __init__(self) -> None:
        self._members: dict[str, str] = {}

    def feed(self, raw: bytes, number: int) -> tuple[bool, Record | None]:
        """Whether this is a member of such an object, and the message that it completes, if the kernel wrote it."""
        found = _DMESG.match(raw[: 4 * MAX_LINE].decode("utf-8", "replace"))
        if found is None:
            return False, None
        if found["key"] != "msg":
            self._members[found["key"]] = found["value"].strip('"')
            return True, None
        return True, self._record(found["value"], number)

    def _record(self, text: str, number: int) -> Record | None:
        members, self._members = self._members, {}
        priority = members.get("pri", "")
        if members.get("fac", "kern") != "kern" or (priority.isdecimal() and int(priority[:6]) >> 3):
            return None
        try:
            message = json.loads(text)
        except ValueError:
            return None
        seconds, _, fraction = members.get("time", "").partition(".")
        uptime_us = None
        if seconds.isdecimal() and len(seconds) < 13 and (not fraction or fraction.isdecimal()):
            uptime_us = int(seconds) * 1_000_000 + int((fraction or "0")[:6].ljust(6, "0"))
        return Record(
            message=str(message)[:MAX_LINE],
            stamp=members.get("time", ""),
            uptime_us=uptime_us,
            level=int(priority) & 7 if priority.isdecimal() else None,
            line=number,
        )
