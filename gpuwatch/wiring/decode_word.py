"""`gpuwatch decode 79`: a number or a name from the fault catalogue instead of a log."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TextIO

import msgspec

from gpuwatch.errors import UsageError
from gpuwatch.faults import sentences
from gpuwatch.faults.catalogue import Row, events, sxids, xids
from gpuwatch.wiring.decode_text import say

_NUMBER = re.compile(r"(?P<kind>s?xid)?[ _-]?(?P<number>\d{1,6})", re.IGNORECASE)


class Word(msgspec.Struct, frozen=True):
    """What the catalogue holds of it."""

    headline: str
    kind: str
    number: int | None
    row: Row


def known(word: str) -> Word | None:
    """The catalogue's row, None where this is no such word or a file has that name. Raises `UsageError` for a number
    that looks like one and is in no list."""
    named = events().get(word)
    found = _NUMBER.fullmatch(word)
    if (named is None and found is None) or Path(word).exists():
        return None
    if named is not None:
        return Word(f"{named.row.name} ({named.kind})", named.kind, None, named.row)
    assert found is not None
    number, kind = int(found["number"]), (found["kind"] or "").lower()
    if kind != "sxid" and number in xids():
        return Word(f"Xid {number}: {xids()[number].name}", "xid", number, xids()[number])
    if kind != "xid" and number in sxids():
        return Word(f"SXid {number}: {sxids()[number].name}", "sxid", number, sxids()[number])
    raise UsageError(
        f"there is no file {word}, and {number} is in no published list of Xids or SXids",
        next_step="pipe in the log that has it: dmesg | gpuwatch decode -",
    )


def write(word: Word, page: TextIO, *, as_json: bool, first: bool) -> None:
    """What it means and what to do, without a log: an event in a log may say more."""
    row = word.row
    if as_json:
        keys = {"kind": word.kind, "xid": word.number if word.kind == "xid" else None}
        keys |= {"sxid": word.number} if word.kind == "sxid" else {}
        verdict = {"severity": row.severity, "action": row.action, "drain": row.drain}
        page.write(
            json.dumps(keys | verdict | {"fault": row.name, "meaning": row.meaning, "source": row.source}) + "\n"
        )
        return
    if not first:
        page.write("\n")
    say(page, word.headline)
    rows = (
        ("how bad", sentences.of_severity(row.severity, gpu=word.kind == "xid")),
        ("means", f"{row.meaning}."),
        ("do", f"{sentences.ACTION[row.action]} ({row.action})"),
        ("drain", sentences.DRAIN[row.drain]),
        ("source", row.source),
    )
    for label, text in rows:
        say(page, text, f"  {label:<9}")
    say(page, "From the catalogue alone; the lines of a log often decide: dmesg | gpuwatch decode -", "  note     ")
