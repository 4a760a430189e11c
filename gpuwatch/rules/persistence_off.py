"""Persistence mode is off: the driver forgets its GPUs whenever nobody uses them. A note.

Then each look at a GPU loads and unloads its state, which takes seconds; counters and power limits are lost in between
(NVIDIA's driver persistence guide). Nothing that runs is harmed, and the persistence daemon's death is none either
(NVIDIA/NVSentinel#1382).
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
    """One note a node; silent where the mode is not told."""
    facts = view.facts.get(NvmlFacts)
    off = [gpu.index for gpu in (facts.gpus if facts is not None else ()) if gpu.persistence_mode is False]
    if off:
        yield Evidence(
            rule="persistence_off",
            subject=Subject("machine", view.machine),
            argues_for=Health.SUSPECT,
            because=f"persistence mode is off on GPU {', '.join(map(str, off))}: start nvidia-persistenced",
            note=True,
        )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="each look at a GPU takes seconds, and counters and power limits are lost in between",
    source="NVIDIA driver persistence guide; NVIDIA/NVSentinel#1382",
)
