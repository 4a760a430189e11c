"""An incident as an alert: labels to route on, which never change, and annotations that tell the story so far. Pure.

Alertmanager knows an alert by its labels alone: a label that changed would be another alert, and the first would never
be resolved. So whatever may change (who is to blame, what is being done, the price) is an annotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import msgspec

from gpuwatch.aggregator.alert_settings import AlertmanagerSettings

STORY_LINES = 12  # the newest of the timeline; the page has all
RESOLVED_S = 24 * 3600.0  # an end is told to whoever was away for so long
WARNINGS = frozenset({"gpu_missing", "rebooted", "node_absent"})
"""Kinds that can wait until the morning; every other one pages. `severities` overrides."""
RUNBOOKS = {
    "node_dead": "GpuwatchNodeDead",
    "node_absent": "GpuwatchNodeDead",
    "driver_failed": "GpuwatchDriverFailed",
    "gpu_lost": "GpuwatchDriverFailed",
    "gpu_missing": "GpuwatchDriverFailed",
    "xid": "GpuwatchDriverFailed",
    "run_stalled": "GpuwatchRunStalled",
}
OTHER_RUNBOOK = "GpuwatchIncident"
_WORDS = {
    "node_dead": "the node is dead",
    "node_absent": "the machine is gone, and nobody took it away",
    "driver_failed": "the GPU driver has failed",
    "gpu_lost": "a GPU has fallen off the bus",
    "gpu_missing": "a GPU is missing",
    "xid": "the kernel reports a fatal GPU error",
    "run_stalled": "training makes no progress",
    "rebooted": "the node rebooted by itself",
}


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """What Alertmanager is to know of one incident."""

    fault: str
    labels: dict[str, str]
    annotations: dict[str, str]
    started_unix_ns: int
    ended_unix_ns: int | None  # None: it is open
    link: str

    def told(self) -> tuple[object, ...]:
        """What makes it worth telling again at once: everything but the price, which grows by the second."""
        return (self.ended_unix_ns, *(self.annotations[key] for key in ("summary", "now", "story")))


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
            f"{clock_words(entry.at_unix_ns)} {entry.text}" for entry in incident["timeline"][-STORY_LINES:]
        ),
        "page_url": link,
        "runbook_url": f"{settings.runbook_url.rstrip('/')}/{RUNBOOKS.get(kind, OTHER_RUNBOOK)}.md",
    }
    return Alert(
        fault=fault,
        labels={name: value for name, value in labels.items() if value},
        annotations=annotations,
        started_unix_ns=incident["detected_unix_ns"],
        ended_unix_ns=incident["closed_unix_ns"],
        link=link,
    )


def alertname(kind: str) -> str:
    """`node_dead` -> `GpuwatchNodeDead`, which is also the name of the rule that stands in for the push."""
    return "Gpuwatch" + "".join(word.capitalize() for word in kind.split("_"))


def body(alerts: Iterable[Alert], *, now_unix_ns: int, expires_s: float) -> bytes:
    """The JSON of `POST /api/v2/alerts`."""
    until = _rfc3339(now_unix_ns + int(expires_s * 1e9))
    return msgspec.json.encode(
        [
            {
                "labels": alert.labels,
                "annotations": {name: text for name, text in alert.annotations.items() if text},
                "startsAt": _rfc3339(alert.started_unix_ns),
                "endsAt": until if alert.ended_unix_ns is None else _rfc3339(min(alert.ended_unix_ns, now_unix_ns)),
                "generatorURL": alert.link,
            }
            for alert in alerts
        ]
    )


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
