"""NVLinks of a GPU carry nothing, though its model has them all in use.

Judged against the most of its siblings on the node, and against what the model has by design
(`faults/gpu_models.py`): an H100 NVL has 12 of 18 links in use (Azure/azurehpc-health-checks#162), a PCIe card without
a bridge none (NVIDIA/DCGM#49), nor has a slice of a board or a divided GPU (MIG), and none of that is a fault. All of
them down on a model that lives by them was reported healthy (leptonai/gpud#1085, NVIDIA/DCGM#198). Must last `after_s`:
links train after a boot or a reset.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.faults.gpu_models import model_of
from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

MOST_NAMED = 36  # links: more than any chip has


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long before it is believed."""

    after_s: float = 120.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where link states are not told."""
    facts = view.facts.get(NvmlFacts)
    told = [gpu for gpu in (facts.gpus if facts is not None else ()) if gpu.nvlink_inactive is not None]
    if not any(gpu.nvlink_inactive for gpu in told):
        return
    told = [gpu for gpu in told if not gpu.mig_mode]  # instances reach no peer: a divided GPU has no use for links
    best = max((_active(gpu) for gpu in told), default=0)
    for gpu in told:
        model = model_of(gpu.name or "")
        whole = model is not None and len(told) >= model.whole_board_gpus
        due = max(best, model.nvlinks or 0) if model is not None and whole else best
        due = min(due, gpu.nvlink_count or 0)
        active = _active(gpu)
        if active >= due:
            continue
        down = ", ".join(map(str, (gpu.nvlink_inactive or ())[:MOST_NAMED]))
        yield Evidence(
            rule="nvlink_down",
            subject=Subject("gpu", gpu.key(view.machine)),
            argues_for=Health.DEGRADED,
            because=f"{gpu.place()} has {active} of {due} NVLinks up (down: {down})",
            conclusive=True,
            action="reboot",
            must_last=settings.after_s,
        )


def _active(gpu: Gpu) -> int:
    return (gpu.nvlink_count or 0) - len(gpu.nvlink_inactive or ())


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="GPUs of this node exchange their work over fewer links, or over PCIe, many times slower",
    source="leptonai/gpud#1085, NVIDIA/DCGM#198, Azure/azurehpc-health-checks#162",
)
