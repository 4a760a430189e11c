"""A log file that syslog writes: followed over rotation and truncation, from its beginning.

Only lines that the kernel wrote count (`faults.prefix`). What stood in the file before it was opened may be older than
this boot: such a line keeps its place in history and causes nothing. In a file a user who may write to syslog can pass
for the kernel (`logger -t kernel`); the ring and the journal know better.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from pathlib import Path

from gpuwatch.clock import Clock
from gpuwatch.faults.daemons import in_text
from gpuwatch.faults.event import Event
from gpuwatch.faults.prefilter import matters
from gpuwatch.faults.prefix import Record, split
from gpuwatch.sdk.file_watch import FileWatch
from gpuwatch.sdk.kernel_lines import EARLIER_BOOT, LOT_LINES, MAX_LINES, SLACK_NS, Line, wall_unix_ns

READ_BYTES = 1 << 15
MAX_READ_BYTES = 4 << 20  # at once, about 20,000 lines of which few matter
HEAD_BYTES = 256
MAX_LINE_BYTES = 1 << 16


class KernelFile:
    """Follows one path. It may not be there yet, and may be another file a moment later."""

    name = "file"

    def __init__(self, path: Path, *, boot_id: str, after: str, clock: Clock, daemon: bool = False) -> None:
        """`after` is a position, or empty. `daemon`: a daemon's own log, not the kernel's. Raises `OSError`."""
        self._path = path
        self._daemon = daemon
        self._boot_id = boot_id
        self._clock = clock
        self._booted_unix_ns = clock.unix_ns() - clock.monotonic_ns()
        self.behind = False
        self._offset = 0
        self._rest = b""
        self._seen: tuple[str, int] = ("", 0)  # the last line's key, and how often it came in a row
        self._file = _opened(path)
        self._watch = FileWatch(path)
        status = os.fstat(self._file)
        self._inode = status.st_ino
        self._head = os.pread(self._file, HEAD_BYTES, 0) if after else b""
        self._backlog = status.st_size  # up to here it was written before we looked
        offset = after.split(":")[1] if after.count(":") == 2 else ""
        if offset.isdecimal() and int(offset) <= status.st_size and after == self._position(int(offset)):
            self._offset = int(offset)

    def fileno(self) -> int:
        """Readable when the file may have changed; -1: it must be looked at."""
        return self._watch.fileno()

    def read(self) -> list[Line]:
        lines: list[Line] = []
        self.behind = False
        self._watch.forget()
        try:
            self._follow(lines)
        except FileNotFoundError:
            return lines  # between two steps of a rotation
        except OSError:
            if not lines:
                raise
            self.behind = False  # what was said before is told first
        return lines

    def _follow(self, lines: list[Line]) -> None:
        self._drain(lines)
        if self.behind:
            return
        now = self._path.stat()
        if now.st_ino != self._inode:
            self._drain(lines)  # written between our last look and the rotation
            if self.behind:
                return
            file = _opened(self._path)
            if self._rest and (self._daemon or matters(self._rest)):
                self._take(self._rest, self._offset - len(self._rest), lines)  # its last line had no end
            os.close(self._file)
            self._file, self._inode = file, os.fstat(file).st_ino
            if not self._watch.again():
                self._watch.close()
            self._from_start()
            self._drain(lines)
        elif now.st_size < self._offset:
            self._from_start()
            self._drain(lines)

    def take_lost(self) -> int:
        return 0

    def position(self) -> str:
        return self._position(self._offset - len(self._rest))

    def close(self) -> None:
        self._watch.close()
        os.close(self._file)

    def _position(self, offset: int) -> str:
        """With the head's checksum: a new file may be given the number of one that is gone."""
        return f"{self._inode}:{offset}:{zlib.crc32(self._head[:offset]):08x}"

    def _from_start(self) -> None:
        """What a rotated or truncated file holds was written since: it is no backlog."""
        self._offset, self._rest, self._backlog, self._head = 0, b"", 0, b""

    def _drain(self, lines: list[Line]) -> None:
        begun = self._offset
        # Of the backlog more is held: a boot's first message tells that what stands before it is of an earlier boot.
        most = MAX_LINES if begun < self._backlog else LOT_LINES
        while block := os.pread(self._file, READ_BYTES, self._offset):
            at = self._offset - len(self._rest)
            self._offset += len(block)
            if len(self._head) < HEAD_BYTES:
                self._head = os.pread(self._file, HEAD_BYTES, 0)
            whole, end, rest = (self._rest + block).rpartition(b"\n")
            self._rest = rest if len(rest) <= MAX_LINE_BYTES else b""  # no log line is as long
            if end:
                for raw in whole.split(b"\n"):
                    if self._daemon or matters(raw):
                        self._take(raw, at, lines)
                    at += len(raw) + 1
            if self._offset - begun >= MAX_READ_BYTES or len(lines) >= most:
                self.behind = True
                return

    def _take(self, raw: bytes, at: int, lines: list[Line]) -> None:
        event: Event | None = None
        if self._daemon:
            spoken = in_text(raw.decode("utf-8", "replace"), at)
            event, records = (None, []) if spoken is None else (spoken[0], [spoken[1]])
        else:
            records = split(raw.decode("utf-8", "replace"), at)
        if not records:
            return
        now_unix_ns = self._clock.unix_ns()
        backlog = at < self._backlog
        if backlog and records[0].message.startswith("Linux version "):
            lines[:] = [_of_earlier_boot(line) for line in lines]
            return
        when = self._when(records[0], now_unix_ns) if backlog else now_unix_ns
        boot_id = EARLIER_BOOT if when is None or when < self._booted_unix_ns - SLACK_NS else self._boot_id
        key = self._key(raw, records[0], at)
        for part, record in enumerate(records):
            lines.append(
                Line(
                    record=record,
                    boot_id=boot_id,
                    key=key if part == 0 else f"{key}.{part}",
                    at_unix_ns=self._booted_unix_ns - SLACK_NS if when is None else min(when, now_unix_ns),
                    event=event,
                )
            )

    def _when(self, record: Record, now_unix_ns: int) -> int | None:
        """When a line of the backlog was written; None: before this boot, nobody knows when."""
        when = wall_unix_ns(record.wall, now_unix_ns) if record.wall else None
        if when is not None:
            return when
        if record.uptime_us is not None:
            when = self._booted_unix_ns + record.uptime_us * 1000
            return when if when <= now_unix_ns + SLACK_NS else None  # the machine is not up that long
        if record.wall:
            return None  # a date in a language that is not guessed: perhaps of last month
        return int(os.fstat(self._file).st_mtime_ns)  # not later than the file's last change

    def _key(self, raw: bytes, record: Record, at: int) -> str:
        """The line's own time and words; a line without a time by its place. Repeats in a row are numbered."""
        stamp = str(record.uptime_us) if record.uptime_us is not None else record.wall or f"@{at}"
        key = f"{stamp}-{zlib.crc32(raw):08x}"
        count = self._seen[1] + 1 if self._seen[0] == key else 0
        self._seen = (key, count)
        return key if count == 0 else f"{key}-{count}"


def _opened(path: Path) -> int:
    """Raises `OSError` for a folder, a pipe or a device in the log's place: they are opened, and cannot be followed."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is no plain file", str(path))
    return file


def _of_earlier_boot(line: Line) -> Line:
    return Line(record=line.record, boot_id=EARLIER_BOOT, key=line.key, at_unix_ns=line.at_unix_ns)
