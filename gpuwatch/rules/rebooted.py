"""A node came back with another boot id, and neither said goodbye nor was told to reboot.

Such a reboot is a panic, a power loss or a host fault, and what killed it may come again (fault, panic, reboot, back in
service is a known endless loop). For `watch_s` it is only suspect: it takes no action by itself, it is what the next
fault of this machine is read with.
"""

from __future__ import annotations

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be set, with its usual value."""

    watch_s: float = 600.0  # how long such a reboot keeps a node suspect; a choice, no measured number


def examine(view: NodeView, now: Moment, settings: Settings) -> Evidence | None:
    """By the aggregator's monotonic clock: the node's wall clock may be wrong after a boot."""
    changed_ns = view.boot_changed_monotonic_ns
    if changed_ns is None or view.previous_boot is None or view.previous_goodbye:
        return None
    age_s = now.age_s(changed_ns)
    if age_s > settings.watch_s:
        return None
    return Evidence(
        rule="rebooted",
        subject=Subject("machine", view.machine),
        argues_for=Health.SUSPECT,
        because="it rebooted by itself, without a goodbye and without an order of ours",
        kind="rebooted",
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    on="tick",
    matters="what killed it once may do it again in the middle of a run",
    source="fault, panic, reboot, back in service: a loop known from public fault reports",
)
