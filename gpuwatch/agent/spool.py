"""Reports that wait for the aggregator, on disk: one small file each, in order, bounded.

What a kill -9 or a crash leaves is whole files, or one that is thrown away. When there is no room, reports that carry
only gauges go first and reports with events last. A full disk costs reports, which are counted, never the agent.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections import Counter
from pathlib import Path

log = logging.getLogger(__name__)

KEPT_REFUSED = 16
MOST_GIVEN_UP = 8  # gauges for one report with events, where the disk is full
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_EVENTS, _GAUGES = "e", "g"


class Spool:
    """A folder of reports. One thread uses it."""

    def __init__(self, folder: Path, *, max_bytes: int, max_reports: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_reports = max_reports
        self._files: dict[int, tuple[str, int]] = {}  # number -> (kind, bytes), oldest first
        self._next = 1
        self.bytes = 0
        self.lost: Counter[str] = Counter()  # why -> reports
        self._complained = False
        self._open()

    def __len__(self) -> int:
        return len(self._files)

    def change(self, *, max_bytes: int, max_reports: int) -> None:
        """Other bounds, from the next report on."""
        self._max_bytes, self._max_reports = max_bytes, max_reports

    def put(self, data: bytes, *, events: bool, give_up: bool = True) -> bool:
        """Keep a report, behind all others. False: there is no place for it. What had to go for it is counted; from a
        full disk nothing goes unless `give_up`."""
        if len(data) > self._max_bytes:
            return False  # nothing else is thrown away for what cannot fit
        self._make_room(len(data), len(self._files) + 1 - self._max_reports)
        kind = _EVENTS if events else _GAUGES
        given_up = 0
        while True:
            try:
                self._write(self._next, kind, data)
                break
            except OSError as error:
                full = give_up and error.errno in DISK_FULL and given_up < (MOST_GIVEN_UP if events else 1)
                if full and self._drop(_GAUGES):
                    self.lost["disk"] += 1
                    given_up += 1
                    continue  # an older gauge for this one
                self._complain(error)  # of a disk that only reads, nothing is gained by giving up what is on it
                return False
        self._files[self._next] = (kind, len(data))
        self.bytes += len(data)
        self._next += 1
        return True

    def first(self) -> tuple[int, bytes] | None:
        """The oldest report and its number. What cannot be read any more is thrown away and counted."""
        while self._files:
            number = next(iter(self._files))
            try:
                data = self._path(number).read_bytes()
            except OSError as error:
                self._complain(error)
                data = b""
            if data:
                return number, data
            self.lost["unreadable"] += 1
            self.done(number)
        return None

    def done(self, number: int) -> None:
        """It was delivered, or is of no use; it may have had to go meanwhile."""
        if number not in self._files:
            return
        path = self._path(number)
        self._forget(number)
        if not self._files:
            self._complained = False  # once until all is delivered: a disk that is almost full takes every other one
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def set_aside(self, data: bytes, why: str) -> None:
        """Keep what the aggregator will never take, for a person to look at; the newest few."""
        folder = self._folder / "refused"
        try:
            folder.mkdir(exist_ok=True)
            (folder / f"{self._next:012d}.report").write_bytes(data)
            (folder / f"{self._next:012d}.why").write_text(why + "\n")
            self._next += 1
            for path in sorted(folder.iterdir())[: -2 * KEPT_REFUSED]:
                path.unlink()
        except OSError as error:
            self._complain(error)

    def _open(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(self._folder.iterdir()):
                self._find(path)
            refused = self._folder / "refused"
            if refused.is_dir():
                numbers = [int(path.stem) for path in refused.iterdir() if path.stem.isdecimal()]
                self._next = max([self._next, *(number + 1 for number in numbers)])
        except OSError as error:
            self._complain(error)

    def _find(self, path: Path) -> None:
        number, _, kind = path.stem.partition("-")
        if not path.is_file():
            return
        if path.suffix == ".report" and number.isdecimal() and kind in (_EVENTS, _GAUGES):
            size = path.stat().st_size
            self._files[int(number)] = (kind, size)
            self.bytes += size
            self._next = int(number) + 1
        elif path.suffix == ".new":
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)  # a write that a crash cut short

    def _write(self, number: int, kind: str, data: bytes) -> None:
        path = self._folder / f"{number:012d}-{kind}.report"
        new = path.with_suffix(".new")
        try:
            new.write_bytes(data)
            new.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise

    def _make_room(self, size: int, too_many: int) -> None:
        while self._files and (self.bytes + size > self._max_bytes or too_many > 0):
            if not self._drop(_GAUGES):
                self._drop(_EVENTS)
            self.lost["no_room"] += 1
            too_many -= 1

    def _drop(self, kind: str) -> bool:
        number = next((number for number, (held, _) in self._files.items() if held == kind), None)
        if number is None:
            return False
        self.done(number)
        return True

    def _forget(self, number: int) -> None:
        _, size = self._files.pop(number)
        self.bytes -= size

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}-{self._files[number][0]}.report"

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            log.warning("the spool %s: %s; reports may be lost while the aggregator is away", self._folder, error)
        self._complained = True
