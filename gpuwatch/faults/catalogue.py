"""The published fault tables, typed and read once, when first asked.

Sources of every number: `data/SOURCES.md` and the source column of each row.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

import msgspec

SEVERITIES = ("info", "warn", "degraded", "fatal")  # weakest first; the state of the GPU
DRAINS = ("no", "after_count", "yes")  # weakest first; about the node
ACTIONS = ("none", "check_app", "restart_app", "contact_support", "reset_gpu", "reboot", "drain_replace")
"""Weakest first: of two asked for one GPU, the later one here wins."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One fault: what it is called, what it means, how bad, what to do."""

    name: str
    meaning: str
    severity: str
    action: str
    drain: str
    scope: str = "gpu"  # app | gpu | node
    source: str = ""


class Nvlink5Row(msgspec.Struct, frozen=True, gc=False):
    """One published decoding of Xid 144-150."""

    xid: int
    units: tuple[str, ...]  # the unit's names, old and new
    subcode: int
    status: int
    layouts: tuple[str, str]  # the first word's bits, most significant first, `-` for any: before r575, from r575 on
    published: str  # Fatal, Link Fatal, Non-fatal, with the sheet's own marks
    severity: str
    action: str
    drain: str
    then: str  # what the sheet says to investigate
    follow_xid154: bool  # the sheet's action is: see what Xid 154 asks for

    def is_fatal(self) -> bool:
        """Whether NVIDIA publishes this row as fatal for the GPU or the link."""
        return not self.published.lower().startswith("non")


UNKNOWN_XID = Row(
    "Unknown Xid",
    "This number is in none of the published lists. Kept and shown; one event does not drain a node. Tell a human, and "
    "look at what else the same GPU printed",
    "warn",
    "contact_support",
    "after_count",
)
UNKNOWN_SXID = Row(
    "Unknown SXid",
    "This NVSwitch number is in none of the published lists; the word in the line is all that is known",
    "warn",
    "contact_support",
    "after_count",
    "node",
)


def _read(file: str) -> Iterator[dict[str, str]]:
    text = resources.files("gpuwatch.faults").joinpath("data", file).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())


def _row(raw: dict[str, str]) -> Row:
    return Row(
        name=raw["name"],
        meaning=raw["meaning"],
        severity=raw["severity"],
        action=raw["recommended_action"],
        drain=raw["drain"],
        scope=raw["scope"],
        source=raw["source"],
    )


@cache
def xids() -> Mapping[int, Row]:
    """Every published Xid, 1 to 176."""
    return {int(raw["xid"]): _row(raw) for raw in _read("xid_catalog.csv")}


@cache
def sxids() -> Mapping[int, Row]:
    """Every published NVSwitch SXid."""
    return {int(raw["sxid"]): _row(raw) for raw in _read("sxid_catalog.csv")}


class EventRow(msgspec.Struct, frozen=True, gc=False):
    """One fault that has a name instead of a number. Events of one family about one thing are one fault."""

    kind: str
    family: str
    row: Row


@cache
def events() -> Mapping[str, EventRow]:
    """Every fault without a number, by its name."""
    return {
        raw["event"]: EventRow(raw["event"], raw["family"] or raw["event"], _row({"scope": "node"} | raw))
        for raw in _read("event_catalog.csv")
    }


@cache
def nvlink5() -> Mapping[int, tuple[Nvlink5Row, ...]]:
    """The decode table of Xid 144-150, by Xid."""
    table: dict[int, list[Nvlink5Row]] = {}
    for raw in _read("xid_nvlink5_decode.csv"):
        follow = raw["recommended_action"] == "follow_xid154"
        row = Nvlink5Row(
            xid=int(raw["xid"]),
            units=tuple(raw["unit"].split("/")),
            subcode=int(raw["subcode"]),
            status=int(raw["error_status"], 16),
            layouts=(raw["intrinfo_bits_before_r575"], raw["intrinfo_bits_r575_on"]),
            published=raw["published_severity"],
            severity=raw["severity"],
            action="none" if follow else raw["recommended_action"],
            drain=raw["drain"],
            then=raw["then_investigate"],
            follow_xid154=follow,
        )
        table.setdefault(row.xid, []).append(row)
    return {xid: tuple(rows) for xid, rows in table.items()}


class RecoveryRow(msgspec.Struct, frozen=True, gc=False):
    """One value of the driver's wanted recovery action."""

    value: int | None  # None: any number the table does not know
    words: tuple[str, ...]
    action: str
    drain: str
    note: str


@cache
def recovery_actions() -> Mapping[int | None, RecoveryRow]:
    """What each recovery-action number of Xid 154 asks for; the key None is for numbers not in the table."""
    table: dict[int | None, RecoveryRow] = {}
    for raw in _read("xid154_actions.csv"):
        value = int(raw["value"]) if raw["value"].isdigit() else None
        words = tuple(word for word in (raw["text_in_log"], *raw["other_name_seen"].split("/")) if word)
        table[value] = RecoveryRow(value, words, raw["recommended_action"], raw["drain"], raw["note"])
    return table
