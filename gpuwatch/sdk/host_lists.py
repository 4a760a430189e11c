"""`gpu[01-16],login1` as seventeen names: the way Slurm, Flux and pdsh write many nodes."""

from __future__ import annotations

import re

MAX_NAMES = 200_000
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_PART = re.compile(r"(?:[^,\[\]\s]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[[^\]]*\]|[^\[\]]+")


def expand(listed: str) -> list[str]:
    """Every name that a list means, in order: `r[1-2]n[01,03],x` is r1n01 r1n03 r2n01 r2n03 x. Numbers are as
    wide as the first of their range. Raises `ValueError`, also for an empty list and for more than `MAX_NAMES`."""
    parts = _PART.findall(listed)
    if ",".join(parts) != listed.strip() or not parts:
        raise ValueError(f"{_shown(listed)} is no list of names like gpu[01-16],login1")
    names: list[str] = []
    for part in parts:
        made = [""]
        for piece in _PIECE.findall(part):
            ends = _numbers(piece[1:-1], listed) if piece.startswith("[") else [piece]
            if len(made) * len(ends) + len(names) > MAX_NAMES:
                raise _too_many(listed)
            made = [begin + end for begin in made for end in ends]
        names += made
    return names


def _numbers(inside: str, listed: str) -> list[str]:
    numbers: list[str] = []
    for item in inside.split(","):
        found = _RANGE.fullmatch(item.strip())
        if found is None:
            raise ValueError(f"{_shown(item)} is no number or range like 01-16 in {_shown(listed)}")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first):
            raise ValueError(f"the range {_shown(item)} runs backwards in {_shown(listed)}")
        if int(last) - int(first) + len(numbers) >= MAX_NAMES:
            raise _too_many(listed)
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _too_many(listed: str) -> ValueError:
    return ValueError(f"{_shown(listed)} means more than {MAX_NAMES} names")


def _shown(text: str) -> str:
    return repr(text.strip()[:80])
