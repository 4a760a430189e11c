"""Nodes out of `scontrol -o show node`, `sinfo --json` (21.08 to 22.05) and `scontrol show node --json` (23.02 on)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpuwatch.errors import SchedulerError
from gpuwatch.sdk import slurm_values as values

_LINE = re.compile(r"NodeName=(\S+) .*?\bState=(\S+) ")
_REASON = re.compile(r" Reason=(.*?)(?: \[([^\s\[\]@]*)@([^\s\[\]]*)\])?(?: Comment=.*)?\s*$")

_UNREADY = ("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "INVAL", "INVALID", "INVALID_REG", "ERROR")
AUTOMATIC = (  # reasons that Slurm itself gives when it takes a node down: nobody's decision
    "not responding",
    "node unexpectedly rebooted",
    "resumetimeout reached",
    "suspendtimeout reached",
    "reboot timed out",
    "reboot asap",
    "scheduled reboot",
    "low ",
    "gres/",
    "duplicate jobid",
    "batch job complete failure",
    "prolog error",
    "epilog error",
    "kill task failed",
    "credential revoked",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node as Slurm tells it. `state`: the base state first, then its flags, in capitals."""

    name: str
    state: tuple[str, ...]
    reason: str = ""
    reason_by: str = ""
    reason_unix_ns: int | None = None

    def says(self, *flags: str) -> bool:
        """Whether any of these is part of its state."""
        return any(flag in self.state for flag in flags)

    @property
    def drained(self) -> bool:
        """Somebody or something took it out of scheduling."""
        return self.says("DRAIN", "DRAINED", "DRAINING", "DRNG", "FAIL", "FAILING", "FAILG")

    @property
    def taken_down(self) -> bool:
        """Down by a person's word: not because it stopped answering, and not by one of Slurm's own checks."""
        said = self.reason.lower()
        return self.says("DOWN") and bool(said) and not said.startswith(AUTOMATIC)

    @property
    def holds_job(self) -> bool:
        """Something of a job is on it, says the node itself."""
        return self.says("ALLOCATED", "ALLOC", "MIXED", "MIX", "COMPLETING", "COMP", "DRAINING", "DRNG", "FAILING")

    @property
    def rebooting(self) -> bool:
        """Somebody ordered a reboot of it through Slurm."""
        return self.says("REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT")

    def word(self, *, occupied: bool) -> Literal["idle", "allocated", "draining", "drained", "down", "unknown"]:
        """Its state in one word. `occupied`: a job is on it."""
        if self.says(*_UNREADY):
            return "unknown"  # saved power, or refused for its configuration: neither dead nor of use
        if self.says("DOWN"):
            return "unknown" if self.says("REBOOT_ISSUED", "REBOOT") else "down"
        if self.drained:
            return "draining" if occupied else "drained"
        if self.says("ALLOCATED", "ALLOC", "MIXED", "MIX", "COMPLETING", "COMP"):
            return "allocated"
        idle = self.says("IDLE", "PLANNED", "RESERVED", "RESV", "MAINT")
        return "idle" if idle and not self.says("NOT_RESPONDING") else "unknown"


def from_text(answer: str) -> tuple[Node, ...]:
    """Of `scontrol -o show node`: one line a node. Raises `SchedulerError` for anything else, nothing included."""
    nodes = []
    for line in answer.splitlines():
        if not line.strip():
            continue
        found = _LINE.match(line)
        if found is None:
            raise _garbage("scontrol -o show node", line)
        reason = _REASON.search(line, found.end())
        nodes.append(
            Node(
                name=found[1],
                state=values.words(found[2]),
                reason=values.text(reason[1]) if reason else "",
                reason_by=(reason[2] or "") if reason else "",
                reason_unix_ns=values.unix_ns(reason[3]) if reason and reason[3] else None,
            )
        )
    return _some(nodes, "scontrol -o show node")


def from_json(answer: str) -> tuple[Node, ...]:
    """Of `sinfo --json` or `scontrol show node --json`. Raises `SchedulerError`, for an empty list too."""
    nodes = []
    for item in listed(answer, "nodes"):
        name, state = item.get("name"), item.get("state")
        if not isinstance(name, str) or not name or not state:
            raise _garbage("the JSON list of nodes", str(item))
        flags = item.get("state_flags")
        nodes.append(
            Node(
                name=name,
                state=values.words([*values.words(state), *values.words(flags if isinstance(flags, list) else [])]),
                reason=values.text(item.get("reason")),
                reason_by=values.text(item.get("reason_set_by_user")),
                reason_unix_ns=values.unix_ns(item.get("reason_changed_at")),
            )
        )
    return _some(nodes, "the JSON list of nodes")


def listed(answer: str, key: str) -> list[Mapping[str, Any]]:
    """The list under `key` of one of Slurm's JSON answers. Raises `SchedulerError` where it tells of an error."""
    try:
        whole = json.loads(answer)
    except ValueError:
        raise _garbage("the JSON answer", answer) from None
    if not isinstance(whole, dict) or not isinstance(whole.get(key), list):
        raise _garbage("the JSON answer", answer)
    if whole.get("errors"):
        raise SchedulerError(f"Slurm's JSON answer tells of errors: {str(whole['errors'])[:200]}", retry=True)
    if not all(isinstance(item, dict) for item in whole[key]):
        raise _garbage("the JSON answer", answer)
    return list(whole[key])


def _some(nodes: list[Node], source: str) -> tuple[Node, ...]:
    if not nodes:
        raise SchedulerError(f"{source} lists no node at all: that is no answer", retry=True)
    return tuple(node for node in nodes if not node.says("FUTURE"))


def _garbage(source: str, text: str) -> SchedulerError:
    return SchedulerError(
        f"{source} makes no sense: {text[:80]!r}",
        retry=True,
        why="a half-written answer, another program of that name, or a release of Slurm that prints another form",
        next_step="run it by hand as the aggregator's user; set scheduler.slurm.read = 'text' or 'json'",
    )
