"""History from elsewhere. One source per file; `gpuwatch cost-report --from-NAME FILE` is made of the file's name.

In: an open binary stream and what to keep apart (`Asked`). Out: a `JobHistory`; a `HistoryError` where the whole of it
cannot be read. One broken row is named and left out; the rest counts. Streams: memory must not grow with the input.
A leaf ends in one typed line, `IMPORTER = ImporterLeaf(...)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from gpuwatch.model.job_history import Asked, JobHistory

Progress = Callable[[int], None]  # rows read so far; called every few ten thousand


@dataclass(frozen=True, slots=True, kw_only=True)
class ImporterLeaf:
    """One source of history."""

    what: str  # one line for `--help`: what to give it
    read: Callable[[BinaryIO, Asked, Progress], JobHistory]
