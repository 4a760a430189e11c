"""A real Alertmanager with our example configuration: many nodes with one fault are one page, and no end is lost."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwatch.aggregator.alert_push import Pusher
from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.clock import SystemClock
from tests.alerting import RealAlertmanager, Webhook, desk_of, until
from tests.fakes_centre import Centre

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.needs("prometheus-alertmanager")


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    made = Webhook()
    yield made
    made.close()


@pytest.fixture
def alertmanager(tmp_path: Path, webhook: Webhook) -> Iterator[RealAlertmanager]:
    example = (ROOT / "deploy" / "alertmanager.example.yml").read_text()
    config = re.sub(r"http://127.0.0.1:9094/\w+", webhook.url, example)
    config = config.replace("group_wait: 10s", "group_wait: 600ms").replace("group_interval: 1m", "group_interval: 1s")
    made = RealAlertmanager(tmp_path / "alertmanager", webhook, config)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, mode="replace")
    made.settle()
    yield made
    assert made.store is not None
    made.store.close()


def pages(webhook: Webhook) -> list[tuple[str, str, str]]:
    return [
        (alert["status"], alert["labels"]["alertname"], alert["labels"].get("slot", ""))
        for message in list(webhook.messages)
        for alert in message["alerts"]
    ]


def test_a_rack_that_fails_is_one_page(centre: Centre, webhook: Webhook, alertmanager: RealAlertmanager) -> None:
    desk = desk_of(centre)
    settings = AlertmanagerSettings(resend_s=0.1)
    pusher = Pusher(alertmanager.url, settings, desk.alerts, SystemClock())
    for number in range(1, 5):
        centre.agents[f"m-gpu0{number}"].xid(79)
    centre.seconds(10)
    assert desk.alerts()[0].labels["alertname"] == "GpuwatchSharedCause"  # what keeps the others quiet goes first
    pusher.turn()
    assert len(pusher._told) == 5  # four nodes, and what they have in common
    until("it pages", lambda: bool(webhook.messages))
    time.sleep(2.0)
    assert pages(webhook) == [("firing", "GpuwatchSharedCause", "")]
    told = webhook.alerts(alertname="GpuwatchSharedCause")[0]
    assert (told["labels"]["pool"], told["labels"]["kind"]) == ("p", "shared_cause")
    assert told["annotations"]["slots"] == "gpu01, gpu02, gpu03, gpu04"


def test_an_end_that_was_kept_quiet_is_told_when_nothing_keeps_it_quiet_any_more(
    centre: Centre, webhook: Webhook, alertmanager: RealAlertmanager
) -> None:
    """Alertmanager tells no end of an alert that is inhibited: a pager would show it open for ever."""
    desk = desk_of(centre)
    pusher = Pusher(alertmanager.url, AlertmanagerSettings(resend_s=0.1), desk.alerts, SystemClock())
    centre.people.hold("gpu01", "me", "I am looking")  # or it would be replaced
    centre.agents["m-gpu01"].xid(79)
    centre.seconds(5)
    pusher.turn()
    until("the first pages", lambda: ("firing", "GpuwatchGpuLost", "gpu01") in pages(webhook))
    for number in range(2, 5):
        centre.agents[f"m-gpu0{number}"].xid(79)
    centre.seconds(10)
    pusher.turn()
    until("the shared cause pages", lambda: ("firing", "GpuwatchSharedCause", "") in pages(webhook))
    for number in range(1, 5):
        centre.fleet.current(f"gpu0{number}").events = ()  # type: ignore[union-attr]  # cleared by a person
        if number == 1:
            centre.seconds(6)
            pusher.turn()
            time.sleep(2.5)
            assert centre.states()["gpu01"] == "healthy in_service"
            assert ("resolved", "GpuwatchGpuLost", "gpu01") not in pages(webhook)  # the others still show it
    for _ in range(80):
        centre.second()
        desk.alerts()
    assert not centre.book.open
    over = ("resolved", "GpuwatchSharedCause", ""), ("resolved", "GpuwatchGpuLost", "gpu01")

    def both() -> bool:
        pusher.turn()
        return set(over) <= set(pages(webhook))

    until("both ends are told", both)
    told = pages(webhook)
    assert {page for page in told if page[2] in ("gpu02", "gpu03", "gpu04")} == set()
    assert len(told) == len(set(told))  # each once
