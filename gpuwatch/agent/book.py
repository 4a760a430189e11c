"""Remembers each source's child over restarts of the agent, so that there is never a second one that is stuck.

A child in an uninterruptible driver call outlives the agent that started it. The next agent finds it here, reports the
source as hung, and starts no other until it is gone.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from gpuwatch.sdk.small_file import small_json

log = logging.getLogger(__name__)


class ChildRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One child, written when it starts and when it turns out to be stuck."""

    pid: int
    start_ticks: int
    boot_id: str
    since_unix_ns: int | None = None  # hung since
    reason: str = ""
    killed: bool = False  # it got its one SIGKILL


class Book:
    """The file of one source."""

    def __init__(self, state_dir: Path, source: str) -> None:
        self._path = state_dir / f"probe-{source}.json"
        self._complained = False

    def read(self) -> ChildRecord | None:
        """The last child, None where nothing usable is written."""
        try:
            return small_json(self._path, ChildRecord)
        except (OSError, ValueError):
            return None

    def write(self, record: ChildRecord) -> None:
        """Keep it. A disk that is full or read-only costs this memory, never the agent."""
        new = self._path.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)
            with new.open("xb") as file:  # root may look once in an agent's folder: no link there is followed
                file.write(msgspec.json.encode(record))
            new.replace(self._path)
        except OSError as error:
            if not self._complained:
                log.warning("%s cannot be written: %s; a stuck probe will not be known after a restart", new, error)
            self._complained = True

    def clear(self) -> None:
        """It is gone."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            log.warning("%s cannot be removed", self._path)
