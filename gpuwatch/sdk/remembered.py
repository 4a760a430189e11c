"""What a source has learned of its node and must still know after a restart of the agent: one small JSON file.

A file that is missing, full of garbage or cannot be written costs this memory, never the source.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from gpuwatch.sdk.small_file import from_json, small_file

log = logging.getLogger(__name__)
T = TypeVar("T", bound=msgspec.Struct)


class Remembered(Generic[T]):
    """One record, in memory until `keep` names a folder."""

    def __init__(self, name: str, kind: type[T]) -> None:
        """`kind`: the record's type; every field has a default."""
        self.value: T = kind()
        self._kind = kind
        self._name = name
        self._file: Path | None = None
        self._written = b""
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
        if text == self._written:
            return
        self._written = text  # tried once: a full disk is not asked again each round
        new = self._file.with_suffix(".new")
        try:
            new.write_bytes(text)
            new.replace(self._file)
        except OSError as error:
            if not self._complained:
                log.warning("%s cannot be written: %s; what was learned ends with this agent", new, error)
            self._complained = True
