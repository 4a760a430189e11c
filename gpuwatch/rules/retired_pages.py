"""A GPU older than Ampere has taken many memory pages out of use, or waits for a reset to do so.

NVIDIA's Dynamic Page Retirement: a board with `most_pages` or more retired pages may be sent back (60; the number is
debated in Azure/azhpc-diagnostics#40). A pending page is a note, as a pending row is: nothing that runs is affected.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many retired pages are too many."""

    most_pages: int = 60


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where pages are not retired."""
    facts = view.facts.get(NvmlFacts)
    for gpu in facts.gpus if facts is not None else ():
        many = (gpu.retired_page_count or 0) >= settings.most_pages
        if not many and not gpu.retired_page_pending:
            continue
        if many:
            words = f"has {gpu.retired_page_count} retired memory pages (limit {settings.most_pages})"
        else:
            words = "waits for a reset to take a bad memory page out of use: reset it when it is idle"
        yield Evidence(
            rule="retired_pages",
            subject=Subject("gpu", gpu.key(view.machine)),
            argues_for=Health.DEGRADED if many else Health.SUSPECT,
            because=f"{gpu.place()} {words}",
            conclusive=many,
            action="drain_replace" if many else "reset_gpu",
            soft=True,
            note=not many,
        )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="the board's memory wears out: each further page is a job that ended",
    source="NVIDIA Dynamic Page Retirement; Azure/azhpc-diagnostics#40",
)
