"""Several runs stopped at the same time on healthy nodes: something that they share, most often a file system.

When NFS or Lustre stops answering, every run waits in its data loader or its save, and every node is well. Restarting
the runs would lose their work and change nothing. All nodes of these runs are held. (That blame follows shared
membership: marin-community/marin#7869.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from gpuwatch.model.evidence import Evidence, SharedCause, Subject
from gpuwatch.model.moment import Moment
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import FleetView
from gpuwatch.rules import FleetRule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be set, with its usual value. Both are choices."""

    runs: Annotated[int, msgspec.Meta(ge=2)] = 2  # a run that hangs alone is its own fault
    window_s: float = 300.0  # between the moments at which they stopped moving


def examine(
    fleet: FleetView,
    verdicts: tuple[Verdict, ...],
    now: Moment,  # noqa: ARG001
    settings: Settings,
) -> Iterator[SharedCause]:
    """By evidence whose subject is a run, and by when that run last moved on the monotonic clock."""
    names = {e.subject.id for v in verdicts for e in v.evidence if e.subject.kind == "run" and type(e) is Evidence}
    if len(names) < settings.runs:
        return
    stalled = sorted((run for run in fleet.runs if run.run in names), key=lambda run: run.moved_monotonic_ns)
    window_ns = int(settings.window_s * 1e9)
    together: set[str] = set()
    for first in stalled:
        inside = {r.run for r in stalled if 0 <= r.moved_monotonic_ns - first.moved_monotonic_ns <= window_ns}
        if len(inside) >= settings.runs:
            together |= inside
    if not together:
        return
    machines = {machine for run in stalled if run.run in together for machine in run.machines}
    yield SharedCause(
        rule="stalled_together",
        subject=Subject("file_system", "shared"),
        slots=tuple(sorted(view.slot for view in fleet.nodes if view.machine in machines)),
        because=f"{len(together)} runs stopped together ({', '.join(sorted(together))}): suspect what they share, "
        "a file system or the network",
    )


RULE = FleetRule(settings=Settings, examine=examine)
