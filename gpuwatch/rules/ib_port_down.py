"""An RDMA port that this node must have is not active, or is gone from the node.

Only ports that the agent's settings name, or that were active on this machine before: a board has ports without a
cable. A virtual function's may be down beside a fine physical link (Mellanox/network-operator#249), which is a note.
One loss is the start of a flap and no verdict (facebookresearch/gcm), so it must last `after_s`; what runs may use the
other rails, so it is soft. A learned Ethernet port that is gone is a note: clouds take virtual NICs away and bring them
back when they service a host.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.infiniband import InfinibandFacts, RdmaPort
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long before it is believed."""

    after_s: float = 300.0  # a switch's reboot and a subnet manager's failover are over by then


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where the agent does not watch the RDMA network."""
    facts = view.facts.get(InfinibandFacts)
    for port in facts.ports if facts is not None else ():
        if not port.hung and (port.gone or port.state not in (None, "active", "active_defer")):
            found = _finding(view, port, settings)
            if found is not None:
                yield found


def _finding(view: NodeView, port: RdmaPort, settings: Settings) -> Evidence | None:
    note = port.virtual or (port.gone and port.link_layer == "ethernet" and not port.configured)
    if not port.expected and not (port.virtual and port.phys_state == "linkup"):
        return None
    name = f"{port.device} port {port.port}"
    if port.gone:
        words = f"RDMA {name} is gone from this node"
    else:
        physical = f", its physical link is {port.phys_state}" if port.phys_state else ""
        words = f"RDMA {name} is {port.state}{physical}"
    if port.virtual:
        words += " (a virtual function or a port without a GUID)"
    elif not port.configured:
        words += "; it was active before"
    return Evidence(
        rule="ib_port_down",
        subject=Subject("link", f"{view.machine}/{port.device}/{port.port}"),
        argues_for=Health.SUSPECT if note else Health.DEGRADED,
        because=words,
        conclusive=not note,
        onset_unix_ns=port.not_active_since_unix_ns,
        action="none" if note else "drain_replace",
        soft=True,
        must_last=0.0 if note else settings.after_s,
        note=note,
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(InfinibandFacts,),
    matters="a job that uses all rails of this node fails or hangs at its first collective",
    source="Mellanox/network-operator#249, facebookresearch/gcm",
)
