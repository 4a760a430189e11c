"""Memory errors that could not be corrected, with no Xid that tells of them.

Usually the kernel log has an Xid 48, 94 or 95 beside them, and `fatal_xid` decides by that one. Here the counter since
driver load grew within the last hour and the log has none of this GPU: it cannot be read, or lost lines (a reader that
is too slow loses them, systemd/systemd#8361). Only growth counts: the life-long counter tells of errors that the driver
dealt with long ago (leptonai/gpud#108 removed exactly that check).
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

OF_MEMORY = frozenset({48, 63, 64, 94, 95, 160, 171, 172})
"""Xids that tell of a memory error, of what was done about it, or of what it ended."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long it waits for the kernel log's word."""

    after_s: float = 60.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where memory errors are not counted."""
    facts = view.facts.get(NvmlFacts)
    for gpu in facts.gpus if facts is not None else ():
        count = gpu.ecc_uncorrected_hour_count
        if not count or any(event.pci == gpu.pci and event.xid in OF_MEMORY for event in view.events):
            continue
        yield Evidence(
            rule="ecc_uncorrected",
            subject=Subject("gpu", gpu.key(view.machine)),
            argues_for=Health.DEGRADED,
            because=f"{gpu.place()} had {count} uncorrectable memory error{'s' if count > 1 else ''} within an hour, "
            "and no Xid tells of them",
            conclusive=True,
            action="reset_gpu",
            must_last=settings.after_s,
        )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="each one ended a process or spoiled what it worked on",
    source="nvml.h, volatile ECC counters; leptonai/gpud#108",
)
