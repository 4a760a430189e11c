"""An active RDMA link runs slower than it did before, or slower than its siblings: one slow rail slows the whole job.

A link that retrains over a worn cable comes up with fewer lanes or at an older speed, and stays "active" (imbue-ai
cluster-health checks rates for that). Slower than this very port ever was must last `after_s`, is soft and needs hands.
Slower than another port of the same board is a note: a storage rail may be meant to be slower.
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
    """How long before it is believed."""

    after_s: float = 900.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where the agent does not watch the RDMA network."""
    facts = view.facts.get(InfinibandFacts)
    ports = facts.ports if facts is not None else ()
    fastest: dict[tuple[str | None, str | None], float] = {}
    for port in ports:
        if port.expected and port.rate_gbps is not None and port.state == "active":
            kind = (port.board, port.link_layer)
            fastest[kind] = max(fastest.get(kind, 0.0), port.rate_gbps)
    for port in ports:
        if not port.expected or port.rate_gbps is None or port.state != "active":
            continue
        own, others = port.best_rate_gbps or 0.0, fastest[(port.board, port.link_layer)]
        slower_than_before = port.rate_gbps < own
        if not slower_than_before and (port.board is None or port.rate_gbps >= others):
            continue
        against = f"it ran at {own:g} before" if slower_than_before else f"another port of the board runs at {others:g}"
        yield Evidence(
            rule="ib_rate_low",
            subject=Subject("link", f"{view.machine}/{port.device}/{port.port}"),
            argues_for=Health.DEGRADED if slower_than_before else Health.SUSPECT,
            because=f"RDMA {port.device} port {port.port} runs at {port.rate_gbps:g} Gb/s, {against}",
            conclusive=slower_than_before,
            action="contact_support" if slower_than_before else "none",
            soft=True,
            must_last=settings.after_s if slower_than_before else 0.0,
            note=not slower_than_before,
        )


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(InfinibandFacts,),
    matters="the slowest rail sets the pace of the whole job",
    source="imbue-ai/cluster-health",
)
