"""How many GPUs a job held: `gres/gpu` in AllocTRES, or the older AllocGRES. Totals of the job over all its nodes.

Typed entries (`gres/gpu:a100=4`) are the same GPUs again: they count only where the plain one is missing, and then they
are added. `gres/gpumem`, `gres/gpuutil` and `gres/shard` are no GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_COUNT = re.compile(r"(\d+)(?:\.0+)?([KMG]?)")
_SCALE = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def gpus_of_tres(text: str) -> int:
    """`billing=128,cpu=64,gres/gpu:a100=8,gres/gpu=8,node=1` -> 8. Raises `ValueError` where it cannot be known."""
    pairs = []
    for part in text.split(","):
        name, is_there, count = part.strip().partition("=")
        if name.isdigit() and is_there:
            raise ValueError("its TRES have numeric ids, whose meaning is in the site's own table")
        if name.lower() == "gres/gpu" or name.lower().startswith("gres/gpu:"):
            pairs.append((name.lower().partition(":")[2], _count(count)))
    if not text.strip(", "):
        raise ValueError("it ran, but the allocated TRES are empty")
    return counted(pairs)


def gpus_of_gres(text: str) -> int:
    """AllocGRES of Slurm before 20.11: `gpu:8`, `gpu:a100:4(S:0-1),gpu:h100:4`, or empty for no GRES at all."""
    pairs = []
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        words = part.strip().split(":")
        if words[0].isdigit():
            raise ValueError("its GRES have numeric ids, whose meaning is in the site's own table")
        if words[0].lower() == "gpu":
            numbered = len(words) > 1 and _COUNT.fullmatch(words[-1]) is not None
            kind = words[1] if len(words) > 2 or (len(words) > 1 and not numbered) else ""
            pairs.append((kind, _count(words[-1]) if numbered else 1))
    return counted(pairs)


def counted(pairs: Iterable[tuple[str, int]]) -> int:
    """(type or empty, count) -> GPUs."""
    plain, typed, has_plain = 0, 0, False
    for kind, count in pairs:
        if kind:
            typed += count
        else:
            plain, has_plain = plain + count, True
    return plain if has_plain else typed


def _count(text: str) -> int:
    found = _COUNT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"a count of GPUs reads {text!r}")
    return int(found[1]) * _SCALE[found[2]]
