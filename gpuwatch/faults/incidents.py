"""What belongs together in a log, what its root is, and what the whole asks for.

171 and 172 belong to the 48 beside them, 63 to a 48, 94 or 95, a 154 to what came before it on the same GPU, a switch's
link errors to the GPU that died seconds before: one incident; root is the earliest of the strongest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gpuwatch.faults.catalogue import ACTIONS, DRAINS, SEVERITIES
from gpuwatch.faults.event import Event
from gpuwatch.faults.prefix import Record
from gpuwatch.faults.stamps import apart

BURST_S = 600.0  # a repeat this soon after the last one belongs to it; GSP time-outs (Xid 119) come minutes apart
FOLLOW_S = 60.0  # switches and ports report a dead GPU within seconds
_WEIGHTS = {
    (drain, action, severity): (heavy, much, bad)
    for heavy, drain in enumerate(DRAINS)
    for much, action in enumerate(ACTIONS)
    for bad, severity in enumerate(SEVERITIES)
}
NEVER_ROOT = frozenset({45, 154})  # cleanup of channels, and the driver's wish: both follow something


@dataclass(slots=True)
class Told:
    """One event of a log, with everything that was folded into it."""

    event: Event
    first: Record
    last: Record
    lines: int
    boot: int
    incident: int = 0
    root: bool = False
    cleared: bool = False  # a later message said that it is over
    pids: dict[int, None] = field(default_factory=dict)
    ports: dict[str, None] = field(default_factory=dict)  # switches that report the same SXid


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What the whole log asks for: the strongest action, and the event that is its root."""

    action: str
    drain: str
    root: Event | None
    incidents: int
    suspect_peer: bool = False


class Verdict(Protocol):
    """What an event asks for, in the catalogue's words."""

    @property
    def severity(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def drain(self) -> str: ...


def weight(event: Verdict) -> tuple[int, int, int]:
    """How much an event asks for: first whether the node must go, then what is to be done, then how bad it is."""
    return _WEIGHTS[event.drain, event.action, event.severity]


def group(told: list[Told]) -> int:
    """Give each event its incident's number and mark each incident's root; how many incidents there are."""
    groups: list[list[Told]] = []
    latest: dict[tuple[str, int], list[Told]] = {}  # by device, or else subject, and boot
    for one in told:
        if _is_port(one):
            continue
        key = (one.event.pci.partition(".")[0] if one.event.pci is not None else one.event.subject, one.boot)
        home = latest.get(key) if key[0] else None
        if home is not None and not apart(home[-1].last, one.first, BURST_S):
            home.append(one)
        else:
            groups.append([one])
            latest[key] = groups[-1]
    losses = [(members, one) for members in groups for one in members if one.event.xid == 79]
    for one in told:
        if _is_port(one):
            home = next((members for members, loss in losses if _reports(one, loss)), None)
            if home is not None:
                home.append(one)
            else:
                groups.append([one])
    groups.sort(key=lambda members: min(one.first.line for one in members))
    for number, members in enumerate(groups, start=1):
        root = max(members, key=_rank)
        for one in members:
            one.incident, one.root = number, one is root
    return len(groups)


def decide(told: list[Told], incidents: int) -> Decision:
    """The strongest that is still alive decides; good news and what it cleared do not."""
    live = [one for one in told if not one.cleared and not one.event.clears]
    if not live:
        return Decision(action="none", drain="no", root=None, incidents=incidents)
    strongest = max(live, key=lambda one: (weight(one.event), one.root, -one.first.line))
    root = strongest
    if strongest.event.xid in NEVER_ROOT:
        root = next((one for one in live if one.root and one.incident == strongest.incident), strongest)
    return Decision(
        action=strongest.event.action,
        drain=strongest.event.drain,
        root=root.event,
        incidents=incidents,
        suspect_peer=any(one.event.suspect_peer for one in live if one.incident == strongest.incident),
    )


def _is_port(one: Told) -> bool:
    """Reported by a switch or a slot about what is plugged into it."""
    return one.event.kind in ("sxid", "pcie_link_down")


def _reports(port: Told, loss: Told) -> bool:
    before = port.event.kind == "sxid" and port.first.line < loss.first.line  # a switch may itself be the cause
    return port.boot == loss.boot and not before and not apart(port.first, loss.first, FOLLOW_S)


def _rank(one: Told) -> tuple[bool, bool, tuple[int, int, int], int]:
    follows = one.event.xid in NEVER_ROOT or _is_port(one) or one.event.kind == "gpu_init_failed"
    return (not one.cleared, not follows, weight(one.event), -one.first.line)
