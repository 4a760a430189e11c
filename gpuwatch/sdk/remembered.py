"""What a source has learned of its node and must still know after a restart of the agent: one small JSON file.

A file that is missing, full of garbage or cannot be written costs this memory, never the source. So what stands in it
may be older than what was told: a count that a later one is compared with says when it was looked at (`floored`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from gpuwatch.sdk.small_file import from_json, small_file

log = logging.getLogger(__name__)
T = TypeVar("T", bound=msgspec.Struct)
AGAIN_S = 60.0  # between two tries to write what the disk did not take
LOOKS_A_WINDOW = 12


def floored(now_s: float, window_s: float) -> float:
    """When something was looked at, as it is kept beside what was seen: never later than it was, and seldom another
    number, so that not each look at what has not changed must be written."""
    step_s = window_s / LOOKS_A_WINDOW
    return now_s // step_s * step_s


class Remembered(Generic[T]):
    """One record, in memory until `keep` names a folder."""

    def __init__(self, name: str, kind: type[T]) -> None:
        """`kind`: the record's type; every field has a default."""
        self.value: T = kind()
        self._kind = kind
        self._name = name
        self._file: Path | None = None
        self._written = b""
        self._again_s = 0.0  # monotonic
        self._complained = False

    def keep(self, folder: Path, ours: bool) -> None:
        """Take up what stands there. Not `ours`: another agent's, read and never written."""
        file = folder / f"learned-{self._name}.json"
        with contextlib.suppress(OSError, ValueError):
            text = small_file(file)
            self.value = from_json(text, self._kind)
            self._written = text
        self._file = file if ours else None

    def save(self) -> None:
        """Write the value where it has changed."""
        if self._file is None:
            return
        text = msgspec.json.encode(self.value)
        if text == self._written or time.monotonic() < self._again_s:
            return
        new = self._file.with_suffix(".new")
        try:
            new.write_bytes(text)
            new.replace(self._file)
            self._written, self._again_s, self._complained = text, 0.0, False
        except OSError as error:
            self._again_s = time.monotonic() + AGAIN_S
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            if not self._complained:
                log.warning("%s cannot be written: %s; what is learned meanwhile ends with this agent", new, error)
            self._complained = True
