"""The committed dashboards are what the builder makes, fit Grafana's own types, and leave nobody without an answer."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dashboards.build import DASHBOARDS, text

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((Path(__file__).parent / "grafana_schema.json").read_text())
Json = dict[str, Any]


def committed(name: str) -> Json:
    found: Json = json.loads((ROOT / "dashboards" / f"{name}.json").read_text())
    return found


def panels(name: str) -> list[Json]:
    return [panel for panel in committed(name)["panels"] if panel["type"] != "row"]


def faults(board: Json) -> Iterator[str]:
    """What Grafana's types say against it: the whole, then each panel's own options."""
    for error in jsonschema.Draft7Validator(SCHEMA["dashboard"]).iter_errors({"value": board}):
        yield f"{list(error.absolute_path)}: {error.message}"
    for panel in board["panels"]:
        if panel.get("type") == "row":
            continue
        own = SCHEMA["panels"][panel["type"]]
        given = {"options": panel["options"]}
        if "custom" in own["definitions"]["Root"]["properties"]:
            given["custom"] = panel["fieldConfig"]["defaults"]["custom"]
        for error in jsonschema.Draft7Validator(own).iter_errors(given):
            yield f"{panel['title']}: {list(error.absolute_path)}: {error.message}"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_file_is_what_the_builder_makes(name: str) -> None:
    path = ROOT / "dashboards" / f"{name}.json"
    assert path.read_text() == text(name), "run: python -m dashboards.build"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_it_fits_grafanas_own_types(name: str) -> None:
    assert not list(faults(committed(name)))


def _first(board: Json, kind: str) -> Json:
    found: Json = next(panel for panel in board["panels"] if panel["type"] == kind)
    return found


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda b: b.update(refresh=30), id="refresh-a-number"),
        pytest.param(lambda b: b.update(titel="x"), id="misspelt-key"),
        pytest.param(lambda b: b.update(graphTooltip=9), id="tooltip-that-is-not"),
        pytest.param(lambda b: b["templating"]["list"][0].update(type="list"), id="variable-of-no-type"),
        pytest.param(lambda b: _first(b, "stat")["gridPos"].update(h="8"), id="height-a-text"),
        pytest.param(lambda b: _first(b, "stat")["options"].update(colorMode="red"), id="colour-mode-that-is-not"),
        pytest.param(lambda b: _first(b, "timeseries")["options"].pop("legend"), id="no-legend"),
        pytest.param(
            lambda b: _first(b, "timeseries")["fieldConfig"]["defaults"]["custom"].update(drawStyle="dots"), id="style"
        ),
        pytest.param(lambda b: _first(b, "table")["options"].update(showHeaders=True), id="table-option"),
    ],
)
def test_the_check_sees_a_mistake(spoil: Callable[[Json], Any]) -> None:
    board = copy.deepcopy(committed("fleet"))
    spoil(board)
    assert list(faults(board))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_each_panel_has_a_unit_says_what_it_shows_and_why_it_may_be_empty(name: str) -> None:
    for panel in panels(name):
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"], panel["title"]
        assert len(defaults["noValue"]) > 8, panel["title"]
        assert len(panel["description"]) > 10, panel["title"]
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert 'cluster=~"$cluster"' in target["expr"], panel["title"]
            assert target["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_lie_side_by_side_and_have_numbers_of_their_own(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    board = committed(name)
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_what_it_names_is_there(name: str) -> None:
    words = text(name)
    for book in re.findall(r"\$\{runbooks\}/(\w+\.md)", words):
        assert (ROOT / "docs" / "runbooks" / book).is_file(), book
    known = {variable["name"] for variable in committed(name)["templating"]["list"]} | {"__url_time_range", "__value"}
    for used in re.findall(r"\$\{?(\w+)", words):
        assert used in known | {"__range", "__all"}, used
    for uid in re.findall(r"/d/([\w-]+)", words):
        assert uid in {committed(other)["uid"] for other in DASHBOARDS}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_no_panel_draws_a_series_for_every_node_of_a_fleet(name: str) -> None:
    """A list of the sick may; lines may not: of a thousand nodes nobody sees one."""
    for panel in panels(name):
        for target in panel["targets"]:
            by_node = re.search(r"by \([^)]*\b(slot|machine|instance)\b", target["expr"])
            one_node = "$node" in target["expr"] or "$instance" in target["expr"]
            if by_node and not one_node:
                assert panel["type"] == "table" or target["expr"].startswith("topk("), panel["title"]


def test_waste_is_what_the_ledger_calls_waste() -> None:
    from gpuwatch.model.money import Category, group_of

    named = re.search(r'category=~\\"([^"\\]+)', text("money"))
    assert named
    assert set(named[1].split("|")) == {str(c) for c in Category if group_of(c) in ("loss", "unusable")}


@pytest.mark.parametrize("file", ["dashboards.yaml", "datasource.yaml"])
def test_the_provisioning_files_are_version_one(file: str) -> None:
    words = (ROOT / "dashboards" / "provisioning" / file).read_text()
    assert re.search(r"^apiVersion: 1$", words, re.MULTILINE)
    assert re.search(r"^(providers|datasources):$", words, re.MULTILINE)
    assert "\t" not in words
