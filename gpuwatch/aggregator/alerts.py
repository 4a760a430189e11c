"""An incident as an alert: labels to route on, which never change, and annotations that tell the story so far. Pure.

Alertmanager knows an alert by its labels alone: a label that changed would be another alert, and the first would never
be resolved. So whatever may change (who is to blame, what is being done, the price) is an annotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import msgspec

from gpuwatch.aggregator.alert_settings import AlertmanagerSettings

MOST_LABEL, MOST_LINE, MOST_ANNOTATION = 200, 300, 4000  # characters: pagers cut, or refuse, what is longer
STORY_LINES = 12  # the newest of the timeline; the page has all
RESOLVED_S = 24 * 3600.0  # an end is told to whoever was away for so long
WARNINGS = frozenset({"gpu_missing", "rebooted", "node_absent", "maintenance"})
"""Kinds that can wait until the morning; every other one pages. `severities` overrides."""
RUNBOOKS = {
    "node_dead": "GpuwatchNodeDead",
    "node_absent": "GpuwatchNodeDead",
    "driver_failed": "GpuwatchDriverFailed",
    "gpu_lost": "GpuwatchDriverFailed",
    "gpu_missing": "GpuwatchDriverFailed",
    "xid": "GpuwatchDriverFailed",
    "run_stalled": "GpuwatchRunStalled",
    "maintenance": "GpuwatchMaintenance",
}
OTHER_RUNBOOK = "GpuwatchIncident"
_WORDS = {
    "maintenance": "the cloud will take it down, and it is drained ahead of that",
    "node_dead": "the node is dead",
    "node_absent": "the machine is gone, and nobody took it away",
    "driver_failed": "the GPU driver has failed",
    "gpu_lost": "a GPU has fallen off the bus",
    "gpu_missing": "a GPU is missing",
    "xid": "the kernel reports a fatal GPU error",
    "run_stalled": "training makes no progress",
    "rebooted": "the node rebooted by itself",
}


_NUMBER = re.compile(r"\d+")


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """What Alertmanager is to know of one incident, or of whatever else stands for a while."""

    id: str  # the same as long as the labels are
    labels: dict[str, str]
    annotations: dict[str, str]
    started_unix_ns: int
    ended_unix_ns: int | None  # None: it is open
    link: str
    rank: int = 1  # what keeps others quiet is told before them: Alertmanager may page at once for what began long ago

    def over(self, at_unix_ns: int) -> Alert:
        """The same, ended."""
        return msgspec.structs.replace(self, ended_unix_ns=at_unix_ns)

    def moved(self, by_ns: int) -> Alert:
        """The same, by a clock that is so far ahead of ours."""
        ended = None if self.ended_unix_ns is None else self.ended_unix_ns + by_ns
        return msgspec.structs.replace(self, started_unix_ns=self.started_unix_ns + by_ns, ended_unix_ns=ended)

    def told(self) -> tuple[object, ...]:
        """What makes it worth telling again at once: all but the price and other numbers that grow by the second."""
        texts = (text for name, text in sorted(self.annotations.items()) if name not in ("price", "now"))
        return (self.ended_unix_ns, _NUMBER.sub("#", self.annotations.get("now", "")), *texts)


def alert_of(
    incident: Mapping[str, Any], *, run: str, cluster: str, page_url: str, settings: AlertmanagerSettings
) -> Alert:
    """`incident`: as the overview tells it. `run`: the run that it hit when it was detected; empty: none."""
    kind, slot, fault = incident["kind"], incident["slot"] or "", incident["fault"]
    labels = {
        **settings.labels,
        "alertname": alertname(kind),
        "severity": settings.severities.get(kind, "warning" if kind in WARNINGS else "critical"),
        "source": "gpuwatch",
        "cluster": cluster,
        "kind": kind,
        "fault": fault,
        "cause": incident["cause"],
        "pool": incident["pool"],
        "slot": slot,
        "run": run,
    }
    subject = slot or (f"run {run}" if run else fault)
    link = f"{page_url.rstrip('/')}/#{quote(fault)}"
    annotations = {
        "summary": f"{subject}: {_WORDS.get(kind, kind.replace('_', ' '))}",
        "description": incident["because"],
        "now": incident["now"] or "watched; nothing is being done",
        "price": price_words(incident["price"]),
        "since": clock_words(incident["onset_unix_ns"]),
        "machine": incident["machine"] or "",
        "story": "\n".join(
            f"{clock_words(entry.at_unix_ns)} {entry.text[:MOST_LABEL]}"
            for entry in incident["timeline"][-STORY_LINES:]
        ),
        "page_url": link,
        "runbook_url": runbook(settings, RUNBOOKS.get(kind, OTHER_RUNBOOK)),
    }
    return Alert(
        id=fault,
        labels=filled(labels),
        annotations=filled(annotations, MOST_ANNOTATION),
        started_unix_ns=incident["detected_unix_ns"],
        ended_unix_ns=incident["closed_unix_ns"],
        link=link,
        rank=1 if incident["machine"] else 2,  # a run's, of which no node is known yet
    )


def alertname(kind: str) -> str:
    """`node_dead` -> `GpuwatchNodeDead`, which is also the name of the rule that stands in for the push."""
    return "Gpuwatch" + "".join(word.capitalize() for word in kind.split("_"))


def filled(texts: Mapping[str, str], most: int = MOST_LABEL) -> dict[str, str]:
    """Without empty ones, none longer than so many characters. An empty label is no label to Alertmanager."""
    return {name: text if len(text) <= most else f"{text[: most - 1]}…" for name, text in texts.items() if text}


def runbook(settings: AlertmanagerSettings, name: str) -> str:
    """Where a person at night reads on."""
    return f"{settings.runbook_url.rstrip('/')}/{name}.md"


def body(alerts: Iterable[Alert], *, now_unix_ns: int, expires_s: float) -> bytes:
    """The JSON of `POST /api/v2/alerts`."""
    until = _rfc3339(now_unix_ns + int(expires_s * 1e9))
    return msgspec.json.encode(
        [
            {
                "labels": alert.labels,
                "annotations": alert.annotations,
                "startsAt": _rfc3339(min(alert.started_unix_ns, now_unix_ns)),
                "endsAt": until if alert.ended_unix_ns is None else _ended(alert, now_unix_ns),
                "generatorURL": alert.link,
            }
            for alert in alerts
        ]
    )


def _ended(alert: Alert, now_unix_ns: int) -> str:
    """Never in the future: over is over. Never before its start, though our clock stepped back: that is refused."""
    ended_ns = min(alert.ended_unix_ns or now_unix_ns, now_unix_ns)
    return _rfc3339(max(ended_ns, min(alert.started_unix_ns, now_unix_ns)))


def price_words(price: Any) -> str:
    """Dollars so far and an hour; what has no price is not called zero."""
    if price is None:
        return "no price yet, or none is known"
    more = f", ${price.usd_per_hour_now:,.2f} an hour now" if price.usd_per_hour_now > Decimal(0) else ""
    return f"${price.usd:,.2f} so far{more}"


def clock_words(unix_ns: int) -> str:
    """`2026-11-30 16:40:01 UTC`."""
    return datetime.fromtimestamp(unix_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _rfc3339(unix_ns: int) -> str:
    return (
        datetime.fromtimestamp(unix_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        + f"{unix_ns % 10**9 // 10**6:03d}Z"
    )
