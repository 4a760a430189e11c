"""The same served file system does not answer on several nodes: its server is at fault, and no node of them is.

By what the agents say now, before it has lasted on any node: the first few nodes must not be taken out while the next
is still waiting to be condemned. Two nodes suffice, over all pools, because what they share has a name: the source of
the mount. All of them are held, and one incident about that file system is told; a node that is condemned for
something else is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from gpuwatch.model.evidence import SharedCause, Subject
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import SICK
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import FleetView
from gpuwatch.rules import FleetRule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From how many nodes on."""

    nodes: Annotated[int, msgspec.Meta(ge=2)] = 2


def examine(
    fleet: FleetView,
    verdicts: tuple[Verdict, ...],
    now: Moment,  # noqa: ARG001
    settings: Settings,
) -> Iterator[SharedCause]:
    """Only nodes with evidence are looked into: of 5,000 healthy ones no facts are decoded."""
    troubled = {
        verdict.machine: [
            e.subject.id
            for e in verdict.evidence
            if e.subject.kind == "file_system" and (verdict.health not in SICK or verdict.cause == e.cause_key())
        ]
        for verdict in verdicts
        if verdict.evidence
    }
    slots: dict[str, set[str]] = {}
    mounts: dict[str, int] = {}
    for view in fleet.nodes:
        for source in troubled.get(view.machine, ()):
            slots.setdefault(source, set()).add(view.slot)
    for view in fleet.nodes if slots else ():
        facts = view.facts.get(HostFacts)
        for mount in facts.network_mounts if facts is not None else ():
            if mount.source in slots:
                mounts[mount.source] = mounts.get(mount.source, 0) + 1
    for source, where in sorted(slots.items()):
        if len(where) >= settings.nodes:
            yield SharedCause(
                rule="file_system_shared",
                subject=Subject("file_system", source),
                slots=tuple(sorted(where)),
                because=f"{source} does not answer on {len(where)} of {max(mounts.get(source, 0), len(where))} nodes "
                "that have it: its server's fault, not theirs",
            )


RULE = FleetRule(settings=Settings, examine=examine)
