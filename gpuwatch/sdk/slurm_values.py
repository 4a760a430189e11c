"""Slurm's small words: node lists, resource strings, numbers and times in each form in which a release prints them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

from gpuwatch.sdk.host_lists import expand

_NOTHING = frozenset({"", "(null)", "none", "n/a", "unknown", "none assigned", "invalid"})
_PLAIN_GPU = re.compile(r"(?:^|,)gres/gpu=(\d+)")
_TYPED_GPU = re.compile(r"(?:^|,)gres/gpu:[^=,:]+=(\d+)")
_GRES_GPU = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::[A-Za-z_][^:,=(]*)?(?:[:=](\d+))?(?=[,(]|$)")


def names(listed: str) -> tuple[str, ...]:
    """`gpu[1-3,07],login1` as names, in order. Raises `ValueError`. Nothing, `(null)`: none."""
    return () if listed.strip().lower() in _NOTHING else tuple(expand(listed))


def text(value: Any) -> str:
    """A word; empty for Slurm's ways of saying nothing."""
    if value is None or isinstance(value, Mapping | list):
        return ""
    word = str(value).strip()
    return "" if word.lower() in _NOTHING else word


def number(value: Any) -> int | None:
    """A count, bare or as `{set, infinite, number}`; None: not set, infinite, or no number."""
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return None
        return number(value.get("number"))
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return int(value)
    word = str(value).strip() if value is not None else ""
    return int(word) if re.fullmatch(r"-?\d+", word) else None


def unix_ns(value: Any) -> int | None:
    """A moment given in seconds of the epoch, or as `2026-11-30T16:20:00` in UTC. 0, `Unknown`, `None`: not known."""
    seconds = number(value)
    if seconds is None and isinstance(value, str):
        try:
            moment = datetime.datetime.strptime(value.strip(), "%Y-%m-%dT%H:%M:%S")
        except ValueError:
            return None
        seconds = int(moment.replace(tzinfo=datetime.UTC).timestamp())
    return seconds * 10**9 if seconds and seconds > 0 else None


def words(value: Any) -> tuple[str, ...]:
    """A state: `IDLE+DRAIN`, `["IDLE", "DRAIN"]` or `idle`, as upper-case words, their marks spelled out."""
    parts = [str(item) for item in value] if isinstance(value, list) else re.split(r"[+ ]", str(value or ""))
    found: list[str] = []
    for part in parts:
        name = part.strip().upper()
        marks = [_MARKS[mark] for mark in name if mark in _MARKS]
        found += [word for word in [name.rstrip("".join(_MARKS)), *marks] if word and word not in found]
    return tuple(found)


_MARKS = {  # man sinfo, "NODE STATE CODES"
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}


def gpus_per_node(tres: str, asked: str, node_count: int) -> int | None:
    """GPUs of a job on each of its nodes. `tres`: what it got, over all nodes (it tells only where Slurm tracks
    `gres/gpu`); `asked`: the per-node request. None: not told, or not the same on all nodes."""
    plain = _PLAIN_GPU.search(tres)
    total = int(plain[1]) if plain else sum(int(match[1]) for match in _TYPED_GPU.finditer(tres)) or None
    if total is not None:
        return total // node_count if node_count > 0 and total % node_count == 0 else None
    per_node = [int(match[1] or 1) for match in _GRES_GPU.finditer(asked)]
    return sum(per_node) if per_node else None


def exit_code(value: Any) -> int | None:
    """A shell's exit code out of `3:0` (code:signal), a wait status, or `{return_code, signal}`."""
    if isinstance(value, Mapping):
        signal = value.get("signal")
        killed = number(signal.get("id", signal.get("signal_id"))) if isinstance(signal, Mapping) else None
        code = number(value.get("return_code"))
        return 128 + killed if killed else code
    if isinstance(value, str) and ":" in value:
        left, _, right = value.partition(":")
        code, killed = number(left), number(right)
        return 128 + killed if killed else code
    status = number(value)
    if status is None:
        return None
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8
