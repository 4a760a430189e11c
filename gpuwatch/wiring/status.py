"""`gpuwatch status`: what a person must know of a running cluster, in one look at a terminal."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from gpuwatch.wiring.ask import asked

TOLD = ("cluster", "headline", "hold_everything", "doubts", "asks", "needs", "holds", "human_holds")
MOST_EACH = 20  # of one kind; the page has all


def status(*, url: str, as_json: bool = False, ca_file: Path | None = None, out: TextIO | None = None) -> int:
    """Print the state, the actions under way with those that are stuck, what waits for a person, what is held. 0."""
    out = out or sys.stdout
    overview = asked("GET", url, "api/v1/overview", ca_file=ca_file)
    found = gathered(overview, asked("GET", url, "api/v1/plan", ca_file=ca_file))
    if as_json:
        print(json.dumps(found, indent=2), file=out)
        return 0
    for line in lines(found):
        print("".join(letter if letter.isprintable() else " " for letter in line), file=out)
    return 0


def gathered(overview: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """Of the two pages of the API what is told here."""
    found = {name: overview[name] for name in TOLD}
    found["open_incidents"] = [one for one in overview["incidents"] if one["closed_unix_ns"] is None]
    return found | {"under_way": plan["under_way"]}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The same for a person."""
    head = found["headline"] or {}
    yield " ".join(words for words in (head.get("state"), head.get("doing"), head.get("cost")) if words)
    if found["hold_everything"]:
        yield f"Nothing is done to any node: {found['hold_everything']}"
    yield from (f"Doubt: {words}" for words in found["doubts"])
    yield from _part("Waits for you", [*map(_of_approval, found["asks"]), *map(_of_need, found["needs"])])
    yield from _part("Under way", map(_of_action, found["under_way"]))
    held = [[f"{one['slot'] or one['machine']}  {_words(one['reason'])}: {one['because']}"] for one in found["holds"]]
    held += [[f"{one['slot']}  a person's hold: {one['because']}"] for one in found["human_holds"]]
    yield from _part("Held", held)
    yield from _part("Open incidents", map(_of_incident, found["open_incidents"]))


def _part(title: str, each: Iterable[list[str]]) -> Iterator[str]:
    known = list(each)
    if known:
        yield ""
        yield f"{title}:"
        for one, *more in known[:MOST_EACH]:
            yield f"  {one}"
            yield from (f"      {line}" for line in more)
        if len(known) > MOST_EACH:
            yield f"  … and {len(known) - MOST_EACH} more; the page has all"


def _of_approval(one: dict[str, Any]) -> list[str]:
    words = f"{one['slot']} waits for your approval: {one['because']}"
    return [words, f"gpuwatch approve {shlex.quote(one['action_id'])}"]


def _of_need(one: dict[str, Any]) -> list[str]:
    words = f"{one['summary']}, for {_age(one['since_unix_ns'])}: {one['because']}"
    return [words, one["unblock"]] if one["unblock"] else [words]


def _of_action(one: dict[str, Any]) -> list[str]:
    step = f"{one['step_words'] or _words(one['step'])} (step {one['step_number']} of {one['step_count']})"
    waiting = f": {one['waiting']}" if one["waiting"] else ""
    stuck = "STUCK, " if one["stuck"] else ""
    return [f"{one['slot']}  {_words(one['kind'])}: {stuck}{step}, for {_age(one['step_unix_ns'])}{waiting}"]


def _of_incident(one: dict[str, Any]) -> list[str]:
    where = one["slot"] or f"run {one['run']}"
    now = f"; {one['now']}" if one["now"] else ""
    return [f"{where}  {_words(one['kind'])} for {_age(one['detected_unix_ns'])}: {one['because']}{now}"]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _age(since_unix_ns: int) -> str:
    seconds = max(0.0, time.time() - since_unix_ns / 1e9)
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s:.0f} {unit}"
    return f"{seconds:.0f} s"
