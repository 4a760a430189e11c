"""The rules, their unit tests, their run-books and the example configurations, as the real tools see them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gpuwatch.aggregator import alert_needs, alert_shared
from gpuwatch.aggregator.alerts import OTHER_RUNBOOK, RUNBOOKS, alertname
from gpuwatch.aggregator.needs import OF_NODE, OF_POOL

ROOT = Path(__file__).resolve().parents[2]
RULES = sorted((ROOT / "alert_rules").glob("*.yml"))
TESTS = sorted(Path(__file__).parent.glob("*_test.yml"))
BOOKS = {path.stem: path for path in (ROOT / "docs" / "runbooks").glob("Gpuwatch*.md")}
ALERT = re.compile(r"^  - alert: (\w+)\n(.*?)(?=^  - |\Z)", re.MULTILINE | re.DOTALL)


def alerts() -> dict[str, str]:
    """Name -> the text of its rule."""
    return {name: text for path in RULES for name, text in ALERT.findall(path.read_text())}


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.needs("promtool")
def test_the_rules_are_valid() -> None:
    assert run("promtool", "check", "rules", "--lint-fatal", *map(str, RULES)).count("SUCCESS") == len(RULES)


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("path", TESTS, ids=[path.stem for path in TESTS])
def test_they_fire_when_they_should_and_only_then(path: Path) -> None:
    assert "SUCCESS" in run("promtool", "test", "rules", str(path))


def test_each_alert_is_tested_to_fire_and_to_be_quiet() -> None:
    text = "".join(path.read_text() for path in TESTS)
    for name in alerts():
        assert re.search(rf"alertname: {name}\n +exp_alerts:\n +- exp_labels", text), name
        assert name == "GpuwatchWatchdog" or re.search(rf"alertname: {name}, exp_alerts: \[\]", text), name


@pytest.mark.parametrize("name", alerts())
def test_each_alert_says_how_bad_what_and_where_to_look(name: str) -> None:
    rule = alerts()[name]
    assert re.search(r"severity: (critical|warning|none), source: rules", rule)
    assert "summary: " in rule
    assert "description: " in rule
    book = re.search(r"runbook_url: (docs/runbooks/(\w+)\.md)\n", rule)
    assert book is not None
    assert (ROOT / book[1]).is_file()


def test_each_kind_of_incident_has_a_page_and_each_page_is_listed() -> None:
    index = (ROOT / "docs" / "runbooks" / "README.md").read_text()
    for name in {*RUNBOOKS.values(), OTHER_RUNBOOK, *alerts()}:
        assert name in index, name
    for kind in RUNBOOKS:
        assert alertname(kind) in index, kind
    assert {*RUNBOOKS.values(), OTHER_RUNBOOK, alert_needs.NAME, alert_shared.NAME} <= BOOKS.keys()


def test_the_page_of_who_waits_names_every_reason() -> None:
    text = BOOKS[alert_needs.NAME].read_text()
    assert {
        reason for reason in (*OF_NODE, *OF_POOL, "job", "approval", "failed", "unused") if f"`{reason}`" not in text
    } == set()


@pytest.mark.parametrize("name", sorted(BOOKS))
def test_a_run_book_is_short_and_has_the_four_parts(name: str) -> None:
    text = BOOKS[name].read_text()
    assert text.startswith(f"# {name}\n")
    parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert parts == ["Look here", "Do this", "Stop gpuwatch's hands"]
    assert len(text.splitlines()) <= 45
    assert "HOLD" in text
    for link in re.findall(r"\]\(([^)]+\.md)\)", text):
        assert (BOOKS[name].parent / link).is_file()


@pytest.mark.needs("promtool")
def test_the_example_of_prometheus_is_valid() -> None:
    assert "2 rule files found" in run("promtool", "check", "config", "deploy/prometheus.example.yml")


@pytest.mark.needs("amtool")
def test_the_example_of_alertmanager_is_valid() -> None:
    assert "SUCCESS" in run("amtool", "check-config", "deploy/alertmanager.example.yml")


@pytest.mark.needs("amtool")
@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        pytest.param({"alertname": "GpuwatchNodeDead", "severity": "critical"}, "pager", id="critical-pages"),
        pytest.param({"alertname": "GpuwatchRebooted", "severity": "warning"}, "tickets", id="warning-waits"),
        pytest.param({"alertname": "GpuwatchWatchdog", "severity": "none"}, "dead-mans-switch", id="watchdog"),
    ],
)
def test_the_example_routes(labels: dict[str, str], receiver: str) -> None:
    words = [f"{name}={value}" for name, value in labels.items()]
    file = "--config.file=deploy/alertmanager.example.yml"
    assert run("amtool", "config", "routes", "test", file, *words).splitlines()[0] == receiver
