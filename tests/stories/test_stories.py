"""Scripted fleets over time, each beside its transcript: what was concluded, planned and held, and when.

`<story>.toml` is the script, `<story>.txt` what came out. After a change that is meant to change a story, write the
transcripts anew with `GPUWATCH_WRITE_STORIES=1 pytest tests/stories` and read the difference.
Nodes, clouds and the executor are played; rules, runs, judge, planner and inspector are the real ones.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from tests.stories.world import World

HERE = Path(__file__).parent


@pytest.mark.parametrize("script", sorted(HERE.glob("*.toml")), ids=lambda path: path.stem)
def test_story(script: Path) -> None:
    told = World(tomllib.loads(script.read_text())).play()
    golden = script.with_suffix(".txt")
    if os.environ.get("GPUWATCH_WRITE_STORIES"):
        golden.write_text(told)
    assert told == golden.read_text()
    assert len(told.splitlines()) < 60, "a transcript that nobody reads to its end tests nothing"


def test_every_transcript_has_its_script() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} == {path.stem for path in HERE.glob("*.toml")}


def test_a_story_is_told_the_same_way_twice() -> None:
    script = tomllib.loads((HERE / "a_node_dies.toml").read_text())
    assert World(script).play() == World(script).play()
