"""A real Alertmanager under odd names, a hundred incidents at once, restarts of both sides: each begin and end once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.aggregator.alert_push import Pusher
from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.aggregator.alerts import MOST_ANNOTATION, MOST_LABEL, Alert, filled
from gpuwatch.clock import SystemClock
from tests.alerting import RealAlertmanager, Webhook, until

pytestmark = pytest.mark.needs("prometheus-alertmanager")
HOUR_NS = 3600 * 10**9
ODD = {
    "quotes": "a\"b'c`d",
    "backslash": "\\n \\ \\\\",
    "lines": "one\ntwo\r\nthree\ttabs",
    "template": '{{ .Labels.slot }} {{ template "x" }} ${HOME}',
    "words": "grün 節點 \U0001f525 \u202eright to left \u2028",
    "control": "\x00\x01\x1b[31m\x7f",
    "braces": '{slot="gpu01",pool=~".*"}',
    "long": "x" * 10_000,
    "spaces": "   ",
}


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    made = Webhook()
    yield made
    made.close()


@pytest.fixture
def alertmanager(tmp_path: Path, webhook: Webhook) -> Iterator[RealAlertmanager]:
    made = RealAlertmanager(tmp_path / "alertmanager", webhook)
    made.start()
    yield made
    made.stop()


def an_alert(fault: str, text: str = "words", started_ago_ns: int = 10**9) -> Alert:
    return Alert(
        id=fault,
        labels=filled({"alertname": "GpuwatchNodeDead", "fault": fault, "slot": text, "run": text}),
        annotations=filled({"summary": text, "now": text, "story": text, "empty": ""}, MOST_ANNOTATION),
        started_unix_ns=time.time_ns() - started_ago_ns,
        ended_unix_ns=None,
        link=f"http://gw/#{fault}",
    )


def pusher(alertmanager: RealAlertmanager, alerts: dict[str, Alert]) -> Pusher:
    settings = AlertmanagerSettings(resend_s=0.2)
    return Pusher(alertmanager.url, settings, lambda: tuple(alerts.values()), SystemClock())


def test_odd_names_arrive_as_they_are(webhook: Webhook, alertmanager: RealAlertmanager) -> None:
    alerts = {name: an_alert(name, text) for name, text in ODD.items()}
    made = pusher(alertmanager, alerts)
    made.turn()
    assert (made.failure_count, made.refused_count) == (0, 0)
    until("all page", lambda: len(set(webhook.told())) == len(ODD))
    for name, text in ODD.items():
        (told,) = webhook.alerts(fault=name)
        assert told["labels"]["slot"] == (text if len(text) <= MOST_LABEL else text[: MOST_LABEL - 1] + "…")
        assert told["annotations"]["summary"][:4000].rstrip("…") == text[:3999].rstrip("…")


@pytest.mark.parametrize(
    ("began_ago_s", "ended_ago_s"),
    [
        pytest.param(-3600, None, id="begins-in-an-hour"),
        pytest.param(60, 3600, id="ends-before-it-began"),
        pytest.param(-3600, -1800, id="ends-in-the-future"),
        pytest.param(86400 * 400, None, id="more-than-a-year-old"),
    ],
)
def test_times_that_cannot_be_are_refused_by_nobody(
    webhook: Webhook, alertmanager: RealAlertmanager, began_ago_s: int, ended_ago_s: int | None
) -> None:
    """After a step of our clock the ledger's times are what they are."""
    odd = an_alert("odd", started_ago_ns=began_ago_s * 10**9)
    if ended_ago_s is not None:
        odd = odd.over(time.time_ns() - ended_ago_s * 10**9)
    alerts = {"odd": odd, "fine": an_alert("fine")}
    made = pusher(alertmanager, alerts)
    made.turn()
    assert (made.failure_count, made.refused_count) == (0, 0)
    until("it pages", lambda: ("firing", "fine") in webhook.told())
    if ended_ago_s is None:
        until("the odd one, too", lambda: ("firing", "odd") in webhook.told())


def test_a_hundred_at_once_over_restarts_of_both_each_begin_and_end_once(
    webhook: Webhook, alertmanager: RealAlertmanager
) -> None:
    alerts = {f"f{number}": an_alert(f"f{number}") for number in range(100)}
    made = pusher(alertmanager, alerts)
    made.turn()
    until("all page", lambda: len(webhook.told()) == 100, 30)
    made = pusher(alertmanager, alerts)  # the next aggregator
    made.turn()
    time.sleep(1.5)  # it writes down what it has told a moment later
    alertmanager.stop()
    assert made.turn() == 1.0 or made.failure_count == 1
    for number in range(50):
        alerts[f"f{number}"] = msgspec.structs.replace(alerts[f"f{number}"], ended_unix_ns=time.time_ns())
    alertmanager.start()
    made = pusher(alertmanager, alerts)  # and one more, that never saw them open
    made.turn()
    until("the ends are told", lambda: len(webhook.told()) == 150, 30)
    for _ in range(10):
        time.sleep(0.25)
        made.turn()
    told = Counter(webhook.told())
    assert set(told.values()) == {1}
    assert sum(1 for status, _ in told if status == "resolved") == 50
