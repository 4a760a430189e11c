"""The chassis holds its GPUs down: the power brake is pulled, because a power supply is lost or overloaded.

Bit 0x80 of NVML's clocks event reasons (HW power brake), or the driver's own counter of the time so spent: at least
`share` of it, for `lasts_s`. Clocks fall to a half or less. It is the power supply's fault, not the GPU's, so several
GPUs of one node show it at once, and several nodes of one rack: their cause is one, and the rule for shared causes
holds them together.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

POWER_BRAKE = 0x80  # nvmlClocksEventReasonHwPowerBrakeSlowdown


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What share of the time, and for how long."""

    share: float = 0.2
    lasts_s: float = 300.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """One finding a node; silent where reasons are not told."""
    facts = view.facts.get(NvmlFacts)
    braked = [gpu for gpu in (facts.gpus if facts is not None else ()) if _braked(gpu, settings)]
    if braked:
        yield Evidence(
            rule="power_brake",
            subject=Subject("machine", view.machine),
            argues_for=Health.DEGRADED,
            because=f"the chassis' power brake holds down GPU {', '.join(str(gpu.index) for gpu in braked)}",
            conclusive=True,
            action="contact_support",
            soft=True,
            must_last=settings.lasts_s,
        )


def _braked(gpu: Gpu, settings: Settings) -> bool:
    if gpu.power_brake_ratio is not None:
        return gpu.power_brake_ratio >= settings.share
    return bool((gpu.clock_event_mask or 0) & POWER_BRAKE)


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="clocks fall to a half or less, and the slowest GPU sets the pace of the whole job",
    source="nvml.h, nvmlClocksEventReasonHwPowerBrakeSlowdown",
)
