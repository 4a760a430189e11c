"""An RDMA card that this node needs does not answer the kernel any more: its firmware stopped.

sysfs may then still say ACTIVE from its cache, or keep its reader waiting for ever (NVIDIA/NVSentinel's tests:
"device's health compromised", the card is replaced); only the agent's small program with a deadline notices. Must last
`after_s`, far beyond the minute that a command to a living firmware may take, and a reboot is tried first.
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

    after_s: float = 600.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """A card by its ports' facts; where no card at all answers, the source itself says so."""
    source = view.sources.get("infiniband")
    if source is not None and source.status == "hung":
        words = f"no RDMA card answers: {(source.reason or 'no reason told').partition(', kernel stack')[0]}"
        yield _finding(Subject("machine", view.machine), words, settings, source.since_unix_ns)
    facts = view.facts.get(InfinibandFacts)
    told: set[str] = set()
    for port in facts.ports if facts is not None else ():
        if port.hung and port.expected and port.device not in told:
            told.add(port.device)
            words = f"RDMA card {port.device} does not answer: {port.hung.partition(', kernel stack')[0]}"
            yield _finding(Subject("link", f"{view.machine}/{port.device}"), words, settings, None)


def _finding(subject: Subject, words: str, settings: Settings, onset_unix_ns: int | None) -> Evidence:
    return Evidence(
        rule="ib_device_hung",
        subject=subject,
        argues_for=Health.DEGRADED,
        because=words,
        conclusive=True,
        onset_unix_ns=onset_unix_ns,
        action="reboot",
        soft=True,
        must_last=settings.after_s,
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(InfinibandFacts,),
    matters="no job can use this card, and what asks it cannot be killed",
    source="NVIDIA/NVSentinel (mlx5 health)",
)
