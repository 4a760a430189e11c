"""The scheduler says that the node is down.

A second path where the scheduler's own daemon on the node answers it. It may be wrong about a live node (its daemon
ended, its controller was restarted), so it never condemns alone. A hung or empty answer of the scheduler is no word at
all (SemiAnalysisAI/InferenceX#1820): then the state is `unknown`. How old the word may be: `witness_fresh_s`.
"""

from __future__ import annotations

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: see `witness_fresh_s` of the pool's policy."""


def examine(view: NodeView, now: Moment, settings: Settings) -> Evidence | None:  # noqa: ARG001
    """Only the word `down` counts."""
    says = view.scheduler
    if says is None or says.state != "down":
        return None
    return Evidence(
        rule="node_down",
        subject=Subject("machine", view.machine),
        argues_for=Health.DEAD,
        because="the scheduler says that the node is down" + (f" ({says.reason})" if says.reason else ""),
        path="scheduler",
        action="drain_replace",
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    on="tick",
    matters="the scheduler gives it no work, and a job on it may be lost",
    source="the scheduler's own state of the node",
)
