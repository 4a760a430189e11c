"""INCIDENT. One fault from onset to end, with what was seen, decided and done. Its id is the fault id of the money."""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an incident's timeline."""

    at_unix_ns: int
    text: str


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. `machine` may be unknown (a hung gang whose culprit nobody knows yet)."""

    fault: str
    kind: str
    slot: str | None
    machine: str | None
    run: str | None
    pool: str
    cause: str
    because: str
    onset_unix_ns: int
    detected_unix_ns: int
    closed_unix_ns: int | None = None
    closed_because: str = ""
    timeline: tuple[Entry, ...] = ()
