"""Errors on an RDMA link rise faster than the standard allows.

Told, never judged: traffic may still be whole.
The limits are increases within the agent's window of an hour. Symbol errors: 120 an hour is a bit error rate of 1e-12,
which the InfiniBand specification asks of a cable. The others: the defaults at which `ibqueryerrors` (rdma-core,
infiniband-diags/error_thresholds) complains, taken per hour. A link that really fails flaps or goes down, and other
rules judge that.
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
    """Increases within the window from which on each counter is told."""

    symbol_error: int = 120
    link_error_recovery: int = 10
    port_rcv_errors: int = 10
    local_link_integrity_errors: int = 10
    excessive_buffer_overrun_errors: int = 10
    packet_seq_err: int = 1_000
    local_ack_timeout_err: int = 1_000


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where the agent does not watch the RDMA network."""
    facts = view.facts.get(InfinibandFacts)
    for port in facts.ports if facts is not None else ():
        if not port.expected:
            continue
        high = {name: rise for name, rise in port.rises.items() if rise >= getattr(settings, name, 1 << 62)}
        if high and facts is not None:
            told = ", ".join(f"{name} by {rise}" for name, rise in sorted(high.items()))
            minutes = facts.rise_window_s / 60
            yield Evidence(
                rule="ib_errors",
                subject=Subject("link", f"{view.machine}/{port.device}/{port.port}"),
                argues_for=Health.SUSPECT,
                because=f"RDMA {port.device} port {port.port}: errors rose within {minutes:.0f} minutes: {told}",
                soft=True,
                note=True,
            )


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(InfinibandFacts,),
    matters="resent packets cost bandwidth, and such a link often fails next",
    source="InfiniBand specification (bit error rate), infiniband-diags error_thresholds",
)
