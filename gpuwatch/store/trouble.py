"""Turns what SQLite says into what happened, why, and what to do next."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from gpuwatch.errors import StoreError

_ADVICE = (  # part of SQLite's own words -> (why in ours, next step)
    ("disk is full", "the disk is full", "free space on the file system of {path}; writing goes on by itself then"),
    (
        "locked",
        "another process is writing to it and did not finish in time",
        "end the other process (an import, a backup, an sqlite3 shell) and try again",
    ),
    ("readonly", "the file or its folder may not be written", "give gpuwatch's user write access to {path}"),
    (
        "no such table",
        "there is no ledger in the file: no aggregator has written there",
        "name the aggregator's file (its state_dir holds it), or start one",
    ),
    ("unable to open", "the file cannot be opened", "check that the folder of {path} exists and is writable"),
    (
        "not a database",
        "the file is no SQLite database",
        "name ledger.db of state_dir; only if {path} was that, keep it aside and let gpuwatch start a new one",
    ),
    (
        "malformed",
        "the file is damaged",
        "stop gpuwatch, keep a copy of {path}, and recover it with `sqlite3 {path} .recover | sqlite3 new.db`",
    ),
    ("too large to convert", "a number is larger than the ledger can hold", "this is a bug of ours: please report it"),
    ("disk i/o error", "the disk answered with an error", "look at the kernel log for that disk before anything else"),
)


@contextmanager
def told(path: Path, doing: str) -> Iterator[None]:
    """Within it, an error of the database becomes a `StoreError`; `doing` says what was tried, as in "append to"."""
    try:
        yield
    except (DBAPIError, sqlite3.Error, OverflowError) as error:
        words = str(getattr(error, "orig", error) or error)
        for part, why, next_step in _ADVICE:
            if part in words.lower():
                raise StoreError(
                    f"cannot {doing} the ledger {path}", why=f"{why} ({words})", next_step=next_step.format(path=path)
                ) from error
        raise StoreError(
            f"cannot {doing} the ledger {path}",
            why=words,
            next_step=f"check it with `sqlite3 {path} 'PRAGMA quick_check'`",
        ) from error
