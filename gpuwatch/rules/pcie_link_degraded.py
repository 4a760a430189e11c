"""A device's PCIe link has fewer lanes, or is slower, than it was or than its siblings' is.

A card that sits badly, a bad riser or a tired slot trains with half its lanes and works at half its speed, without any
error (imbue-ai/cluster-health: mlx5 "limited by x8"; NVIDIA/open-gpu-kernel-modules#1151: a good link proves no living
GPU, so this says nothing of health beyond the link). Judged against this very device at its best, and against the most
of its siblings; fewer than the device can is a note, because slots may be narrower by design. Lanes count always; speed
of disks and network cards always, of a GPU only while it works, because at rest it slows its link on purpose. Must last
`after_s`, is soft, and needs hands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.facts.pcie import PciDevice, PcieFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long before it is believed, and from which use on a GPU works."""

    after_s: float = 900.0
    gpu_works_from_ratio: float = 0.5


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where the agent does not watch the bus."""
    facts = view.facts.get(PcieFacts)
    devices = [device for device in (facts.devices if facts is not None else ()) if not device.gone]
    working = _working(view, settings)
    widths = _by_model((device.model, device.width) for device in devices)
    speeds = _by_model((device.model, device.speed_gts) for device in devices if device.kind != "gpu")
    for device in devices:
        lanes = _less(device.width, device.width_best, widths.get(device.model))
        moves = device.kind != "gpu" or device.pci.rpartition(".")[0] in working
        speed = _less(device.speed_gts, device.speed_best_gts, speeds.get(device.model)) if moves else None
        if lanes is not None:
            yield _evidence(view, device, f"has {device.width:g} lanes, {lanes[0]} {lanes[1]:g}", settings)
        elif speed is not None:
            yield _evidence(view, device, f"runs at {device.speed_gts:g} GT/s, {speed[0]} {speed[1]:g}", settings)
        elif device.width is not None and device.width < (device.width_max or 0):
            words = f"has {device.width} lanes and can {device.width_max}; its slot may be narrower by design"
            yield _evidence(view, device, words, None)


def _working(view: NodeView, settings: Settings) -> set[str]:
    """PCI addresses, without function, of GPUs that are in use now."""
    nvml = view.facts.get(NvmlFacts)
    gpus = nvml.gpus if nvml is not None else ()
    return {gpu.pci for gpu in gpus if gpu.pci and (gpu.utilization_ratio or 0.0) >= settings.gpu_works_from_ratio}


def _by_model(values: Iterable[tuple[str, float | None]]) -> dict[str, Counter[float]]:
    found: dict[str, Counter[float]] = {}
    for model, value in values:
        if value is not None:
            found.setdefault(model, Counter())[value] += 1
    return found


def _less(now: float | None, best: float | None, siblings: Counter[float] | None) -> tuple[str, float] | None:
    """Against what it falls short: itself at its best, or more than half of the devices of its model."""
    if now is None:
        return None
    if best is not None and now < best:
        return "it had", best
    value, count = siblings.most_common(1)[0] if siblings else (now, 0)
    if now < value and siblings is not None and count * 2 > siblings.total():
        return "its siblings have", value
    return None


def _evidence(view: NodeView, device: PciDevice, words: str, settings: Settings | None) -> Evidence:
    """A note where there are no settings."""
    driver = f" ({device.driver})" if device.driver else ""
    return Evidence(
        rule="pcie_link_degraded",
        subject=Subject("link", f"{view.machine}/{device.pci}"),
        argues_for=Health.SUSPECT if settings is None else Health.DEGRADED,
        because=f"the PCIe link of the {device.kind} device {device.pci}{driver} {words}",
        conclusive=settings is not None,
        action="none" if settings is None else "contact_support",
        soft=True,
        must_last=0.0 if settings is None else settings.after_s,
        note=settings is None,
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(PcieFacts,),
    matters="half the lanes are half the bandwidth, and the slowest link sets the pace of the whole job",
    source="imbue-ai/cluster-health, NVIDIA/open-gpu-kernel-modules#1151",
)
