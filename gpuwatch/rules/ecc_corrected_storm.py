"""Corrected memory errors come at a rate at which the GPU is busy correcting them.

A corrected error is normal; a drain for one was a fault of a monitor (Azure/azurehpc#617). A storm is not: a GPU with
4,647 a second, 17,657 under load, slowed its node down until its monitor was killed 49 times (NVIDIA/NVSentinel#1748).
More than `most_in_an_hour` in the last hour (100 a second, far under that case and far over a healthy board). The
kernel's word for it is Xid 92.
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
    """How many corrected errors an hour are a storm."""

    most_in_an_hour: int = 360_000


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where memory errors are not counted."""
    facts = view.facts.get(NvmlFacts)
    for gpu in facts.gpus if facts is not None else ():
        count = gpu.ecc_corrected_hour_count
        if count is None or count <= settings.most_in_an_hour:
            continue
        yield Evidence(
            rule="ecc_corrected_storm",
            subject=Subject("gpu", gpu.key(view.machine)),
            argues_for=Health.DEGRADED,
            because=f"{gpu.place()} corrected {count:,} memory errors within an hour "
            f"(limit {settings.most_in_an_hour:,})",
            conclusive=True,
            action="drain_replace",
            soft=True,
        )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="correcting takes the GPU's time, and the whole gang waits for it",
    source="NVIDIA/NVSentinel#1748; NVIDIA Xid catalogue, Xid 92",
)
