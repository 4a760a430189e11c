"""A file system that somebody else serves does not answer: NFS, Lustre, or a process behind FUSE.

Whatever touches it waits for ever and cannot be killed, the job and its epilog too; a stale handle or a lost server is
the same to a job. The evidence names the served file system, not the node: many nodes with the same one are one fault
of its server, which `file_system_shared` holds, and no new machine cures it, so it asks for a person. Must last
`after_s` (a server's failover takes minutes), is soft: what does not use that mount may go on.
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


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long before it is believed."""

    after_s: float = 600.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where the agent does not watch mounts."""
    facts = view.facts.get(HostFacts)
    for mount in facts.network_mounts if facts is not None else ():
        if mount.answer not in ("hung", "failed"):
            continue
        words = "does not answer" if mount.answer == "hung" else "is broken"
        why = mount.reason.partition(", kernel stack")[0]
        yield Evidence(
            rule="mount_hung",
            subject=Subject("file_system", mount.source),
            argues_for=Health.DEGRADED,
            because=f"{mount.mount} ({mount.kind} of {mount.source}) {words}: {why}",
            conclusive=True,
            onset_unix_ns=mount.since_unix_ns,
            action="contact_support",
            soft=True,
            cause=f"mount_hung {mount.source}",
            kind="mount_hung",
            must_last=settings.after_s,
        )


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(HostFacts,),
    matters="whatever touches this mount waits for ever and cannot be killed",
    source="leptonai/gpud (hung task), Linux nfs(5)",
)
