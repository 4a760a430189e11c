"""Xid 144-150: NVLink errors from Blackwell on, told apart by unit, link, sub-code and error status.

`149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 …)`: the same number is a note on bit errors or a dead
link (leptonai/gpud#1160, #1174), so the number alone decides only where nothing else can be read.
Source of the table: sheet "XID 144-150 Decode" of NVIDIA's Xid catalogue.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from gpuwatch.faults.catalogue import DRAINS, SEVERITIES, Nvlink5Row, Row, nvlink5
from gpuwatch.faults.event import Detail

XIDS = range(144, 151)
PEER_SUBCODES = frozenset({21, 32, 33, 34, 35, 36, 37})  # the sheet: investigate the peer device

_HEAD = re.compile(
    r"\s*(?P<unit>[A-Z][A-Z0-9_]*(?:/[A-Z][A-Z0-9_]*)*)?\s*(?P<word>(?:Link[ -]?)?(?:Non-?)?fatal\b)?", re.IGNORECASE
)
_LINK = re.compile(r"\bLink\s*:?\s*(-?\d{1,4})\b", re.IGNORECASE)
_WORDS = re.compile(r"\(\s*(0x[^)]*)(\))?", re.IGNORECASE)
_HEX = re.compile(r"0x([0-9a-f]{1,8})\b", re.IGNORECASE)


class Decoded(msgspec.Struct, frozen=True):
    """The verdict on one line, and what was read from it."""

    severity: str
    action: str
    drain: str
    details: dict[str, Detail]
    suspect_peer: bool = False


def decode(xid: int, text: str, catalogue: Row) -> Decoded:
    """Unit, word, link, registers and the table, for the text after number, pid and name. Never raises."""
    details: dict[str, Detail] = {}
    unit, word = _unit_and_word(text)
    link = _LINK.search(text)
    registers, complete = _registers(text)
    if unit:
        details["unit"] = unit
    elif registers:
        unit = _unit_of_bits(xid, registers[0])
        if unit:
            details["unit"] = unit
    if link is not None:
        details["link"] = int(link[1])
    subcode = (registers[0] >> 20) & 0x3F if registers else None
    status = registers[1] if len(registers) > 1 else None
    if subcode is not None:
        details["subcode"] = subcode
    if status is not None:
        details["status"] = f"0x{status:x}"
    if registers:
        details["registers"] = len(registers)
        details["reg"] = tuple(f"0x{register:08x}" for register in registers)
    if not complete:
        details["registers_incomplete"] = True
    if word:
        details["word"] = word
    row = _row(xid, unit, subcode, status)
    severity, action, drain = _verdict(row, word, catalogue)
    if row is not None:
        details["published"] = row.published
        details["then"] = row.then
        if row.follow_xid154 and severity == row.severity:
            details["follow_xid154"] = True
        if word and row.is_fatal() is not _is_fatal(word):
            details["disagree"] = f"the line says {word}, the published table {row.published}: the worse was taken"
    peer = subcode in PEER_SUBCODES and row is not None and len(_subcodes(xid, unit)) > 1
    return Decoded(severity, action, drain, details, peer)


def _unit_and_word(text: str) -> tuple[str, str]:
    found = _HEAD.match(text)
    unit = (found["unit"] or "") if found else ""
    word = (found["word"] or "") if found else ""
    if not word and re.fullmatch(r"(?:Link[ -]?)?(?:Non-?)?fatal", unit, re.IGNORECASE):
        unit, word = "", unit
    if unit.lower() in {"link", "xc0", "xc1"}:
        unit = ""
    return unit, " ".join(word.split())


def _registers(text: str) -> tuple[list[int], bool]:
    """The hex words in brackets, and whether the bracket was closed."""
    found = _WORDS.search(text)
    if found is None:
        return [], False
    words = found[1].split()
    if found[2] is None and words and not re.fullmatch(r"0x[0-9a-fA-F]{8},?", words[-1]):
        words.pop()  # cut inside a word: half a number is no number
    values = [int(hexed[1], 16) for hexed in map(_HEX.match, words) if hexed is not None]
    return values, found[2] is not None


@lru_cache(maxsize=128)
def _rows_of_unit(xid: int, unit: str) -> tuple[Nvlink5Row, ...]:
    names = {name.upper() for name in unit.split("/") if name}
    rows = [row for row in nvlink5().get(xid, ()) if names & set(row.units)]
    exact = [row for row in rows if names <= set(row.units)]
    return tuple(exact or rows)


def _subcodes(xid: int, unit: str) -> set[int]:
    return {row.subcode for row in _rows_of_unit(xid, unit)}


def _row(xid: int, unit: str, subcode: int | None, status: int | None) -> Nvlink5Row | None:
    """The published row, or the worst that the line allows; None where rows differ and the line is too short."""
    rows = list(_rows_of_unit(xid, unit)) if unit else []
    if not rows and len({row.units for row in nvlink5().get(xid, ())}) == 1:
        rows = list(nvlink5()[xid])  # this Xid has one unit only
    if len({row.subcode for row in rows}) > 1:  # elsewhere the sub-code says nothing
        if subcode is None:
            return _worst(rows) if _agree(rows) else None
        rows = [row for row in rows if row.subcode == subcode]
    if status is None:
        return _worst(rows) if _agree(rows) else None
    exact = [row for row in rows if row.status == status]
    if exact:
        return _worst(exact)
    one_hot = rows and all(row.status and row.status & (row.status - 1) == 0 for row in rows)
    return _worst([row for row in rows if one_hot and row.status & status])


def _agree(rows: list[Nvlink5Row]) -> bool:
    return len({(row.severity, row.action, row.drain) for row in rows}) == 1


def _worst(rows: list[Nvlink5Row]) -> Nvlink5Row | None:
    return max(rows, key=lambda row: (SEVERITIES.index(row.severity), DRAINS.index(row.drain)), default=None)


def _is_fatal(word: str) -> bool:
    return "non" not in word.lower()


def _verdict(row: Nvlink5Row | None, word: str, catalogue: Row) -> tuple[str, str, str]:
    """Word in the line and published row together: where they disagree, the worse."""
    by_word = ("fatal", "reset_gpu", "yes") if word and _is_fatal(word) else ("warn", "none", "no")
    if row is None:
        return by_word if word else (catalogue.severity, catalogue.action, catalogue.drain)
    by_row = (row.severity, row.action, row.drain)
    if not word or row.is_fatal() is _is_fatal(word):
        return by_row
    return max(by_row, by_word, key=lambda verdict: (SEVERITIES.index(verdict[0]), DRAINS.index(verdict[2])))


def _unit_of_bits(xid: int, register: int) -> str:
    """The unit by the first word's bits, where its name was cut off or is new. The newer layout is tried first."""
    bits = f"{register:032b}"
    for layout in (1, 0):
        for row in nvlink5().get(xid, ()):
            pattern = row.layouts[layout][6 + 6 :]  # reserved bits and the sub-code say nothing of the unit
            if all(want in ("-", got) for want, got in zip(pattern, bits[12:], strict=True)):
                return "/".join(row.units)
    return ""
