"""A service is restarted again and again: it is up at each look, and of no use.

systemd counts how often it restarted a unit by itself (NRestarts). NVIDIA/NVSentinel#1748: 49 restarts of a monitor
while a GPU's errors grew, and nobody was told: the agent's own unit is among those that are counted. Told from
`told_at` within the agent's window of an hour, never judged: what such a service lacks, other rules see.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.services import ServicesFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Restarts within the window."""

    told_at: int = 3


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where the agent does not watch services."""
    facts = view.facts.get(ServicesFacts)
    for unit in facts.units if facts is not None else ():
        if facts is not None and unit.recent_restart_count >= settings.told_at:
            minutes = facts.restart_window_s / 60
            yield Evidence(
                rule="service_restarts",
                subject=Subject("machine", f"{view.machine}/{unit.name}"),
                argues_for=Health.SUSPECT,
                because=f"{unit.name} was restarted {unit.recent_restart_count} times within {minutes:.0f} minutes",
                cause=f"service_restarts_{unit.name.partition('.')[0]}",
                software=True,
                note=True,
            )


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(ServicesFacts,),
    matters="a service that starts anew all the time does no work and hides why",
    source="NVIDIA/NVSentinel#1748",
)
