"""Entries of the systemd journal as `journalctl -o json` prints them, one object a line.

Only the kernel's own are taken: transport `kernel` and facility 0. A user may write into the kernel's ring through
`/dev/kmsg`; the journal then says transport `kernel` too, but another facility. A few daemons may speak of their own
subject (`daemons`).
"""

from __future__ import annotations

import msgspec

from gpuwatch.faults import daemons
from gpuwatch.faults.event import Event
from gpuwatch.faults.prefix import MAX_LINE, Record


class _Raw(msgspec.Struct, rename={"realtime_us": "__REALTIME_TIMESTAMP", "cursor": "__CURSOR"}):
    MESSAGE: str | list[int] | None = None
    _TRANSPORT: str | None = None
    _BOOT_ID: str | None = None
    _SOURCE_MONOTONIC_TIMESTAMP: str | None = None
    PRIORITY: str | None = None
    SYSLOG_FACILITY: str | None = None
    SYSLOG_IDENTIFIER: str | None = None
    _SYSTEMD_UNIT: str | None = None
    _UID: str | None = None
    _COMM: str | None = None
    _PID: str | None = None
    realtime_us: str | None = None
    cursor: str | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel message of the journal. `records` are its lines."""

    records: tuple[Record, ...]
    boot_id: str
    cursor: str
    unix_ns: int | None  # when the journal received it
    event: Event | None = None  # of another program than the kernel that may speak of its own subject: see `daemons`


_DECODER = msgspec.json.Decoder(_Raw)


def split(line: bytes, number: int = 0, *, strict: bool = True) -> Entry | None:
    """The entry in this line: the kernel's, or one of a daemon that is listed; None for all others.

    `strict`: an entry that was printed without its transport is nobody's. Else its sender's own word is taken, as in a
    plain log file.
    """
    try:
        raw = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return _entry(raw, number, strict)


def entry_of(fields: dict[str, str], number: int = 0) -> Entry | None:
    """The same of an entry that was printed field by field."""
    try:
        return _entry(msgspec.convert(fields, _Raw), number, strict=False)
    except msgspec.ValidationError:
        return None


def _entry(raw: _Raw, number: int, strict: bool) -> Entry | None:
    text = _text(raw.MESSAGE)[:MAX_LINE]
    event = None
    if not _is_kernel(raw, strict):
        event = daemons.in_journal(raw._SYSTEMD_UNIT or "", raw._UID or "", raw._COMM or "", text)
        if event is None:
            return None
    uptime_us = _number(raw._SOURCE_MONOTONIC_TIMESTAMP)
    received_us = _number(raw.realtime_us)
    records = tuple(
        Record(
            message=part.strip(),
            stamp="" if uptime_us is None else f"{uptime_us // 1_000_000}.{uptime_us % 1_000_000:06d}",
            uptime_us=uptime_us,
            level=_number(raw.PRIORITY),
            line=number,
        )
        for part in text.split("\n")
        if part.strip()
    )
    return Entry(
        records=records,
        boot_id=raw._BOOT_ID or "",
        cursor=raw.cursor or "",
        unix_ns=None if received_us is None else received_us * 1000,
        event=event,
    )


def _is_kernel(raw: _Raw, strict: bool) -> bool:
    if raw.SYSLOG_FACILITY not in (None, "0") or raw.SYSLOG_IDENTIFIER not in (None, "kernel"):
        return False
    if raw._TRANSPORT is not None or strict:
        return raw._TRANSPORT == "kernel"
    return raw._PID is None and raw._UID is None and raw._COMM is None


def _text(message: str | list[int] | None) -> str:
    if isinstance(message, str):
        return message
    if message is None:
        return ""
    return bytes(byte & 0xFF for byte in message).decode("utf-8", "replace")  # not UTF-8: the journal prints numbers


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 20 else None
