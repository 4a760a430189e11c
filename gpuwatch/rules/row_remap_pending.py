"""A bad memory row will be replaced at the GPU's next reset. A note: nothing is wrong with what runs.

nvml.h: a pending remapping does not affect what runs now; drained at once it costs a job for nothing
(leptonai/gpud#987). Reset the GPU when it is idle. If the flag is still there after a reset, `row_remap_failed` or the
same row's next error tells.
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
    """Nothing to set here."""


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Looks at one flag of each GPU."""
    facts = view.facts.get(NvmlFacts)
    for gpu in facts.gpus if facts is not None else ():
        if gpu.row_remap_pending:
            yield Evidence(
                rule="row_remap_pending",
                subject=Subject("gpu", gpu.key(view.machine)),
                argues_for=Health.SUSPECT,
                because=f"{gpu.place()} waits for a reset to replace a bad memory row: reset it when it is idle",
                action="reset_gpu",
                note=True,
            )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="the row is out of use, but the spare one takes its place only at a reset",
    source="nvml.h, nvmlDeviceGetRemappedRows; leptonai/gpud#987",
)
