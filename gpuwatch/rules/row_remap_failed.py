"""Replacing a bad memory row has failed: the GPU has no spare row where it needs one. It must be replaced.

NVIDIA's criterion for sending a board back ("Row Remap Failures", GPU Memory Error Management). nvml.h: a remapping has
failed at some time in the past; the flag stays through resets and reboots. aws/eks-node-monitoring-agent#245: nobody
watched it. Silent where the flag is not told: before Ampere pages are retired instead, see `retired_pages`.
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
        if gpu.row_remap_failed:
            yield Evidence(
                rule="row_remap_failed",
                subject=Subject("gpu", gpu.key(view.machine)),
                argues_for=Health.DEGRADED,
                because=f"{gpu.place()} failed to replace a bad memory row: it has no spare one left there",
                conclusive=True,
                action="drain_replace",
            )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="the next error in that row ends a job, and no reset cures it",
    source="nvml.h, nvmlDeviceGetRemappedRows; NVIDIA GPU Memory Error Management; aws/eks-node-monitoring-agent#245",
)
