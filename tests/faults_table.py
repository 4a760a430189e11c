"""A table of log lines, each with what must be read from it: `expected` first, in the words of the cases' index."""

from __future__ import annotations

from typing import Any

from gpuwatch.faults.event import Event
from gpuwatch.faults.prefix import Record
from gpuwatch.faults.reader import LogReader
from gpuwatch.faults.story import Story


def told(text: str) -> list[Event]:
    """The events of a text, folded as `gpuwatch decode` folds them."""
    story = Story()
    reader = LogReader(story)
    for line in text.split("\n"):
        reader.feed(line.encode())
    reader.finish()
    story.ending()
    return [one.event for one in story.told]


def seen(event: Event) -> dict[str, Any]:
    """An event's fields and details side by side."""
    fields = {
        "event": event.kind,
        "xid": event.xid,
        "sxid": event.sxid,
        "pci": event.pci,
        "pid": event.pid,
        "name": event.name,
        "severity": event.severity,
        "action": event.action,
        "drain": event.drain,
    }
    return fields | event.details


def check(expected: str, text: str) -> None:
    """`key=value; key=value`, `-` is none; several events are parted by ` || `; empty: nothing is told."""
    events = told(text)
    wanted = [part for part in expected.split(" || ") if part]
    assert [event.kind for event in events] == [_value(part, "event") for part in wanted], events
    for part, event in zip(wanted, events, strict=True):
        have = seen(event)
        for word in part.split("; "):
            key, _, value = word.partition("=")
            got = have.get(key)
            shown = ",".join(map(str, got)) if isinstance(got, tuple) else "-" if got is None else str(got)
            assert shown == value, f"{key}: wanted {value}, got {shown} in {text!r}"


def _value(part: str, key: str) -> str:
    return dict(word.split("=", 1) for word in part.split("; "))[key]


def record(message: str, **changes: Any) -> Record:
    """One kernel message."""
    return Record(message=message, **changes)
