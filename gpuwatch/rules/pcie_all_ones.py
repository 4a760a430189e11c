"""A device answers every read with ones: it is listed, and off the bus.

The kernel still shows it, with vendor and class from its own memory; its configuration space reads ff (pciutils:
`rev ff`, lyulyul/shine-cluster#171). Found without the GPU's driver, and while that driver hangs. For the first moments
of a reset every device reads so, hence it must last `after_s`, which takes a second look.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.pcie import PcieFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long before it is believed: longer than the agent's interval, so that two looks agree."""

    after_s: float = 120.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where the agent does not watch the bus."""
    facts = view.facts.get(PcieFacts)
    for device in facts.devices if facts is not None else ():
        if not device.all_ones:
            continue
        note = device.kind == "ethernet"
        yield Evidence(
            rule="pcie_all_ones",
            subject=Subject("gpu" if device.kind == "gpu" else "link", f"{view.machine}/{device.pci}"),
            argues_for=Health.SUSPECT if note else Health.DEGRADED,
            because=f"the {device.kind} device {device.pci} ({device.model}) reads all ones: it is off the bus",
            conclusive=not note,
            action="none" if note else "drain_replace",
            soft=device.kind not in ("gpu", "switch"),
            must_last=0.0 if note else settings.after_s,
            note=note,
        )


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(PcieFacts,),
    matters="nothing can use this device until it is powered off and on, or replaced",
    source="pciutils (rev ff), lyulyul/shine-cluster#171",
)
