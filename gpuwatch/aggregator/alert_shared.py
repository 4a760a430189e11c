"""One fault of something that many share, told once: while it stands, the alerts of its nodes are quiet. Pure.

Alertmanager quiets them (`inhibit_rules` of the example): by `pool` and `cause`, which they have in common with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.aggregator.alerts import MOST_ANNOTATION, Alert, clock_words, filled, price_words, runbook
from gpuwatch.aggregator.money import IncidentMoney
from gpuwatch.aggregator.sharing import Together

NAME = "GpuwatchSharedCause"
MOST_SLOTS = 40
_WORDS = {
    "shared_cause": "{count} nodes of {where} show the same fault: something they share has failed",
    "many_silent": "{count} agents are silent at once: first suspected to be gpuwatch or the network",
    "stalled_together": "several runs stopped together: suspect what they share, a file system or the network",
}


def alert_of_shared(
    together: Together,
    *,
    prices: Mapping[str, Any],
    faults: Mapping[str, str],
    cluster: str,
    page_url: str,
    settings: AlertmanagerSettings,
) -> Alert:
    """`prices`: fault -> its money. `faults`: slot -> the fault that is open there."""
    cause, subject = together.cause, together.cause.subject
    labels = {
        **settings.labels,
        "alertname": NAME,
        "severity": settings.severities.get(cause.rule, "critical"),
        "source": "gpuwatch",
        "cluster": cluster,
        "kind": cause.rule,
        "cause": cause.cause,
        "pool": together.pool,
        subject.kind if subject.kind == "domain" else "subject": subject.id,
    }
    known = [price for slot in cause.slots if (price := prices.get(faults.get(slot, ""))) is not None]
    total = IncidentMoney(
        usd=sum((price.usd for price in known), Decimal(0)),
        by_category={},
        usd_per_hour_now=sum((price.usd_per_hour_now for price in known), Decimal(0)),
    )
    more = f" and {len(cause.slots) - MOST_SLOTS} more" if len(cause.slots) > MOST_SLOTS else ""
    where = f"{subject.kind} {subject.id}"
    annotations = {
        "summary": _WORDS.get(cause.rule, "{count} nodes: {rule}").format(
            count=len(cause.slots), where=where, rule=cause.rule
        ),
        "description": f"{cause.because}. All of them are held: nothing is done to them.",
        "slots": ", ".join(cause.slots[:MOST_SLOTS]) + more,
        "since": clock_words(together.since_unix_ns),
        "price": price_words(total if known else None),
        "page_url": f"{page_url.rstrip('/')}/",
        "runbook_url": runbook(settings, NAME),
    }
    return Alert(
        id="/".join(together.key()),
        labels=filled(labels),
        annotations=filled(annotations, MOST_ANNOTATION),
        started_unix_ns=together.since_unix_ns,
        ended_unix_ns=None,
        link=annotations["page_url"],
        rank=0,
    )
