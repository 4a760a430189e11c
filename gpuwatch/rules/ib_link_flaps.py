"""An RDMA link goes down and up again and again: each loss stalls every collective that runs over it.

The port's state alone never shows it (nebius/soperator#481: seen only when jobs fail): losses are counted by the card's
own `link_downed` and by changes of state, and stay counted for the agent's window of an hour, also over its restarts
(leptonai/gpud#1072, #1247). More than ten an hour is a bad cable or transceiver (the same thread); three are told.
A link that comes up at boot, INIT then ACTIVE, has not flapped (leptonai/gpud#1209).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.infiniband import InfinibandFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Losses within the agent's window, and how long before it is believed."""

    told_at: int = 3
    sick_at: int = 11
    after_s: float = 300.0  # a switch flaps for all its nodes, and they do not tell of it at one moment


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where the agent does not watch the RDMA network."""
    facts = view.facts.get(InfinibandFacts)
    for port in facts.ports if facts is not None else ():
        if not port.expected or port.flap_count < settings.told_at:
            continue
        note = port.flap_count < settings.sick_at
        minutes = f"{facts.flap_window_s / 60:.0f} minutes" if facts is not None else ""
        yield Evidence(
            rule="ib_link_flaps",
            subject=Subject("link", f"{view.machine}/{port.device}/{port.port}"),
            argues_for=Health.SUSPECT if note else Health.DEGRADED,
            because=f"RDMA {port.device} port {port.port} lost its link {port.flap_count} times in {minutes}",
            conclusive=not note,
            action="none" if note else "drain_replace",
            soft=True,
            must_last=0.0 if note else settings.after_s,
            note=note,
        )


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(InfinibandFacts,),
    matters="each loss stalls or kills the job that runs over the link",
    source="nebius/soperator#481, leptonai/gpud#1209",
)
