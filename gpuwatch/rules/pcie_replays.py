"""A GPU's PCIe link sends packets again, far oftener than its siblings' links. A note: a bad contact or riser.

The counter is life-long and every link replays now and then, so only growth within the last hour counts, above
`most_in_an_hour` and `factor` times what the node's other GPUs had at the middle.
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
    """How many an hour, and how many times those of the siblings, are worth a note."""

    most_in_an_hour: int = 100
    factor: float = 10.0
    at_least_gpus: int = 2


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where replays are not counted, and on a node without a sibling to compare with."""
    facts = view.facts.get(NvmlFacts)
    counts = sorted(g.pcie_replay_hour_count or 0 for g in (facts.gpus if facts is not None else ()))
    if len(counts) < settings.at_least_gpus or counts[-1] <= settings.most_in_an_hour:
        return
    usual = counts[(len(counts) - 1) // 2]
    for gpu in facts.gpus if facts is not None else ():
        count = gpu.pcie_replay_hour_count or 0
        if count > settings.most_in_an_hour and count > settings.factor * usual:
            yield Evidence(
                rule="pcie_replays",
                subject=Subject("gpu", gpu.key(view.machine)),
                argues_for=Health.SUSPECT,
                because=f"{gpu.place()} sent {count:,} PCIe packets again within an hour, its siblings about {usual:,}",
                action="contact_support",
                note=True,
            )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="what is sent twice takes twice as long, and a bad contact does not mend itself",
    source="nvml.h, NVML_FI_DEV_PCIE_REPLAY_COUNTER",
)
