"""What `gpuwatch decode` says to a person: incident by incident, what was seen, how bad it is, what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TextIO

from gpuwatch.faults import sentences
from gpuwatch.faults.incidents import Decision, Told
from gpuwatch.faults.reader import LogReader

WIDTH = 100


def write(told: Sequence[Told], reader: LogReader, verdict: Decision, page: TextIO, path: str, *, first: bool) -> None:
    """One log: its events, those of one incident together, and the decision for the whole."""
    name = "standard input" if path == "-" else path
    lines = f"{reader.lines:,} line{'' if reader.lines == 1 else 's'}"
    if not first:
        page.write("\n")
    if not told:
        say(page, f"{name}: no fault in {lines}.")
        say(page, f"Looked for: {sentences.LOOKED_FOR}.")
        _aside(page, reader)
        return
    noun = "event" if len(told) == 1 else "events"
    incidents = "1 incident" if verdict.incidents == 1 else f"{verdict.incidents} incidents"
    say(page, f"{name}: {len(told)} {noun} in {lines}, {incidents}.")
    shown = 0
    for one in sorted(told, key=lambda one: (one.incident, not one.root, one.first.line)):
        event = one.event
        page.write("\n")
        if verdict.incidents > 1 and one.incident != shown:
            shown = one.incident
            _heading(page, told, shown, verdict.incidents)
        say(page, sentences.headline(event))
        uuid, serial = (
            known.get(event.pci or "", "") for known in (reader.interpreter.uuids, reader.interpreter.serials)
        )
        when = f"line {one.first.line}" + (f", [{one.first.stamp}]" if one.first.stamp else "")
        if one.lines > 1:
            when += f", {one.lines:,} times" + (f", last in line {one.last.line}" if one.last is not one.first else "")
        rows = [
            ("where", sentences.where(event, tuple(sorted(one.ports)), uuid, serial)),
            ("process", sentences.process(event, len(one.pids))),
            ("seen", when),
            ("how bad", sentences.how_bad(event)),
            ("means", f"{event.meaning}."),
            *(("note", note) for note in sentences.notes(one, list(told))),
            ("do", sentences.ACTION[event.action] + (f" ({event.action})" if event.action != "none" else "")),
            ("drain", sentences.DRAIN[event.drain]),
        ]
        for label, text in rows:
            say(page, text, f"  {label:<9}")
        say(page, f"NVRM: {event.text}" if event.kind == "xid" else event.text, f"  {'said':<9}")
    page.write("\n")
    _aside(page, reader)
    page.write(plain(page, f"Decision: {sentences.decision(verdict)}.") + "\n")


def _heading(page: TextIO, told: Sequence[Told], number: int, of: int) -> None:
    members = [one for one in told if one.incident == number]
    root = next((one for one in members if one.root), members[0])
    events = "1 event" if len(members) == 1 else f"{len(members)} events, the root first"
    say(page, f"Incident {number} of {of}: {sentences.headline(root.event)}, {sentences.where(root.event)} ({events})")
    page.write("\n")


def _aside(page: TextIO, reader: LogReader) -> None:
    """What was seen and not taken as an event, so that its absence above is no riddle."""
    if reader.quoted_count:
        number, text = reader.quoted[0]
        noun = "line quotes" if reader.quoted_count == 1 else "lines quote"
        were = "was" if reader.quoted_count == 1 else "were"
        say(
            page,
            f"{reader.quoted_count:,} {noun} the driver but {were} not written by the kernel, so nothing was taken "
            f"from it: line {number}: {text[:160]}",
        )
    if reader.interpreter.unattributed:
        say(
            page,
            f"Line {reader.interpreter.unattributed[0].line} says that a GPU fell off the bus, but no address can be "
            "read beside it; look for its lines just above in the full log.",
        )


def say(page: TextIO, text: str, label: str = "") -> None:
    """One paragraph, broken into lines, with a label before the first."""
    shown = plain(page, text)
    for place, line in enumerate(textwrap.wrap(shown, WIDTH - len(label), break_on_hyphens=False) or [""]):
        page.write(f"{label if place == 0 else ' ' * len(label)}{line}\n")


def plain(page: TextIO, text: str) -> str:
    """What the terminal can show: a log must not be able to send it control sequences."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if page.encoding is None else shown.encode(page.encoding, "replace").decode(page.encoding)
