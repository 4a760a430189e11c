"""Slurm's accounting: what `sacct --parsable2` or `sacct --json` prints, of any time and any size.

Rules: docs/sacct.md. Text and JSON are told apart by their first character, UTF-16 (a Windows shell) by its mark.
"""

from __future__ import annotations

import io
from typing import BinaryIO

from gpuwatch.errors import HistoryError
from gpuwatch.importers import ImporterLeaf, Progress
from gpuwatch.model.job_history import Asked, JobHistory
from gpuwatch.sdk.slurm_columns import COMMAND
from gpuwatch.sdk.slurm_dump import read_dump
from gpuwatch.sdk.slurm_fold import Fold
from gpuwatch.sdk.slurm_json import read_document
from gpuwatch.sdk.slurm_times import open_zone

_PEEK_BYTES = 4096


def read(stream: BinaryIO, asked: Asked, progress: Progress) -> JobHistory:
    """One pass over the stream. Raises `HistoryError` if it is no dump, `UsageError` for an unknown zone."""
    zone, zone_name = open_zone(asked.zone)
    source = io.BufferedReader(stream, 1 << 20) if isinstance(stream, io.RawIOBase) else stream
    head = source.peek(_PEEK_BYTES)[:_PEEK_BYTES] if hasattr(source, "peek") else b""
    if head.startswith(b"\x1f\x8b"):
        raise HistoryError(
            "the dump is packed", next_step="unpack it on the way: zcat FILE | gpuwatch … --from-sacct -"
        )
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    text = io.TextIOWrapper(source, "utf-16" if wide else "utf-8-sig", errors="replace", newline="\n")
    fold = Fold(asked)
    try:
        if head.decode("utf-16" if wide else "utf-8-sig", errors="ignore").lstrip()[:1] in ("{", "["):
            return fold.finish(read_document(text.read, fold, progress))
        read_dump(text.read, fold, zone, progress)
    except (OSError, UnicodeError) as error:
        raise HistoryError("the dump cannot be read to its end", why=str(error), next_step=COMMAND) from error
    finally:
        text.detach()
    return fold.finish((f"Times in the dump are read as {zone_name} (--tz names another zone).",))


IMPORTER = ImporterLeaf(what="Slurm's accounting: a file made by `sacct --parsable2` or `sacct --json`.", read=read)
