"""The cloud has announced that it will reboot, move, freeze or take this machine.

What the cloud plans is no fault of the node: it is told, and counts for nothing, until the pool's policy says to take
the node out ahead of it (`drain_before_maintenance_s`), and only for what a training process does not live through.
Azure announces reboots some minutes ahead and evictions 30 s (learn.microsoft.com/azure/virtual-machines/linux/
scheduled-events). An announcement that may be another machine's is told as such and never acted on.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.maintenance import MaintenanceFacts, Notice
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

OURS = frozenset({Lifecycle.REPAIRING, Lifecycle.VALIDATING, Lifecycle.REPLACING})


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: see `drain_before_maintenance_s` of the pool's policy."""


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence] | None:  # noqa: ARG001
    """Needs nothing: most nodes have no such source."""
    facts, source = view.facts.get(MaintenanceFacts), view.sources.get("maintenance")
    if facts is None or source is None or not facts.notices:
        return None
    return (_evidence(view, notice, facts.provider, source.received_monotonic_ns) for notice in facts.notices)


def _evidence(view: NodeView, notice: Notice, provider: str, received_monotonic_ns: int) -> Evidence:
    ours = notice.by_user and view.lifecycle in OURS  # our own action makes Azure announce what we ordered
    acts = notice.ends_work and notice.mine is True and notice.in_s is not None and not ours
    due_ns = received_monotonic_ns + int((notice.in_s or 0.0) * 1e9) if acts else None
    return Evidence(
        rule="maintenance",
        subject=Subject("machine", view.machine),
        argues_for=Health.SUSPECT,
        because=_words(notice, provider),
        conclusive=acts,
        action="contact_support" if acts else "none",
        kind="maintenance",
        due_monotonic_ns=due_ns,
        note=True,
    )


def _words(notice: Notice, provider: str) -> str:
    whose = "this machine" if notice.mine else "this machine or another of its group"
    what = f"{provider} has begun: {notice.kind}" if notice.started else f"{provider} will {notice.kind} {whose}"
    when = "" if notice.in_s is None or notice.started else f", not before {_utc(notice.not_before_unix_ns)}"
    who = ", ordered by a user" if notice.by_user else ""
    return f"{what}{when}{who}" + (f" ({notice.text})" if notice.text else "")


def _utc(unix_ns: int | None) -> str:
    try:
        when = datetime.fromtimestamp((unix_ns or 0) // 10**9, UTC)
    except (OverflowError, ValueError, OSError):
        return "a time that is no date"
    return f"{when:%Y-%m-%d %H:%M} UTC" if unix_ns else "an unknown time"


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(MaintenanceFacts,),
    matters="a run that is not saved and moved before then loses its work since the last checkpoint",
    source="learn.microsoft.com/azure/virtual-machines/linux/scheduled-events",
)
