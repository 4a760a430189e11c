"""The hardware slows a GPU down because it is too hot.

Bit 0x40 of NVML's clocks event reasons (HW thermal slowdown), or the driver's own counter of the time so spent: at
least `share` of the time. It must last `lasts_s`, because the bits flash when clocks change (leptonai/gpud#330 replaced
single readings). The power cap (0x4) and idling (0x1) are no faults, though monitors alarmed on them
(Azure/azurehpc#595, canonical/hardware-observer#307). The limits are the board's own: a margin of `margin_celsius` or
less to the slowdown, and 0x20 (the driver lowers clocks for heat), are notes: look at the cooling.
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

SOFTWARE, HARDWARE = 0x20, 0x40  # nvmlClocksEventReasonSwThermalSlowdown, …HwThermalSlowdown


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What share of the time, for how long, and how near the limit is worth a note."""

    share: float = 0.2
    lasts_s: float = 300.0
    margin_celsius: int = 2


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where neither temperatures nor reasons are told."""
    facts = view.facts.get(NvmlFacts)
    for gpu in facts.gpus if facts is not None else ():
        mask = gpu.clock_event_mask or 0
        slowed = gpu.thermal_slowdown_ratio
        margin = gpu.temperature_margin_celsius
        if not mask & (HARDWARE | SOFTWARE) and not slowed and (margin is None or margin > settings.margin_celsius):
            continue
        if (slowed >= settings.share) if slowed is not None else bool(mask & HARDWARE):
            yield _evidence(view, gpu, "is slowed down by its hardware because it is too hot", settings.lasts_s)
        elif mask & SOFTWARE:
            yield _evidence(view, gpu, "has its clocks lowered by the driver because it is too hot", None)
        elif margin is not None and margin <= settings.margin_celsius:
            yield _evidence(view, gpu, f"is {margin} °C from the slowdown", None)


def _evidence(view: NodeView, gpu: Gpu, words: str, lasts_s: float | None) -> Evidence:
    celsius = f" ({gpu.temperature_celsius} °C)" if gpu.temperature_celsius is not None else ""
    return Evidence(
        rule="gpu_too_hot",
        subject=Subject("gpu", gpu.key(view.machine)),
        argues_for=Health.SUSPECT if lasts_s is None else Health.DEGRADED,
        because=f"{gpu.place()} {words}{celsius}",
        conclusive=lasts_s is not None,
        action="contact_support",
        soft=True,
        note=lasts_s is None,
        must_last=lasts_s or 0.0,
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    matters="clocks fall to a half or less, and the slowest GPU sets the pace of the whole job",
    source="nvml.h, nvmlClocksEventReasons; leptonai/gpud#330, Azure/azurehpc#595",
)
