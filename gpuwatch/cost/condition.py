"""How a machine was and what was done with it, moment by moment, as finally known."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from gpuwatch.cost.attempts import MemberSpan
from gpuwatch.cost.history import MachineHistory
from gpuwatch.cost.lives import Life
from gpuwatch.cost.spans import Span, united
from gpuwatch.model.ledger import snap_ns

BROKEN = frozenset({"dead", "driver_failed"})
_WEAKER = frozenset({"suspect", "unknown", "degraded"})
OUT_OF_SERVICE = frozenset(
    {"cordoned", "draining", "drained", "repairing", "replacing", "validating", "quarantined", "retired"}
)


class HealthSince(NamedTuple):
    """From this moment on the machine was so."""

    at: int
    health: str
    fault: str | None


def health_of(history: MachineHistory, ranks: Sequence[tuple[MemberSpan, Sequence[int]]]) -> list[HealthSince]:
    """The machine's health over time. `ranks`: its memberships with the moments at which their steps ended.

    A death never begins before the end of a step that the machine's own rank finished, nor in a time in which its own
    records prove it was up; it ends only with `healthy`, `joining` or `absent`.
    """
    stated = [HealthSince(snap_ns(line.at_unix_ns), line.health, line.fault) for line in history.health]
    up = united((snap_ns(line.at_unix_ns), snap_ns(line.until_unix_ns)) for line in history.proven_up)
    moved: list[HealthSince] = []
    for index, since in enumerate(stated):
        if since.health not in BROKEN:
            moved.append(since)
            continue
        until = next((later.at for later in stated[index + 1 :] if later.health not in BROKEN | _WEAKER), None)
        at = _last_step(since.at, until, ranks)
        for start, end in up:
            if start <= at < end:
                at = end
        if until is None or at < until:
            moved.append(since._replace(at=at))
    moved.sort(key=lambda since: since.at)  # stable: what was graver at the same instant stays last
    result: list[HealthSince] = []
    for since in moved:
        if result and result[-1].health in BROKEN and since.health in _WEAKER:
            continue
        result.append(since)
    return result


def _last_step(onset: int, until: int | None, ranks: Sequence[tuple[MemberSpan, Sequence[int]]]) -> int:
    at = onset
    for member, step_ends in ranks:
        if member.end <= onset:
            continue
        limit = member.end if until is None else min(member.end, until)
        last = bisect_right(step_ends, limit) - 1
        if last >= 0 and step_ends[last] >= member.start:
            at = max(at, step_ends[last])
    return at


def served_from(lives: Sequence[Life], history: MachineHistory) -> list[int]:
    """For each life the moment at which it was first in service; before it the time is `provisioning`.

    A life that follows another without a gap has been in service if that one was. A machine of whose lifecycle
    nothing was ever written is not taken to be provisioning.
    """
    changes = [(snap_ns(line.at_unix_ns), line.lifecycle) for line in history.lifecycle]
    result: list[int] = []
    for index, life in enumerate(lives):
        before = [word for at, word in changes if at <= life.start]
        first = next((at for at, word in changes if life.start < at < life.end and word == "in_service"), None)
        previous = lives[index - 1] if index else None
        if (previous is not None and previous.end == life.start and result[-1] < previous.end) or (
            before and before[-1] == "in_service"
        ):
            result.append(life.start)
        elif first is not None:
            result.append(first)
        else:
            known = bool(before) or any(at < life.end for at, _ in changes)
            result.append(life.end if known else life.start)
    return result


def windows_announced(history: MachineHistory) -> list[Span]:
    """Maintenance windows; one that is announced late counts from its announcement on."""
    return united(
        (max(snap_ns(line.begin_unix_ns), snap_ns(line.at_unix_ns)), snap_ns(line.end_unix_ns))
        for line in history.maintenance
    )
