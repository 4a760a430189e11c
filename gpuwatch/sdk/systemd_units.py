"""What `systemctl show` prints of units, taken apart. Its own library would be D-Bus, which is more than all of us."""

from __future__ import annotations

from typing import Final

import msgspec

PROPERTIES: Final = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "Type",
    "UnitFileState",
    "ConditionResult",
    "NRestarts",
    "ActiveEnterTimestampMonotonic",
    "StateChangeTimestampMonotonic",
)
ENABLED = ("enabled", "enabled-runtime", "linked", "linked-runtime", "alias")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One unit as shown. Moments are microseconds of the monotonic clock; 0: never."""

    name: str
    active_state: str
    sub_state: str
    result: str
    enabled: bool
    condition_failed: bool
    restart_count: int | None
    active_enter_us: int
    state_change_us: int


def arguments(units: tuple[str, ...]) -> list[str]:
    """For `systemctl`."""
    return ["show", "--no-pager", f"--property={','.join(PROPERTIES)}", "--", *units]


def shown(text: str) -> list[Shown]:
    """Units that are loaded and stay: not those that are not installed, masked, or run once and end."""
    found: dict[str, Shown] = {}
    for block in text.split("\n\n"):
        words = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        name = words.get("Id", "")
        if not name or words.get("LoadState") != "loaded" or words.get("Type") == "oneshot":
            continue
        active_enter_us = _number(words.get("ActiveEnterTimestampMonotonic")) or 0
        found[name] = Shown(  # two names of one unit are one
            name=name[:128],
            active_state=words.get("ActiveState", "")[:32],
            sub_state=words.get("SubState", "")[:32],
            result=words.get("Result", "")[:32],
            enabled=words.get("UnitFileState") in ENABLED,
            # "no" is also what a unit says whose condition was never looked at
            condition_failed=words.get("ConditionResult") == "no" and not active_enter_us,
            restart_count=_number(words.get("NRestarts")),
            active_enter_us=active_enter_us,
            state_change_us=_number(words.get("StateChangeTimestampMonotonic")) or 0,
        )
    return list(found.values())


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and text.isascii() and len(text) < 19 else None
