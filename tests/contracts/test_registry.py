"""Every room's leaves are found, and a leaf without its line is named with its file."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import gpuwatch.clouds
import gpuwatch.collectors
import gpuwatch.importers
import gpuwatch.reports
import gpuwatch.rules
import gpuwatch.schedulers
from gpuwatch.clouds import CloudLeaf
from gpuwatch.collectors import Collector
from gpuwatch.errors import RegistryError
from gpuwatch.importers import ImporterLeaf
from gpuwatch.registry import leaves
from gpuwatch.reports import ReportFormat
from gpuwatch.rules import FleetRule, Rule
from gpuwatch.schedulers import SchedulerLeaf

ROOMS = [
    (gpuwatch.rules, "RULE", (Rule, FleetRule)),
    (gpuwatch.collectors, "COLLECTOR", (Collector,)),
    (gpuwatch.clouds, "CLOUD", (CloudLeaf,)),
    (gpuwatch.reports, "REPORT", (ReportFormat,)),
    (gpuwatch.schedulers, "SCHEDULER", (SchedulerLeaf,)),
    (gpuwatch.importers, "IMPORTER", (ImporterLeaf,)),
]


@pytest.mark.parametrize(("room", "line", "doors"), ROOMS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_leaf_offers_what_its_door_asks_and_has_a_test_file(
    room: ModuleType, line: str, doors: tuple[type, ...]
) -> None:
    found: dict[str, object] = leaves(room, line, *doors)
    assert found
    tests = Path(__file__).parent.parent / room.__name__.split(".")[-1]
    assert [name for name in found if not (tests / f"test_{name}.py").exists()] == []


@pytest.mark.parametrize(
    ("text", "what"),
    [("x = 1\n", "has no line"), ("RULE = 7\n", "is a int, not a Rule or FleetRule")],
)
def test_a_leaf_without_its_line_is_named(
    tmp_path: Path, text: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tmp_path / "someroom"
    room.mkdir()
    (room / "__init__.py").write_text("")
    (room / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with pytest.raises(RegistryError, match=f"someroom/broken.py.*{what}") as caught:
            leaves(__import__("someroom"), "RULE", Rule, FleetRule)
    finally:
        for name in [name for name in sys.modules if name.startswith("someroom")]:
            del sys.modules[name]
    assert "__init__.py" in caught.value.next_step
