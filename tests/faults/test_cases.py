"""Real machine output with the right value beside it: every key of every `expected` in tests/cases/index.csv."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.wiring import decode

CASES = Path(__file__).parents[1] / "cases"

with (CASES / "index.csv").open(encoding="utf-8", newline="") as _file:
    ROWS = list(csv.DictReader(_file))


def events_of(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    page = io.StringIO()
    assert decode.run([str(path)], as_json=True, summary=True, out=page) == 0
    objects = [json.loads(line) for line in page.getvalue().splitlines()]
    return objects[:-1], objects[-1]


def same(key: str, wanted: str, got: Any) -> bool:
    """`wanted` is the index's text. `-` is none; what stands after the first word is a remark of the index."""
    if wanted == "-" or (key == "link" and wanted == "unknown"):
        return got is None
    if isinstance(got, bool):
        return wanted == str(got).lower()
    if key in ("name", "client", "module", "plan", "confirm", "value"):
        return bool(got == (None if wanted == "none" else wanted))
    return str(got) == wanted.split()[0]


def check_event(words: str, event: dict[str, Any]) -> None:
    for word in filter(None, (part.strip() for part in words.split(";"))):
        if word.startswith("on an NVSwitch model: "):  # the words do not say which model it is: both are told
            assert event["with_nvswitch"].startswith("fatal")
            return
        word = word.removeprefix("on a model without NVSwitch: ")
        key, mark, wanted = word.partition("=")
        if key in ("events", "incidents") or word in ("no error", "source must be trusted (not kernel)"):
            continue  # the trust in a source has its tests in test_fabric_manager.py
        if key == "pci" and " via " in wanted:
            wanted, _, via = wanted.partition(" via ")
            assert event["via"] == via
        if word == "no xid":
            assert event["xid"] is None
        elif word.startswith("text says "):
            assert event["word"] == word.removeprefix("text says ")
            assert "disagree" in event
        elif word == "registers incomplete":
            assert event["registers_incomplete"] is True
        else:
            assert mark == "=", f"the index says something that no assertion is made of: {word}"
            assert same(key, wanted, event.get(key)), f"{key}: wanted {wanted}, got {event.get(key)!r}"


def check_decision(words: str, decision: dict[str, Any]) -> None:
    for word in filter(None, (part.strip() for part in words.split(";"))):
        key, _, wanted = word.partition("=")
        if key == "decision":
            if wanted.startswith("no drain"):
                assert decision["drain"] != "yes"
            else:
                assert decision["action"] == re.findall(r"[a-z]+_[a-z]+", wanted)[-1]
                assert decision["drain"] == "yes"
        elif key == "incidents":
            assert decision["incidents"] == int(wanted)
        elif key == "root":
            assert decision["root"] == wanted.split()[0]
        else:
            assert word == "suspect the peer", word
            assert decision["suspect_peer"] is True


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"])
def test_decode_gives_the_expected_value(row: dict[str, str]) -> None:
    events, decision = events_of(CASES / row["file"])
    expected = row["expected"]
    if expected.startswith("no match"):
        assert events == []
        return
    wanted = expected.split(" || ")
    decisions = [words for words in wanted if words.startswith("decision=")]
    singles = [words for words in wanted if not words.startswith("decision=")]
    assert len(events) == len(singles), [event["kind"] for event in events]
    for words, event in zip(singles, events, strict=True):
        check_event(words, event)
    for words in decisions:
        check_decision(words, decision)
    limits = dict(re.findall(r"\b(events|incidents)=(\d+)", expected))
    assert len(events) == int(limits.get("events", len(events)))
    assert decision["incidents"] == int(limits.get("incidents", decision["incidents"]))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"])
def test_every_event_has_the_eight_keys(row: dict[str, str]) -> None:
    events, _ = events_of(CASES / row["file"])
    for event in events:
        assert {"kind", "xid", "pci", "pid", "name", "severity", "action", "drain"} <= event.keys()


def test_every_case_is_in_the_index_and_has_a_source() -> None:
    assert {row["file"] for row in ROWS} == {path.name for path in CASES.glob("*.txt")}
    assert all(row["source"] for row in ROWS)
    assert len(ROWS) == 113
