"""Asks each served mount whether it answers: `stat -f`, in a small program with a deadline.

All in one program first, which is cheap; where that hangs, one for each, to see which it is. A mount whose program
cannot be ended gets no second one until that one is gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from gpuwatch.model.facts.host import NetworkMount
from gpuwatch.sdk.errand import Errands
from gpuwatch.sdk.mounts import Mount, shown

MOST_MOUNTS = 32  # of one look: two lots of errands
BROKEN = (
    # what the answer "no" of a server, or the end of a process that serves, looks like
    "Stale file handle",
    "Transport endpoint is not connected",
    "Host is down",
    "Input/output error",
    "Connection timed out",
    "No route to host",
    "Cannot send after transport endpoint shutdown",
)


class MountProbe:
    """Remembers since when a mount has not answered, and asks them in turn where they are very many."""

    def __init__(self, errands: Errands, deadline_s: float) -> None:
        self._errands = errands
        self._deadline_s = deadline_s
        self._bad_since: dict[str, int] = {}
        self._last: dict[str, NetworkMount] = {}  # place -> what it answered when its turn was
        self._next = 0

    def ask(self, mounts: Sequence[Mount]) -> tuple[NetworkMount, ...]:
        """One answer a mount."""
        turn = self._turn([mount for mount in mounts if not mount.hidden])
        answers = {mount.place: self._answer(mount, reason) for mount, reason in self._reasons(turn).items()}
        places = {mount.place for mount in mounts}
        self._bad_since = {place: since for place, since in self._bad_since.items() if place in places}
        self._last = {place: answer for place, answer in self._last.items() if place in places}
        self._last |= {place: answer for place, answer in answers.items() if answer.answer != "not_asked"}
        return tuple(
            (not mount.hidden and self._last.get(mount.place)) or answers.get(mount.place) or _not_asked(mount)
            for mount in mounts
        )

    def _turn(self, mounts: Sequence[Mount]) -> list[Mount]:
        if len(mounts) <= MOST_MOUNTS:
            return list(mounts)
        ordered = sorted(mounts, key=lambda mount: mount.place)
        first, self._next = self._next % len(ordered), (self._next + MOST_MOUNTS) % len(ordered)
        return (ordered[first:] + ordered[:first])[:MOST_MOUNTS]

    def _reasons(self, mounts: list[Mount]) -> dict[Mount, tuple[str, str, int | None]]:
        """Mount -> (answer, reason, since)."""
        together = len(mounts) > 1 and not self._bad_since
        if together:
            asked = self._errands.ask({"mounts": _words(mounts)}, deadline_s=self._deadline_s)["mounts"]
            if asked.answered:
                said = asked.err.decode("utf-8", "replace")
                return {mount: _verdict(_error_of(mount, said)) for mount in mounts}
        wanted = {f"mount {mount.place}": _words([mount]) for mount in mounts}
        found: dict[Mount, tuple[str, str, int | None]] = {}
        outcomes = self._errands.ask(wanted, deadline_s=self._deadline_s)
        for mount in mounts:
            outcome = outcomes[f"mount {mount.place}"]
            if outcome.answered:
                found[mount] = _verdict(_error_of(mount, outcome.err.decode("utf-8", "replace")))
            elif outcome.status == "absent":
                found[mount] = ("not_asked", outcome.reason, None)
            else:
                found[mount] = ("hung", outcome.reason, outcome.since_unix_ns)
        return found

    def _answer(self, mount: Mount, said: tuple[str, str, int | None]) -> NetworkMount:
        answer, reason, since_unix_ns = said
        if answer in ("hung", "failed"):
            since_unix_ns = self._bad_since.setdefault(mount.place, since_unix_ns or time.time_ns())
        else:
            self._bad_since.pop(mount.place, None)
        return NetworkMount(shown(mount.place), shown(mount.source), mount.kind, answer, reason[:300], since_unix_ns)


def _not_asked(mount: Mount) -> NetworkMount:
    why = "hidden from the agent by its unit's ProtectHome or the like" if mount.hidden else "not in this turn"
    return NetworkMount(shown(mount.place), shown(mount.source), mount.kind, "not_asked", why)


def _words(mounts: Sequence[Mount]) -> list[str]:
    return ["stat", "-f", "-c", "%i", "--", *(mount.place for mount in mounts)]


def _error_of(mount: Mount, said: str) -> str:
    """stat: cannot read file system information for '/data': Stale file handle"""
    place = os.fsencode(mount.place).decode("utf-8", "replace")
    for line in said.splitlines():
        if f"'{place}'" in line:
            return line.rpartition(": ")[2]
    return ""


def _verdict(error: str) -> tuple[str, str, int | None]:
    """A server that says "you may not" has answered."""
    return ("failed", error, None) if error in BROKEN else ("ok", error, None)
