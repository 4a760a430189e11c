"""A node's agent is overdue: no report although one was due.

Silence is the weakest of signs: the node may be dead, its driver wedged, its network cut, the agent ended, or we
ourselves blind (moby/swarmkit#2091, ROCm/spur#624). So this only ever argues for SUSPECT, and only the judge, with a
second witness over another path, may make more of it. How many reports may be missed is the pool's policy
(`silent_after_intervals`); here one and a half intervals are overdue, because reports come with jitter.
"""

from __future__ import annotations

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: see `silent_after_intervals` of the pool's policy."""


OVERDUE_INTERVALS = 1.5


def examine(view: NodeView, now: Moment, settings: Settings) -> Evidence | None:  # noqa: ARG001
    """Only a node that has spoken can fall silent, and not one that said goodbye."""
    last_ns = view.last_report_monotonic_ns
    if last_ns is None:
        return None
    age_s = (now.monotonic_ns - last_ns) / 1e9
    if age_s <= OVERDUE_INTERVALS * view.interval_s:
        return None
    if view.said_goodbye():
        return None
    return Evidence(
        rule="agent_silent",
        subject=Subject("machine", view.machine),
        argues_for=Health.SUSPECT,
        because=f"no report for {age_s:.0f} s, one is due each {view.interval_s:g} s",
        onset_unix_ns=view.last_report_unix_ns,
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    on="tick",
    matters="a dead node holds up every other node of its run",
    source="scheduler and monitor fault reports: moby/swarmkit#2091, ROCm/spur#624",
)
