"""How many GPUs a pool's nodes should have: as set, else as many as machines of its type have.

The price book knows the machine types of the big clouds. Chips that NVML does not know (TPUs, Trainium, MI300X) count
as not known: a pool of those that sets nothing is never judged by a number of GPUs.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources

from gpuwatch.aggregator.settings import PoolSettings

OTHER_CHIPS = ("TPU", "Trainium", "Inferentia", "MI")


@cache
def by_type() -> Mapping[str, int]:
    """NVIDIA GPUs of each machine type of the price book, by its name in small letters."""
    text = resources.files("gpuwatch.prices").joinpath("data/prices.csv").read_text(encoding="utf-8")
    counts: dict[str, set[str]] = {}
    for row in csv.DictReader(text.splitlines()):
        if not row["gpu_model"].startswith(OTHER_CHIPS):
            counts.setdefault(_name(row["sku"]), set()).add(row["gpus"])
    return {sku: int(next(iter(found))) for sku, found in counts.items() if len(found) == 1 and _whole(found)}


def expected_gpus(pool: PoolSettings, sku: str = "") -> int | None:
    """GPUs of one node; None: not known. `sku`: of this very machine, where the pool names none."""
    if pool.gpus is not None:
        return pool.gpus
    return by_type().get(_name(pool.sku or sku))


def _name(sku: str) -> str:
    return sku.lower().removeprefix("standard_")


def _whole(found: set[str]) -> bool:
    """A share of a GPU is a virtual one: how many the machine shows is not known."""
    return all(count.isdecimal() and int(count) for count in found)
