"""Many agents silent at once: first suspected to be us.

Our own network, a full disk, a restart, an expired certificate look exactly like that, and far more often than a third
of a fleet dies at one moment (ROCm/spur#624: nodes marked down just after a controller's restart). All silent nodes are
held. `many_silent_ratio` of the nodes that ought to speak, and at least `many_silent_nodes`, are the pool's policy.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import SharedCause, Subject
from gpuwatch.model.moment import Moment
from gpuwatch.model.policy import Policy
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import FleetView
from gpuwatch.rules import FleetRule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: see `many_silent_ratio` and `many_silent_nodes` of the pool's policy."""


DEFAULT = Policy()


def examine(
    fleet: FleetView,
    verdicts: tuple[Verdict, ...],  # noqa: ARG001
    now: Moment,
    settings: Settings,  # noqa: ARG001
) -> Iterator[SharedCause]:
    """Counted over the whole fleet, compared with each pool's own limits."""
    ought = 0
    silent: list[tuple[str, str]] = []
    for view in fleet.nodes:
        if not view.ought_to_speak():
            continue
        ought += 1
        policy = fleet.policies.get(view.pool, DEFAULT)
        if view.is_silent(now.monotonic_ns, policy.silent_after_intervals):
            silent.append((view.pool, view.slot))
    for pool in sorted({pool for pool, _ in silent}):
        policy = fleet.policies.get(pool, DEFAULT)
        if policy.many_silent(len(silent), ought):
            yield SharedCause(
                rule="many_silent",
                subject=Subject("us", "aggregator"),
                slots=tuple(sorted(slot for where, slot in silent if where == pool)),
                because=f"{len(silent)} of {ought} agents are silent at once: first suspected to be us",
            )


RULE = FleetRule(settings=Settings, examine=examine)
