"""A GPU's memory uses up its spare rows: many rows replaced, or banks that have none left.

An Ampere or newer GPU has 512 spare rows, eight a bank (NVIDIA, GPU Memory Error Management). More than `most_rows`
replaced for uncorrectable errors is Azure's limit for a board (azurehpc-health-checks: 512). A bank without a spare row
is a note: the next bad row there cannot be replaced. So is a row replaced within the last hour: one more soon after the
reset that replaced the last is how a dying memory begins (wtdcode/vllm-backport#62).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many replaced rows are too many."""

    most_rows: int = 512


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where rows are not remapped."""
    facts = view.facts.get(NvmlFacts)
    for gpu in facts.gpus if facts is not None else ():
        rows = gpu.rows_remapped_uncorrected_count
        banks = gpu.row_remap_banks
        if rows and rows >= settings.most_rows:
            words = f"{gpu.place()} has had {rows} memory rows replaced for uncorrectable errors, all that it can"
            yield _evidence(view, gpu, words, note=False)
        elif banks is not None and banks[4]:
            words = f"{gpu.place()} has {banks[4]} memory banks without a spare row: the next bad row there stays"
            yield _evidence(view, gpu, words, note=True)
        elif gpu.rows_remapped_hour_count:
            count = gpu.rows_remapped_hour_count
            words = f"{gpu.place()} has had {count} memory row{'s' if count > 1 else ''} replaced within an hour"
            yield _evidence(view, gpu, words, note=True)


def _evidence(view: NodeView, gpu: Gpu, because: str, *, note: bool) -> Evidence:
    return Evidence(
        rule="row_remaps_exhausted",
        subject=Subject("gpu", gpu.key(view.machine)),
        argues_for=Health.SUSPECT if note else Health.DEGRADED,
        because=because,
        conclusive=not note,
        action="drain_replace",
        soft=True,
        note=note,
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="once no spare row is left, the next bad one stays in use and ends jobs",
    source="NVIDIA GPU Memory Error Management; azurehpc-health-checks",
)
