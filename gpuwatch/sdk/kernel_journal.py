"""The systemd journal, through `journalctl -f -o json`: one child that prints each kernel message as it comes, and what
the few daemons say that may speak of a node's faults.

Chosen only where settings name it: it costs a process, and the journal itself loses lines in a burst. What it can do
that the ring cannot is remember the boot before this one, which is read once, so that a fault that ended in a reboot is
not forgotten.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import zlib

from gpuwatch.clock import Clock
from gpuwatch.faults import daemons, journal
from gpuwatch.faults.prefilter import matters
from gpuwatch.sdk.kernel_lines import LOT_LINES, Line

READ_BYTES = 1 << 16
MAX_READ_BYTES = 16 << 20
MAX_LINE_BYTES = 1 << 20
FIELDS = (  # no more
    "MESSAGE,PRIORITY,SYSLOG_FACILITY,SYSLOG_IDENTIFIER,_TRANSPORT,_BOOT_ID,_SOURCE_MONOTONIC_TIMESTAMP,"
    "_SYSTEMD_UNIT,_UID,_COMM"
)
MAX_EARLIER_LINES = 50_000  # of the boot before: its end is what matters
WHOSE = "_TRANSPORT=kernel"
OTHERS = tuple(word for unit in sorted(daemons.UNITS) for word in ("+", f"_SYSTEMD_UNIT={unit}"))
_WORDS = tuple(word.encode() for word in daemons.WORDS)


class JournalEnded(OSError):
    """The child ended. A new source may be opened after a while."""


class KernelJournal:
    """Follows the journal; with an empty `after` the earlier boot comes first, once."""

    name = "journal"

    def __init__(self, command: str, *, boot_id: str, after: str, clock: Clock, only_earlier: bool = False) -> None:
        """`after` is a journal cursor, or empty. `only_earlier`: end after the boot before this one. Raises `OSError`
        where the command cannot be started."""
        self._boot_id = boot_id
        self._clock = clock
        self.behind = False
        self._cursor = after
        self._rest = b""
        base = [command, "-o", "json", "--no-pager", "--quiet", "--output-fields", FIELDS]
        follow = [*base, "-f", "-n", "all", *(["--after-cursor", after] if after else ["-b"]), WHOSE, *OTHERS]
        earlier = [*base, "-b", "-1", "-n", str(MAX_EARLIER_LINES), WHOSE, *OTHERS]
        self._commands = [earlier] if only_earlier else [follow] if after else [earlier, follow]
        self._selector = selectors.EpollSelector()  # one descriptor for whichever child is alive
        self._child = self._start()

    def fileno(self) -> int:
        """Readable when the child printed something, or ended."""
        return self._selector.fileno()

    def read(self) -> list[Line]:
        lines: list[Line] = []
        read_bytes = 0
        while read_bytes < MAX_READ_BYTES and len(lines) < LOT_LINES:
            assert self._child.stdout is not None
            self.behind = True
            try:
                block = os.read(self._child.stdout.fileno(), READ_BYTES)
            except BlockingIOError:
                self.behind = False
                break
            if not block:
                if lines:
                    break  # what it said last is told first; its end with the next reading
                self._next_child()
                continue
            read_bytes += len(block)
            parts = (self._rest + block).split(b"\n")
            self._rest = parts.pop()
            if len(self._rest) > MAX_LINE_BYTES:
                self._rest = b""
            for raw in parts:
                self._take(raw, lines)
        return lines

    def take_lost(self) -> int:
        return 0

    def position(self) -> str:
        return self._cursor

    def close(self) -> None:
        self._end_child()
        self._selector.close()

    def _take(self, raw: bytes, lines: list[Line]) -> None:
        if not matters(raw) and not any(map(raw.__contains__, _WORDS)):
            return
        entry = journal.split(raw)
        if entry is None:
            return
        self._cursor = entry.cursor or self._cursor
        plain = self._boot_id.replace("-", "")
        boot_id = self._boot_id if entry.boot_id in ("", plain) else entry.boot_id
        now_unix_ns = self._clock.unix_ns()
        at_unix_ns = now_unix_ns if entry.unix_ns is None else min(entry.unix_ns, now_unix_ns)
        for part, record in enumerate(entry.records):
            stamp = record.uptime_us if record.uptime_us is not None else entry.unix_ns
            key = f"{stamp}-{zlib.crc32(record.message.encode()):08x}"
            lines.append(
                Line(
                    record=record,
                    boot_id=boot_id,
                    key=key if part == 0 else f"{key}.{part}",
                    at_unix_ns=at_unix_ns,
                    event=entry.event,
                )
            )
            if entry.event is not None:
                return

    def _start(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            self._commands.pop(0),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        self._selector.register(child.stdout, selectors.EVENT_READ)
        return child

    def _next_child(self) -> None:
        """The earlier boot's child ends when it has printed everything; the one that follows never should."""
        words = self._end_child()
        if "seek to cursor" in words:
            self._cursor = ""  # it makes no sense to this journal: the next source begins with the boot
        if not self._commands:
            raise JournalEnded(f"journalctl ended: {words or 'it said nothing'}")
        self._rest = b""
        self._child = self._start()

    def _end_child(self) -> str:
        child = self._child
        if child.stdout is not None and not child.stdout.closed:
            self._selector.unregister(child.stdout)
            child.stdout.close()
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(2.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(2.0)
        said = b""
        if child.stderr is not None and not child.stderr.closed:
            os.set_blocking(child.stderr.fileno(), False)
            said = child.stderr.read() or b""
            child.stderr.close()
        return said.decode("utf-8", "replace").strip()[:200]
