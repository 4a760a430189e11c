"""What the hands do, written down before it is done: one line of JSON each, on the disk before anybody goes on.

A line that a crash cut short is the last one, and is dropped. A line that cannot be read anywhere else means that the
past is not known: then no order is taken until a person has looked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from gpuwatch.errors import GpuwatchError

MOST_BYTES = 256 << 10  # then it is written anew with what still counts


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened."""

    what: Literal["alive", "nonce", "refused", "begun", "step", "ended"]
    unix_ns: int
    monotonic_ns: int
    boot: str
    nonce: str = ""  # nonce: given out; refused, begun: taken back
    expires_monotonic_ns: int = 0
    action_id: str = ""
    kind: str = ""
    target: str = ""
    state: Literal["", "refused", "begun", "done", "failed", "unknown"] = ""  # ended: how
    text: str = ""  # refused, ended: why; step: what is about to be done


class JournalError(GpuwatchError):
    """The journal cannot be read or written: no order is taken."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class Journal:
    """One file, one writer."""

    def __init__(self, folder: Path) -> None:
        """Raises `JournalError` where the folder cannot be used or other hands use it."""
        self._path = folder / "journal"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(folder / "lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JournalError(f"other hands use {folder}", next_step="stop them, or set another state_dir") from error
        except OSError as error:
            raise JournalError(
                f"{folder} cannot be used", why=str(error), next_step="check its disk and owner"
            ) from error
        self._file = -1
        self._bytes = 0

    def read(self) -> list[Line]:
        """Every line so far; then the file is open for more. Raises `JournalError`."""
        try:
            data = self._path.read_bytes() if self._path.exists() else b""
        except OSError as error:
            raise JournalError(f"{self._path} cannot be read", why=str(error), next_step="check its disk") from error
        whole, _, _torn = data.rpartition(b"\n")
        lines: list[Line] = []
        for number, text in enumerate(whole.split(b"\n") if whole else (), start=1):
            try:
                lines.append(_decode(text))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise JournalError(
                    f"{self._path} is damaged at line {number}",
                    why=f"{error}; what was done and how often is not known",
                    next_step="look what was done on this node, then move the file away",
                ) from error
        return lines

    def rewrite(self, lines: Iterable[Line]) -> None:
        """Put these lines in its place, in one step, and go on behind them. Raises `JournalError`."""
        new = self._path.with_suffix(".new")
        data = b"".join(_encode(line) + b"\n" for line in lines)
        self._close_file()  # whatever becomes of this: the next line goes to the file that has the name then
        try:
            file = os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_all(file, data)
                os.fsync(file)
                new.replace(self._path)
                self._sync_folder()
            except OSError:
                os.close(file)
                raise
        except OSError as error:
            raise JournalError(f"{self._path} cannot be written", why=str(error), next_step="make room") from error
        self._file, self._bytes = file, len(data)

    def write(self, line: Line) -> None:
        """Return when it is on the disk. Raises `JournalError` where it is not: then nothing may be done either."""
        data = _encode(line) + b"\n"
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                self._bytes = os.fstat(self._file).st_size
            _write_all(self._file, data)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError, ValueError):
                os.ftruncate(self._file, self._bytes)  # half a line must not stand before a whole one
            raise JournalError(f"{self._path} cannot be written", why=str(error), next_step="make room") from error
        self._bytes += len(data)

    def rest(self) -> None:
        """Hold nothing open until the next line: a file system can be made read-only meanwhile."""
        self._close_file()

    def is_long(self) -> bool:
        """It should be written anew."""
        return self._bytes > MOST_BYTES

    def close(self) -> None:
        """Let go of the file and the folder."""
        self._close_file()
        os.close(self._lock)

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
