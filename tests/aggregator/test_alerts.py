"""An incident as an alert: labels that stay, a story that goes on, and the run that it hit."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.aggregator import settings
from gpuwatch.aggregator.alert_runs import AlertRuns
from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.aggregator.alerts import alert_of, alertname, body
from gpuwatch.aggregator.money import IncidentMoney
from gpuwatch.errors import ConfigError
from gpuwatch.model.incident import Entry
from gpuwatch.model.ledger import AttemptEnded, AttemptStarted, FaultOpened, LedgerLine, Member, MemberLeft
from gpuwatch.store.sqlite import Store

AT_NS = 1_796_056_801_250_000_000
INCIDENT: dict[str, Any] = {
    "fault": "node_dead-gpu04-1796056790",
    "kind": "node_dead",
    "slot": "gpu04",
    "machine": "m4",
    "run": None,
    "pool": "h100",
    "cause": "node_dead",
    "because": "its agent has been silent for 31 s, and the cloud says that it failed",
    "onset_unix_ns": AT_NS - 11 * 10**9,
    "detected_unix_ns": AT_NS,
    "closed_unix_ns": None,
    "now": "draining (step 1 of 9)",
    "price": IncidentMoney(usd=Decimal("1241.09"), by_category={}, usd_per_hour_now=Decimal("2163.04")),
    "timeline": (Entry(at_unix_ns=AT_NS, text="detected: silent"),),
}


def alert(settings: AlertmanagerSettings | None = None, run: str = "opt", **changes: Any) -> Any:
    return alert_of(
        INCIDENT | changes,
        run=run,
        cluster="alpha",
        page_url="http://gw:9190/",
        settings=settings or AlertmanagerSettings(),
    )


def test_labels_to_route_on() -> None:
    assert alert().labels == {
        "alertname": "GpuwatchNodeDead",
        "severity": "critical",
        "source": "gpuwatch",
        "cluster": "alpha",
        "kind": "node_dead",
        "fault": "node_dead-gpu04-1796056790",
        "cause": "node_dead",
        "pool": "h100",
        "slot": "gpu04",
        "run": "opt",
    }


def test_annotations_tell_the_story_and_the_price() -> None:
    assert alert().annotations == {
        "summary": "gpu04: the node is dead",
        "description": "its agent has been silent for 31 s, and the cloud says that it failed",
        "now": "draining (step 1 of 9)",
        "price": "$1,241.09 so far, $2,163.04 an hour now",
        "since": "2026-11-30 16:39:50 UTC",
        "machine": "m4",
        "story": "2026-11-30 16:40:01 UTC detected: silent",
        "page_url": "http://gw:9190/#node_dead-gpu04-1796056790",
        "runbook_url": "docs/runbooks/GpuwatchNodeDead.md",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"now": "over: m9 took its place", "closed_unix_ns": AT_NS + 1},
        {"machine": "m9", "because": "other words", "price": None},
        {"timeline": (Entry(at_unix_ns=1, text="a"), Entry(at_unix_ns=2, text="b"))},
    ],
)
def test_whatever_goes_on_the_labels_stay(change: dict[str, Any]) -> None:
    assert alert(**change).labels == alert().labels
    assert alert(**change).told() != alert().told() or "price" in change


def test_a_price_that_grows_is_no_reason_to_tell_it_again_at_once() -> None:
    assert alert(price=None).told() == alert().told()
    assert alert(price=None).annotations["price"] == "no price yet, or none is known"


def test_a_run_and_an_unknown_kind() -> None:
    stalled = alert(kind="run_stalled", slot=None, run="opt")
    assert stalled.annotations["summary"] == "run opt: training makes no progress"
    assert "slot" not in stalled.labels
    strange = alert(kind="fan_failed")
    assert (strange.labels["alertname"], strange.labels["severity"]) == ("GpuwatchFanFailed", "critical")
    assert strange.annotations["runbook_url"] == "docs/runbooks/GpuwatchIncident.md"
    assert alertname("gpu_lost") == "GpuwatchGpuLost"


def test_severities_labels_and_addresses_are_set_by_the_operator() -> None:
    own = AlertmanagerSettings(
        severities={"node_dead": "warning"},
        labels={"site": "north", "severity": "info"},
        runbook_url="https://wiki.example/gpuwatch/",
    )
    made = alert(own)
    assert (made.labels["severity"], made.labels["site"]) == ("warning", "north")
    assert made.annotations["runbook_url"] == "https://wiki.example/gpuwatch/GpuwatchNodeDead.md"


def test_the_body_is_what_alertmanager_takes() -> None:
    made = msgspec.json.decode(body([alert(), alert(closed_unix_ns=AT_NS + 10**9)], now_unix_ns=AT_NS, expires_s=900))
    assert made[0]["startsAt"] == "2026-11-30T16:40:01.250Z"
    assert made[0]["endsAt"] == "2026-11-30T16:55:01.250Z"
    assert made[1]["endsAt"] == "2026-11-30T16:40:01.250Z"  # never in the future: over is over
    assert body([], now_unix_ns=1, expires_s=1) == b"[]"


def started(run: str, *machines: str, attempt: str = "a1") -> AttemptStarted:
    members = tuple(Member(machine=machine, gpu_thousandths=8000) for machine in machines)
    return AttemptStarted(at_unix_ns=3600, run=run, attempt=attempt, members=members)


def fault(name: str, machine: str | None, run: str | None = None) -> FaultOpened:
    return FaultOpened(
        at_unix_ns=3600, fault=name, kind="k", onset_unix_ns=1, cause="c", because="b", machine=machine, run=run
    )


def test_the_run_of_a_fault_is_read_from_the_ledger_and_never_changes(tmp_path: Path) -> None:
    store = Store(tmp_path / "ledger.db")
    early: list[LedgerLine] = [
        fault("before", "m1"),
        started("opt", "m1", "m2"),
        fault("during", "m1"),
        MemberLeft(at_unix_ns=3600, run="opt", attempt="a1", machine="m2"),
        fault("left", "m2"),
    ]
    store.append(early)
    runs = AlertRuns(store)
    store.append(
        [
            AttemptEnded(at_unix_ns=3600, run="opt", attempt="a1", ended="planned"),
            fault("after", "m1"),
            fault("stall", None, "opt"),
            started("other", "m1", attempt="a2"),
        ]
    )
    names = ("before", "during", "left", "after", "stall", "never")
    expected = ["", "opt", "", "", "opt", ""]
    assert [runs.run_of(name) for name in names] == expected
    assert [AlertRuns(store).run_of(name) for name in names] == expected  # the next process says the same
    store.close()


GOOD = """
[server]
secret_file = "secret"
[alertmanager]
urls = ["http://127.0.0.1:9093", "https://am.example/prefix"]
username = "gpuwatch"
password_file = "password"
severities = { rebooted = "info" }
labels = { site = "north" }
"""


def test_settings_are_read_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    got = settings.load(tmp_path / "a.toml").alertmanager
    assert got.urls == ("http://127.0.0.1:9093", "https://am.example/prefix")
    assert got.password_file == tmp_path / "password"
    (tmp_path / "b.toml").write_text('[server]\nsecret_file = "secret"\n')
    assert settings.load(tmp_path / "b.toml").alertmanager == AlertmanagerSettings()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('urls = ["127.0.0.1:9093"]', "alertmanager.urls"),
        ('urls = ["http://me:secret@am:9093"]', "it belongs into password_file"),
        ('urls = ["http://a", "http://a"]', "each address once"),
        ('token_file = "t"\nusername = "u"\npassword_file = "p"', "alertmanager.token_file"),
        ('username = "u"', "alertmanager.password_file"),
        ("resend_s = 600", "at least three times resend_s (600)"),
        ('labels = { "my-site" = "north" }', "alertmanager.labels.my-site"),
        ('severities = { node_dead = "loud" }', "severities"),
        ('url = "http://a"', "urls"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "a.toml").write_text(f'[server]\nsecret_file = "secret"\n[alertmanager]\n{line}\n')
    with pytest.raises(ConfigError) as refusal:
        settings.load(tmp_path / "a.toml")
    assert said in str(refusal.value)
    assert "secret@" not in str(refusal.value)
