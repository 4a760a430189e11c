"""A local file system is full, or has no inodes left.

From `told_ratio` on it is told. From `sick_ratio` on, where the system itself lies (/, /var, /tmp, the agent's state),
every job will fail there and nothing can be logged: the node lets its jobs end and waits for a person, once it has
lasted `after_s`. A job's own scratch disk may be full by right, so of all others it stays a note. The ratios are those
of common practice (node_exporter's mixin warns at 5 and 3 % left); what `df` calls used.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.host import Disk, HostFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares in use, of bytes or of inodes."""

    told_ratio: float = 0.95
    sick_ratio: float = 0.99
    after_s: float = 600.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where the agent does not watch disks."""
    facts = view.facts.get(HostFacts)
    for disk in facts.disks if facts is not None else ():
        used, what = _fullest(disk)
        if used < settings.told_ratio or disk.read_only:
            continue
        note = used < settings.sick_ratio or not disk.roles
        roles = f", where {', '.join(disk.roles)} lies" if disk.roles else ""
        yield Evidence(
            rule="disk_full",
            subject=Subject("machine", f"{view.machine}{disk.mount}"),
            argues_for=Health.SUSPECT if note else Health.DEGRADED,
            because=f"{disk.mount} has {used * 100:.1f} % of its {what} in use{roles}",
            conclusive=not note,
            action="none" if note else "contact_support",
            soft=True,
            must_last=0.0 if note else settings.after_s,
            software=True,
            note=note,
        )


def _fullest(disk: Disk) -> tuple[float, str]:
    """Of bytes and inodes the one of which less is left."""
    space, inodes = disk.used_ratio or 0.0, disk.inode_used_ratio or 0.0
    return (inodes, "inodes") if inodes > space else (space, "space")


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(HostFacts,),
    matters="jobs fail when they write, and nothing can be logged",
    source="prometheus/node_exporter (mixin)",
)
