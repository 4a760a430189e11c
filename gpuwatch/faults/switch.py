"""SXid: what an NVSwitch of the node reports (up to Hopper; later NVLink faults come as Xid 144-150).

    nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up
    nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Severity 1 Engine instance 60 …
    nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Data {0x10000000, …}

One error is up to three lines; lines of different switches interleave. Sources: Fabric Manager user guide, the switch
driver of NVIDIA/open-gpu-kernel-modules 595.45.04.
"""

from __future__ import annotations

import re

import msgspec

from gpuwatch.faults.catalogue import UNKNOWN_SXID, Row, sxids
from gpuwatch.faults.event import Detail, Event
from gpuwatch.model.identity import pci_address

_SXID = re.compile(
    r"nvidia-nvswitch(?P<switch>\d{1,3}):\s+SXid\s*\((?:PCI:)?"
    r"(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.(?P<function>[0-7]))?\)\s*:\s*"
    r"(?P<number>\d{1,9})(?!\w)(?P<rest>.*)",
    re.DOTALL,
)
_WORD = re.compile(r"\s*,\s*(Fatal|Non-?fatal|Correctable)\b", re.IGNORECASE)
_SEVERITY = re.compile(r"\s*,\s*Severity\s+(\d)\b", re.IGNORECASE)
_LINK = re.compile(r"\bLink\s+(\d{1,4})\b", re.IGNORECASE)

RENUMBERED_FROM = 28_000  # from here on numbers moved between driver branches (28006 became 29006): the word counts
GUIDE_OVER_WORD = frozenset({10001})  # the driver prints Fatal, the guide says not fatal alone
TRUST_WORD = "trust the word in the line"  # in the meaning of rows that the guide does not list


class SxidLine(msgspec.Struct, frozen=True, gc=False):
    """What was printed, not yet judged."""

    number: int
    pci: str
    switch: int
    word: str  # fatal | nonfatal | correctable; empty: the line has none
    text: str
    data: bool = False


def parse(message: str) -> SxidLine | None:
    """The parts of an SXid message, None if it is none."""
    found = _SXID.match(message)
    if found is None:
        return None
    rest = found["rest"]
    word = ""
    said, level = _WORD.match(rest), _SEVERITY.match(rest)
    if said is not None:
        word = said[1].lower().replace("-", "")
        rest = rest[said.end() :]
    elif level is not None:
        word = "fatal" if level[1] == "1" else "nonfatal"
    text = rest.lstrip(" ,").rstrip()
    return SxidLine(
        number=int(found["number"]),
        pci=f"{pci_address(found['pci'])}.{found['function'] or '0'}",
        switch=int(found["switch"]),
        word=word,
        text=text,
        data=text.startswith("Data"),
    )


def judge(line: SxidLine) -> Event:
    """The event by guide, word and table, in that order."""
    row = sxids().get(line.number)
    severity, action, drain = _verdict(line.number, line.word, row)
    details: dict[str, Detail] = {"switch": line.switch}
    link = _LINK.search(line.text)
    if link is not None:
        details["link"] = int(link[1])
    if line.data:
        details["data_only"] = True
    known = row if row is not None and not (line.number >= RENUMBERED_FROM and line.word) else UNKNOWN_SXID
    return Event(
        kind="sxid",
        title=known.name if known is not UNKNOWN_SXID or not line.text else line.text,
        meaning=known.meaning,
        severity=severity,
        action=action,
        drain=drain,
        text=line.text,
        sxid=line.number,
        pci=line.pci,
        details=details,
    )


def _verdict(number: int, word: str, row: Row | None) -> tuple[str, str, str]:
    if number >= RENUMBERED_FROM and word:
        row = None
    if row is not None:
        by_row = (row.severity, row.action, row.drain)
        guide = row.source.startswith("FM-guide")
        if row.source.startswith("FM-guide always fatal") or number in GUIDE_OVER_WORD or not word:
            return by_row
        if guide and row.severity == "info":  # single-bit errors, corrected: harmless even where the line says Fatal
            return by_row
        if word == "fatal":
            return by_row if row.severity == "fatal" else ("fatal", "reset_gpu", "yes")
        if row.severity != "fatal" and TRUST_WORD not in row.meaning:
            return by_row
    if word == "fatal":
        return ("fatal", "reset_gpu", "yes")
    if word == "correctable":
        return ("info", "none", "no")
    if word == "nonfatal":
        return ("warn", "none", "after_count")
    return (UNKNOWN_SXID.severity, UNKNOWN_SXID.action, UNKNOWN_SXID.drain)
