"""What we write on a scale set so that one action grows it once: one tag an action, in the very request that grows it.

ARM changes tags and capacity together or not at all, and only if the set is still the one that was read (ETag). So a
growth that happened is written down, and one that is not written down did not happen, whoever is killed in between and
on whichever machine we start again. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from urllib.parse import quote, unquote

import msgspec

PREFIX = "gpuwatch-create-"
PLACES = "gpuwatch-places-"  # `13=gpu000003 14=gpu000007`, numbered from 0
MAX_VALUE = 256  # characters, ARM's limit for the value of a tag
MAX_TAGS = 50  # ARM's limit for a resource
KEPT = 24  # marks of ours that are kept whole


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One growth. `after`: the highest instance id before it. Settled once `instance` or `failed` is known."""

    slot: str
    after: int
    at_unix_s: int
    action_id: str = ""
    instance: str = ""
    machine: str = ""  # the VM's own unique id
    failed: str = ""  # the error code with which the growth ended

    @property
    def open(self) -> bool:
        """It is not known yet what became of it."""
        return not self.instance and not self.failed


def name_of(action_id: str) -> str:
    """The tag of an action. An action's id may hold what a tag's name may not."""
    return PREFIX + hashlib.sha256(action_id.encode()).hexdigest()[:20]


def _quoted(slot: str) -> str:
    """A slot that comes of a tag may hold anything; what holds nothing odd stays as it is."""
    return "".join(c if c not in " =%" and c.isprintable() else quote(c, safe="") for c in slot)


def write(mark: Mark) -> str:
    """The tag's value. The action's own id comes last: it is the part that may be cut off."""
    words = {
        "slot": _quoted(mark.slot),
        "after": str(mark.after),
        "at": str(mark.at_unix_s),
        "is": mark.instance,
        "vm": mark.machine,
        "failed": mark.failed.replace(" ", "_")[:60],
        "by": mark.action_id,
    }
    text = " ".join(f"{key}={value}" for key, value in words.items() if value)
    if len(text) > MAX_VALUE:
        text = text.rpartition(" by=")[0]
    return text


def read(value: str) -> Mark | None:
    """None for a value that is not ours or was changed by hand."""
    head, _, by = value.partition(" by=")
    words = dict(part.split("=", 1) for part in head.split(" ") if "=" in part)
    try:
        return Mark(
            slot=unquote(words["slot"]),
            after=int(words["after"]),
            at_unix_s=int(words["at"]),
            action_id=by,
            instance=words.get("is", ""),
            machine=words.get("vm", ""),
            failed=words.get("failed", ""),
        )
    except (KeyError, ValueError):
        return None


def all_of(tags: Mapping[str, str]) -> dict[str, Mark]:
    """Tag name -> mark, every mark of ours on the set."""
    found = {name: read(value) for name, value in tags.items() if name.startswith(PREFIX)}
    return {name: mark for name, mark in found.items() if mark is not None}


def places(tags: Mapping[str, str]) -> dict[str, str]:
    """Instance id -> the slot it was made for, of every machine of ours: from its mark, or from the list of places."""
    found: dict[str, str] = {}
    for name, value in tags.items():
        if name.startswith(PLACES):
            parts = (part.split("=", 1) for part in value.split(" ") if "=" in part)
            found |= {instance: unquote(slot) for instance, slot in parts}
    return found | {mark.instance: mark.slot for mark in all_of(tags).values() if mark.instance}


def with_mark(tags: Mapping[str, str], name: str, mark: Mark, here: Collection[str]) -> dict[str, str]:
    """All tags of the set with this mark set. `here`: the instance ids that the set lists now.

    The oldest settled marks beyond `KEPT` shrink to an entry in the list of places, for as long as their machine lives.
    A tag list that is written replaces the whole list: the owner's tags are carried along untouched.
    """
    kept = dict(tags)
    kept[name] = write(mark)
    ours = all_of(kept)
    settled = sorted((m.at_unix_s, other) for other, m in ours.items() if not m.open and other != name)
    known = places(kept)
    for _, other in settled[: max(0, len(ours) - KEPT)]:
        del kept[other]
    for other in [other for other in kept if other.startswith(PLACES)]:
        del kept[other]
    told = places(kept)
    lines = [""]
    for instance in sorted(known.keys() - told.keys(), key=int):
        word = f"{instance}={_quoted(known[instance])}"
        if instance in here and len(word) <= MAX_VALUE:
            if len(lines[-1]) + 1 + len(word) > MAX_VALUE:
                lines.append("")
            lines[-1] = f"{lines[-1]} {word}".strip()
    return kept | {f"{PLACES}{number}": line for number, line in enumerate(lines) if line}
