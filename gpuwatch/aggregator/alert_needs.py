"""A person is needed now: what waits, since when, what it costs meanwhile, and the command that lets it go on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.aggregator.alerts import MOST_ANNOTATION, Alert, clock_words, filled, runbook
from gpuwatch.aggregator.needs import Need
from gpuwatch.aggregator.unblock import MOST_SLOTS

NAME = "GpuwatchPersonNeeded"
KIND = "person_needed"
_WORDS = {
    "job": "{who} waits for a job that gpuwatch may not end",
    "approval": "{who} waits for your approval",
    "failed": "an action on {who} failed",
    "unused": "a machine of {who} is paid for and does nothing",
    "budget": "{who} must wait: as many nodes of pool {pool} are out as may be",
    "domain": "{who} must wait: as many nodes of its failure domain are out as may be",
    "inspector": "{who} waits: the plan was refused on inspection",
    "group_owner": "{who} waits: its cloud group is not gpuwatch's to change",
    "attempts": "{who} is sick again, and was mended often enough",
    "person": "{who} is sick in a way that only a person or the provider can mend",
    "quarantined": "{who} is quarantined until a person has looked",
    "expired": "{who} has an old kernel event that nobody has looked at",
    "drained": "{who} is drained, and mode drain goes no further",
    "job_action": "{who} stands still, and the policy leaves it to its owner",
    "drain_unknown": "{who} is well, and drained for a reason that is not known any more",
    "repair_unproven": "{who} seems well, and nothing proves that it was mended",
}


def alert_of_need(
    need: Need,
    *,
    command: str,
    run: str,
    prices: Mapping[str, Any],
    cluster: str,
    page_url: str,
    settings: AlertmanagerSettings,
) -> Alert:
    """`run`: the run that its fault hit. `prices`: fault -> its money."""
    slot = need.slots[0] if need.fault and not need.slots[0].startswith("run:") else ""
    labels = {
        **settings.labels,
        "alertname": NAME,
        "severity": settings.severities.get(KIND, "critical"),
        "source": "gpuwatch",
        "cluster": cluster,
        "kind": KIND,
        "reason": need.reason,
        "fault": need.fault,
        "pool": need.pool,
        "slot": slot or (need.slots[0] if need.key()[1] == need.slots[0] else ""),
        "run": run,
    }
    link = f"{page_url.rstrip('/')}/" + (f"#{quote(need.fault)}" if need.fault else "")
    annotations = {
        "summary": summary(need),
        "description": need.because,
        "waits": ", ".join(need.slots[:MOST_SLOTS]) + _more(need.slots),
        "jobs": ", ".join(need.jobs),
        "since": clock_words(need.since_unix_ns),
        "price": _price(need, prices),
        "unblock": command,
        "machine": need.machine,
        "page_url": link,
        "runbook_url": runbook(settings, NAME),
    }
    return Alert(
        id="/".join((KIND, *need.key())),
        labels=filled(labels),
        annotations=filled(annotations, MOST_ANNOTATION),
        started_unix_ns=need.since_unix_ns,
        ended_unix_ns=None,
        link=link,
    )


def told(need: Need, command: str) -> dict[str, Any]:
    """The same for the page."""
    return {
        "reason": need.reason,
        "summary": summary(need),
        "because": need.because,
        "slots": need.slots,
        "since_unix_ns": need.since_unix_ns,
        "unblock": command,
    }


def summary(need: Need) -> str:
    """Who waits for what, in a sentence."""
    one = need.fault or len(need.slots) == 1
    who = need.slots[0].replace("run:", "run ", 1) if one else f"{len(need.slots)} nodes of pool {need.pool}"
    words = _WORDS.get(need.reason, "{who} is held ({reason})")
    return words.format(who=who, pool=need.pool, reason=need.reason.replace("_", " "))


def _more(slots: tuple[str, ...]) -> str:
    return f" and {len(slots) - MOST_SLOTS} more" if len(slots) > MOST_SLOTS else ""


def _price(need: Need, prices: Mapping[str, Any]) -> str:
    known = [prices[fault] for fault in need.faults if prices.get(fault) is not None]
    if not known:
        return "no price yet, or none is known"
    an_hour = sum((price.usd_per_hour_now for price in known), Decimal(0))
    so_far = sum((price.usd for price in known), Decimal(0))
    return f"${an_hour:,.2f} an hour while it waits, ${so_far:,.2f} so far"
