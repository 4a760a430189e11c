"""A local file system can no longer be written, though it should be.

After an error the kernel turns a file system read-only and says so in its options while the mount itself stays writable
(ext4 `errors=remount-ro`, `emergency_ro`): jobs cannot write any more, and the disk or its controller is the cause
(leptonai/gpud's disk matchers). That must last `after_s` and condemns. One that somebody remounted, or that fstab says
should be writable, is a note: it may be on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

WORDS = {
    "kernel": "the kernel made it so after an error",
    "remounted": "it could be written before in this boot",
    "fstab": "fstab mounts it for writing",
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long before it is believed: two looks of the agent."""

    after_s: float = 120.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where the agent does not watch disks."""
    facts = view.facts.get(HostFacts)
    for disk in facts.disks if facts is not None else ():
        if not disk.read_only or disk.read_only_by not in WORDS:
            continue
        note = disk.read_only_by != "kernel"
        yield Evidence(
            rule="file_system_read_only",
            subject=Subject("machine", f"{view.machine}{disk.mount}"),
            argues_for=Health.SUSPECT if note else Health.DEGRADED,
            because=f"{disk.mount} ({disk.kind} on {disk.device}) is read-only: {WORDS[disk.read_only_by]}",
            conclusive=not note,
            action="none" if note else "drain_replace",
            must_last=0.0 if note else settings.after_s,
            note=note,
        )


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(HostFacts,),
    matters="jobs fail as soon as they write there, checkpoints and logs too",
    source="leptonai/gpud (disk), ext4(5)",
)
