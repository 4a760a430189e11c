"""A whole log, line by line: finds the lines that matter, mends wrapped ones, and says each event to a listener.

100,000 lines of a busy node hold a handful that concern a GPU: a line is looked at only if one of a few words is in it.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from gpuwatch.faults import daemons, journal, prefix, xid
from gpuwatch.faults.event import Event
from gpuwatch.faults.interpreter import Interpreter
from gpuwatch.faults.prefilter import JSON, matters
from gpuwatch.faults.prefix import Record
from gpuwatch.faults.printed import DmesgJson, JournalText
from gpuwatch.faults.tool_text import ToolText

MAX_QUOTED = 100
MAX_WRAPS = 4  # a driver line of 200 characters on a terminal of 80, with room


class Listener(Protocol):
    """Who wants to know."""

    def tell(self, event: Event, record: Record) -> None:
        """One event and the message that completed it."""

    def repeated(self, count: int, line: int) -> None:
        """The message of the line before came this many times more."""

    def booted(self) -> None:
        """A new boot begins here."""


_OTHERS = (b"NVRM", *(word.encode() for word in daemons.WORDS))  # of quotations, and of daemons


class LogReader:
    """Feed it raw lines, then `finish`. Never raises, whatever the bytes are."""

    def __init__(self, listener: Listener) -> None:
        self.lines = 0
        self.kernel_lines = 0  # of those that matter: written by the kernel
        self.quoted: list[tuple[int, str]] = []  # another program's line that quotes the driver
        self.quoted_count = 0
        self.interpreter = Interpreter()
        self._listener = listener
        self._held: Record | None = None  # may be cut by a line break: its next line decides
        self._wraps = 0
        self._boot_id = ""
        self._tools = ToolText()
        self._entries = JournalText()
        self._dmesg = DmesgJson()

    def feed(self, raw: bytes) -> None:
        """One line, with or without its end."""
        self.lines += 1
        if self._held is not None and self._mend(raw):
            return
        if self._is_tools(raw) or self._is_printed(raw):
            return
        if not matters(raw) and not any(map(raw.__contains__, _OTHERS)):
            return
        if raw.startswith(b"-- ") and (b"Boot " in raw or b"Reboot" in raw):
            self._new_boot()
            return
        if raw.startswith(JSON) and b'"MESSAGE"' in raw:
            self._journal(raw[raw.index(b"{") :])
            return
        text = raw.decode("utf-8", "replace")
        if b" repeated " in raw and b"message repeated" in raw:
            count = prefix.last_repeated(text)
            if count:
                self._listener.repeated(count, self.lines)
                return
        spoken = daemons.in_text(text, self.lines)
        if spoken is not None:
            self._listener.tell(*spoken)
            return
        records = prefix.split(text, self.lines)
        if b"NVRM" in raw and not any(record.message.startswith("NVRM:") for record in records):
            self._quote(text)
        for record in records:
            self._hear(record)

    def finish(self) -> None:
        """The log ends here."""
        if self._held is not None:
            held, self._held = self._held, None
            self._say(held)
        entry = self._entries.finish()
        if entry is not None:
            self._told(journal.entry_of(entry, self.lines))
        for event in self.interpreter.flush():
            self._listener.tell(event, Record(message=event.text, line=self.lines))
        for event in self._tools.finish():
            self._listener.tell(event, Record(message=event.text, line=self.lines))

    def _hear(self, record: Record) -> None:
        if record.message.startswith("Linux version "):
            self._new_boot()
        elif self._held is None and xid.wants_more(record.message):
            self._held, self._wraps = record, 0
        else:
            self._say(record)

    def _say(self, record: Record) -> None:
        self.kernel_lines += 1
        for event in self.interpreter.hear(record):
            self._listener.tell(event, record)

    def _mend(self, raw: bytes) -> bool:
        """Whether this line was the rest of the held one. If not, the held one is said as it stands."""
        held = self._held
        assert held is not None
        text = raw.decode("utf-8", "replace")
        if self._wraps < MAX_WRAPS and prefix.is_bare(text):
            longer = xid.joined(held.message, prefix.clean(text).strip())
            if longer is not None:
                record = msgspec.structs.replace(held, message=longer)
                self._wraps += 1
                self._held = record if xid.wants_more(longer) else None
                if self._held is None:
                    self._say(record)
                return True
        self._held = None
        self._say(held)
        return False

    def _is_tools(self, raw: bytes) -> bool:
        """Whether a tool printed this line, for a person who pasted it."""
        events = self._tools.hear(raw, self.lines)
        for event in events:
            self._listener.tell(event, Record(message=event.text, line=self.lines))
        return bool(events)

    def _is_printed(self, raw: bytes) -> bool:
        """Whether the line is a part of an entry that was printed over several lines."""
        mine, entry = self._entries.feed(raw)
        if entry is not None:
            self._told(journal.entry_of(entry, self.lines))
        if mine or not raw.lstrip().startswith(b'"'):
            return mine
        mine, record = self._dmesg.feed(raw, self.lines)
        if record is not None:
            self._hear(record)
        return mine

    def _journal(self, raw: bytes) -> None:
        entry = journal.split(raw, self.lines, strict=False)
        if entry is None and b"NVRM" in raw:
            self._quote(raw.decode("utf-8", "replace"))
        self._told(entry)

    def _told(self, entry: journal.Entry | None) -> None:
        if entry is None:
            return
        if entry.event is not None:
            self._listener.tell(entry.event, entry.records[0])
            return
        if entry.boot_id and self._boot_id and entry.boot_id != self._boot_id:
            self._new_boot()
        self._boot_id = entry.boot_id
        for record in entry.records:
            self._hear(record)

    def _new_boot(self) -> None:
        self.interpreter = Interpreter()
        self._listener.booted()

    def _quote(self, text: str) -> None:
        if "Xid (" not in text and "fallen off" not in text:
            return
        self.quoted_count += 1
        if len(self.quoted) < MAX_QUOTED:
            self.quoted.append((self.lines, prefix.clean(text).strip()))
