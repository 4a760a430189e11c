"""Nodes out of `scontrol -o show node`, `sinfo --json` (21.08 to 22.05) and `scontrol show node --json` (23.02 on)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpuwatch.errors import SchedulerError
from gpuwatch.sdk import slurm_values as values

_RECORD = re.compile(r"\n(?=NodeName=\S+ )")  # a comment may hold a line's end
_BEGIN = re.compile(r"NodeName=(\S+) [^\n]*?\bState=(\S+) ")
_LAST = re.compile(r" (Reason|Comment|Extra|InstanceId|InstanceType|ReservationName)=")  # in this order, if at all
_BEHIND = re.compile(_LAST.pattern.replace("Reason|", ""))
_STAMP = re.compile(  # behind the first line of a reason; what stands eight blanks behind it are the others
    rf" \[([^\s\[\]@]*)@([^\s\[\]]*)\]((?: {{8}}\S.*?)?)(?= ?{_BEHIND.pattern}|\s*\Z)", re.DOTALL
)

MAX_REASON = 1000
_UNREADY = ("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "INVAL", "INVALID", "INVALID_REG", "ERROR")
AUTOMATIC = (  # reasons that Slurm itself gives when it takes a node down: nobody's decision
    "not responding",
    "node unexpectedly rebooted",
    "resumetimeout reached",
    "suspendtimeout reached",
    "reboot timed out",
    "reboot asap",
    "scheduled reboot",
    "low realmemory",
    "low cpus",
    "low socket",
    "low tmpdisk",
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
        return "idle" if idle and not self.says("NOT_RESPONDING", "REBOOT_ISSUED", "REBOOT") else "unknown"


def from_text(answer: str) -> tuple[Node, ...]:
    """Of `scontrol -o show node`: one line a node. Raises `SchedulerError` for anything else, nothing included."""
    if answer.strip() and not answer.endswith("\n"):
        raise _garbage("scontrol -o show node", answer[-80:])  # cut off
    return _some([_from_record(record) for record in _RECORD.split(answer) if record.strip()], "scontrol -o show node")


def _from_record(record: str) -> Node:
    begin = _BEGIN.match(record)
    first = _LAST.search(record, begin.end()) if begin else None
    if begin is None or "\n" in record.rstrip()[: first.start() if first else None]:
        raise _garbage("scontrol -o show node", record)
    reason = by = at = ""
    if first and first[1] == "Reason":
        rest = record[first.end() :]
        if stamp := _STAMP.search(rest):
            by, at = stamp[1], stamp[2]
            reason = "\n".join([rest[: stamp.start()], *re.split(r" {8}", stamp[3])[1:]])
        else:
            reason = _BEHIND.split(rest, maxsplit=1)[0]
    return Node(
        name=begin[1],
        state=values.words(begin[2]),
        reason=_reason(reason),
        reason_by=by,
        reason_unix_ns=values.unix_ns(at) if at else None,
    )


def _reason(value: Any) -> str:
    """As it was written, be it "unknown"; of one without an end the begin."""
    return value.strip()[:MAX_REASON] if isinstance(value, str) and value != "(null)" else ""


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
                reason=_reason(item.get("reason")),
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
