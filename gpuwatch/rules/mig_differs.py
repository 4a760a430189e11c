"""The GPUs of a node are not divided alike, or will be otherwise after the next reset. A note.

MIG makes instances of a GPU; a job that is given whole GPUs does not start on a divided one, and a mode that waits for
a reset surprises whoever resets next. Some sites mix on purpose, so it is told and nothing more.
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
    """One note a node; silent where MIG is not known."""
    facts = view.facts.get(NvmlFacts)
    told = [gpu for gpu in (facts.gpus if facts is not None else ()) if gpu.mig_mode is not None]
    divided = [gpu.index for gpu in told if gpu.mig_mode]
    waiting = [gpu.index for gpu in told if gpu.mig_mode_pending not in (None, gpu.mig_mode)]
    words = ""
    if waiting:
        words = f"MIG will change at the next reset of GPU {', '.join(map(str, waiting))}"
    elif divided and len(divided) < len(told):
        words = f"MIG is on only on GPU {', '.join(map(str, divided))} of {len(told)}"
    if words:
        subject = Subject("machine", view.machine)
        yield Evidence(rule="mig_differs", subject=subject, argues_for=Health.SUSPECT, because=words, note=True)


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="a job that is given whole GPUs does not start on a divided one",
    source="NVIDIA MIG user guide; nvml.h, nvmlDeviceGetMigMode",
)
