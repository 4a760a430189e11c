"""Xid 154: the driver says which recovery it now wants for a GPU, as a hex number. The number decides, not the words.

`GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`; drivers 610.x print `0x1 (PF FLR)` for the
same thing (NVIDIA/open-gpu-kernel-modules#1151, #1353). `to 0x0` is good news.
"""

from __future__ import annotations

import re

import msgspec

from gpuwatch.faults.catalogue import recovery_actions
from gpuwatch.faults.event import Detail

_FROM = re.compile(r"\bfrom\s*0x([0-9a-f]{1,8})\b", re.IGNORECASE)
_TO = re.compile(r"(?:\)|[\s\d])to\s*0x([0-9a-f]{1,8})\b(?:\s*\(([^)]*)\)?)?", re.IGNORECASE)
_TO_WORDS = re.compile(r"\bto\s+\(?([A-Z][\w /-]*[\w])", re.IGNORECASE)

SEVERITY = {0: "info", 1: "fatal", 2: "fatal", 3: "degraded", 4: "fatal", 6: "fatal", 7: "fatal"}
"""How bad the GPU is that wants this. Not here: 5, whose meaning differs by driver, and unknown numbers: warn."""


class Wanted(msgspec.Struct, frozen=True):
    """What the driver wants now. `value` is None where the line was cut before it."""

    value: int | None
    severity: str
    action: str
    drain: str
    note: str
    details: dict[str, Detail]


def read(text: str) -> Wanted:
    """The wanted action by the `to` number. Where it cannot be read a person must look; nobody may assume healthy."""
    details: dict[str, Detail] = {}
    before, after = _FROM.search(text), _TO.search(text)
    if before is not None:
        details["from"] = int(before[1], 16)
    value = int(after[1], 16) if after is not None else _by_words(text)
    if value is not None:
        details["to"] = value
    if after is not None and after[2]:
        details["wanted"] = after[2].strip()
    table = recovery_actions()
    row = table.get(value) if value is not None else None
    if row is None:
        row = table[None]
    severity = SEVERITY.get(value, "warn") if value is not None else "warn"
    return Wanted(value, severity, row.action, row.drain, row.note, details)


def _by_words(text: str) -> int | None:
    """For a driver that prints no number."""
    found = _TO_WORDS.search(text)
    if found is None:
        return None
    said = found[1].strip().lower()
    for value, row in recovery_actions().items():
        if value is not None and said in {word.lower() for word in row.words}:
            return value
    return None
