"""Looks into the ledger from outside every few milliseconds, and keeps when each line could first be read."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Seen:
    """One line, and the monotonic seconds at which it was first seen."""

    at_s: float
    body: dict[str, Any]


class LedgerWatch:
    """A context: watches from its beginning to its end. Lines from before are passed over."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._seen: list[Seen] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ledger-watch", daemon=True)

    def __enter__(self) -> LedgerWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join(5.0)

    @property
    def count(self) -> int:
        """Lines seen so far: a mark for `first`."""
        return len(self._seen)

    def first(self, line: str, slot: str, health: str = "", *, about: str = "", after: int = 0) -> float | None:
        """When the first such line after the mark was seen, whose because names `about`; None if none was."""
        for seen in self._seen[after:]:
            body = seen.body
            if body["line"] != line or body.get("slot") != slot or about not in body.get("because", ""):
                continue
            if not health or body.get("health") == health:
                return seen.at_s
        return None

    def _work(self) -> None:
        db = sqlite3.connect(f"file:{self._ledger}?mode=ro", uri=True, timeout=5.0)
        last = db.execute("SELECT COALESCE(MAX(id), 0) FROM ledger").fetchone()[0]
        while not self._stopped.wait(LOOK_S):
            rows = db.execute("SELECT id, body FROM ledger WHERE id > ? ORDER BY id", (last,)).fetchall()
            if rows:
                at_s = time.monotonic()
                last = rows[-1][0]
                self._seen += [Seen(at_s, json.loads(body)) for _, body in rows]
        db.close()
