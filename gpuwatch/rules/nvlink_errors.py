"""NVLinks of a GPU recover from errors again and again. A note: the job goes on, slower.

Only growth within the last hour counts: life-long counters against a fixed limit took out healthy nodes
(aws/eks-node-monitoring-agent#261). A recovery weighs more than a replay, CRC errors least, so those are shown as
numbers only. Above `recoveries` an hour it is told; the faults that end a job come as Xid 74 or 144 to 150.
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
    """How many an hour are worth a note."""

    recoveries: int = 0
    replays: int = 1000


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where errors are not counted."""
    facts = view.facts.get(NvmlFacts)
    for gpu in facts.gpus if facts is not None else ():
        recoveries, replays = gpu.nvlink_recovery_hour_count or 0, gpu.nvlink_replay_hour_count or 0
        if recoveries > settings.recoveries or replays > settings.replays:
            yield Evidence(
                rule="nvlink_errors",
                subject=Subject("gpu", gpu.key(view.machine)),
                argues_for=Health.SUSPECT,
                because=f"{gpu.place()}: within an hour its NVLinks recovered {recoveries} times and sent "
                f"{replays} packets again",
                action="contact_support",
                note=True,
            )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="each recovery holds up all GPUs that exchange their work, and often comes before a link's end",
    source="aws/eks-node-monitoring-agent#261; nvml.h, NVML_FI_DEV_NVLINK_*",
)
