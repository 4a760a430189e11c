"""/dev/kmsg: the kernel's own ring of messages, one record a read. The source of choice: nothing sits in between.

The ring can overrun the reader (systemd/systemd#3128: hundreds of lines missing in a burst); the kernel then answers
EPIPE once, and the sequence numbers tell how many are gone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpuwatch.clock import Clock
from gpuwatch.faults.prefilter import matters
from gpuwatch.faults.prefix import split_kmsg
from gpuwatch.sdk.kernel_lines import LOT_LINES, Line

RECORD_BYTES = 16_384
NULL = Path("/dev/null")
MAX_RECORDS = 10_000  # a reading; the rest comes with the next, after a rest: a storm does not take a processor


class KernelRing:
    """Reads from the oldest record of this boot, or after the record a cursor names."""

    name = "kmsg"

    def __init__(
        self,
        path: Path,
        *,
        boot_id: str,
        after: str,
        clock: Clock,
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        """`after` is a position of this boot, or empty. Raises `OSError` where the ring cannot be opened."""
        if path != NULL and path.stat().st_rdev == NULL.stat().st_rdev:  # some containers put it there
            raise OSError(errno.ENODEV, "/dev/null in the place of the kernel's ring", str(path))
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._read = read
        self._boot_id = boot_id
        self._clock = clock
        self.behind = False
        self._booted_unix_ns = 0
        self._sequence = int(after) if after.isdecimal() and len(after) < 20 else None
        self._lost = 0
        self._emptied_unix_ns: int | None = None  # everything older was read: what comes now happened since

    def fileno(self) -> int:
        """Readable as soon as the kernel says anything."""
        return self._file

    def read(self) -> list[Line]:
        lines: list[Line] = []
        now_unix_ns = self._clock.unix_ns()
        self._booted_unix_ns = now_unix_ns - self._clock.monotonic_ns()  # by the wall clock as it is set now
        self.behind = False
        for _ in range(MAX_RECORDS):
            if len(lines) >= LOT_LINES:
                self.behind = True
                break
            try:
                raw = self._read(self._file, RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    self._emptied_unix_ns = now_unix_ns
                    break
                if error.errno in (errno.EPIPE, errno.EINTR, errno.EINVAL):  # EINVAL: longer than any record may be
                    continue
                if not lines:
                    raise
                break  # what was said before is told first
            if not raw:
                break
            self._take(raw, now_unix_ns, lines)
        else:
            self.behind = True
        return lines

    def take_lost(self) -> int:
        lost, self._lost = self._lost, 0
        return lost

    def position(self) -> str:
        return "" if self._sequence is None else str(self._sequence)

    def close(self) -> None:
        os.close(self._file)

    def _take(self, raw: bytes, now_unix_ns: int, lines: list[Line]) -> None:
        head = raw[:64].split(b",", 2)
        if len(head) < 3 or not head[1].isdigit():
            return
        sequence = int(head[1])
        if self._sequence is not None:
            if sequence <= self._sequence:
                return
            self._lost += sequence - self._sequence - 1
        self._sequence = sequence
        if not matters(raw):
            return
        for part, record in enumerate(split_kmsg(raw.decode("utf-8", "replace"))):
            at_unix_ns = self._booted_unix_ns + (record.uptime_us or 0) * 1000
            if self._emptied_unix_ns is not None:
                at_unix_ns = max(at_unix_ns, self._emptied_unix_ns)  # the kernel's stamp drifts by seconds in weeks
            lines.append(
                Line(
                    record=msgspec.structs.replace(record, line=sequence),
                    boot_id=self._boot_id,
                    key=str(sequence) if part == 0 else f"{sequence}.{part}",
                    at_unix_ns=min(at_unix_ns, now_unix_ns),
                )
            )
