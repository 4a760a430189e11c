"""`gpu[01-16]` as sixteen names: the way Slurm, Flux and pdsh write many nodes."""

from __future__ import annotations

import re

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
MAX_SLOTS = 200_000


def expand(pattern: str) -> list[str]:
    """Every name that a pattern means, in order: `r[1-2]n[01,03]` is r1n01 r1n03 r2n01 r2n03. Raises `ValueError`."""
    names = [""]
    rest = pattern
    while rest:
        head, bracket, tail = rest.partition("[")
        if "]" in head:
            raise ValueError(f"a `]` without its `[` in {pattern!r}")
        parts = [head]
        if bracket:
            inside, closing, tail = tail.partition("]")
            if not closing:
                raise ValueError(f"a `[` without its `]` in {pattern!r}")
            parts = [head + number for number in _numbers(inside, pattern)]
        if len(names) * len(parts) > MAX_SLOTS:
            raise ValueError(f"{pattern!r} means more than {MAX_SLOTS} names")
        names = [name + part for name in names for part in parts]
        rest = tail
    if names == [""]:
        raise ValueError("an empty name")
    return names


def _numbers(inside: str, pattern: str) -> list[str]:
    numbers: list[str] = []
    for item in inside.split(","):
        found = _RANGE.fullmatch(item.strip())
        if found is None:
            raise ValueError(f"{item.strip()!r} is no number or range like 01-16 in {pattern!r}")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first):
            raise ValueError(f"the range {item.strip()!r} runs backwards in {pattern!r}")
        if int(last) - int(first) >= MAX_SLOTS:
            raise ValueError(f"{pattern!r} means more than {MAX_SLOTS} names")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
