"""`gpuwatch status`: what a person must know of a running cluster; nothing that a node says forges a line of it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.aggregator.money import Money
from gpuwatch.aggregator.overview import Teller
from gpuwatch.wiring import ask
from gpuwatch.wiring.aggregator import Aggregator
from gpuwatch.wiring.status import gathered, lines, status
from tests.fakes_centre import Centre
from tests.running_aggregator import running_in


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Aggregator]:
    with running_in(tmp_path) as made:
        yield made


def test_a_running_aggregator(running: Aggregator, tmp_path: Path) -> None:
    ask.order("hold", "gpu02", url=running.url, token_file=tmp_path / "operator", who="ada", because="burn-in")
    out = io.StringIO()
    assert status(url=running.url, out=out) == 0
    assert out.getvalue().startswith("None of 4 nodes is sick")
    assert "\nHeld:\n  gpu02  a person's hold: ada: burn-in\n" in out.getvalue()
    out = io.StringIO()
    assert status(url=running.url, as_json=True, out=out) == 0
    found = json.loads(out.getvalue())
    assert found["human_holds"] == [{"slot": "gpu02", "because": "ada: burn-in"}]
    assert (found["under_way"], found["open_incidents"]) == ([], [])


class Told:
    """What is told of a centre second by second."""

    def __init__(self, folder: Path, *, mode: str) -> None:
        self.centre = Centre(folder, mode=mode)
        self.needs: list[dict[str, Any]] = []
        self.centre.settle()

    def kill(self, slot: str) -> None:
        self.centre.agents[f"m-{slot}"].speaks = False
        self.centre.cloud.set_state(f"m-{slot}", "failed")
        self.centre.scheduler.down.add(slot)

    def lines(self) -> list[str]:
        centre = self.centre
        teller = Teller(
            settings=centre.settings,
            clock=centre.clock,
            stage=centre.stage,
            fleet=centre.fleet,
            book=centre.book,
            executor=centre.executor,
            people=centre.people,
            guard=centre.guard,
            money=lambda: Money(as_of_unix_ns=0),
            witnesses=(centre.scheduler_witness, centre.cloud_witness),
            needs=lambda: self.needs,
        )
        overview, plan = (
            json.loads(msgspec.json.encode(page, enc_hook=str)) for page in (teller.overview(), teller.plan())
        )
        return list(lines(gathered(overview, plan)))


def test_what_waits_for_a_person_comes_with_its_command(tmp_path: Path) -> None:
    told = Told(tmp_path, mode="approve")
    told.kill("gpu04")
    told.centre.seconds(60)
    told.needs = [
        {"summary": "gpu05 waits for a job", "because": "it forbids\nit", "since_unix_ns": 0, "unblock": "scancel 7"}
    ]
    text = told.lines()
    at = text.index("Waits for you:")
    assert re.match(r"  gpu04 waits for your approval: .", text[at + 1])
    assert re.match(r"      gpuwatch approve \S+-gpu04-\S+$", text[at + 2])
    assert text[at + 3].startswith("  gpu05 waits for a job, for ")
    assert text[at + 4] == "      scancel 7"
    assert any(re.match(r"  gpu04  node dead for \d+ \w+: .*; waits for your approval$", line) for line in text)


def test_an_action_that_takes_longer_than_it_should_is_called_stuck(tmp_path: Path) -> None:
    """A drained node whose job never ends, and that a person may not leave unseen."""
    told = Told(tmp_path, mode="replace")
    centre = told.centre
    centre.scheduler.obeys = False
    centre.scheduler.add_job("run.1", ("gpu04",))
    told.kill("gpu04")
    centre.seconds(60)
    (before,) = [line for line in told.lines() if re.match(r"  gpu04  replace: ", line)]
    assert "STUCK" not in before
    centre.clock.pass_s(100_000)
    (after,) = [line for line in told.lines() if re.match(r"  gpu04  replace: ", line)]
    assert after.startswith("  gpu04  replace: STUCK, ")
    assert re.search(r"\(step \d of \d\), for \d+ \w+", after)


def test_nothing_that_others_say_forges_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "api/v1/overview": {
            "cluster": "c",
            "headline": {"state": "One.", "doing": "", "cost": ""},
            "hold_everything": "",
            "doubts": [],
            "asks": [],
            "needs": [],
            "human_holds": [],
            "holds": [{"slot": "gpu1\x1b[2J", "machine": "m", "reason": "budget", "because": "b\nNothing is wrong"}],
            "incidents": [],
        },
        "api/v1/plan": {"under_way": []},
    }
    monkeypatch.setattr("gpuwatch.wiring.status.asked", lambda _method, _url, path, ca_file: answers[path])
    out = io.StringIO()
    status(url="http://x", out=out)
    assert out.getvalue() == "One.\n\nHeld:\n  gpu1 [2J  budget: b Nothing is wrong\n"


def test_many_of_one_kind_are_cut() -> None:
    held = [{"slot": f"gpu{number}", "machine": "m", "reason": "budget", "because": "b"} for number in range(1000)]
    found: dict[str, Any] = {"headline": {}, "hold_everything": "HOLD", "doubts": ["d"], "asks": [], "needs": []}
    said = list(lines(found | {"holds": held, "human_holds": [], "open_incidents": [], "under_way": []}))
    assert said[1:3] == ["Nothing is done to any node: HOLD", "Doubt: d"]
    assert said[-1] == "  … and 980 more; the page has all"
    assert len(said) < 30
