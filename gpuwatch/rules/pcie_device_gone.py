"""A device that was on the PCI bus is not there any more.

Seen without any driver: sysfs lists what the bus has, and the agent remembers what it had. Within one boot a missing
GPU, NVSwitch, InfiniBand card or NVMe disk is a fault once it has lasted `after_s` (a rescan or a reset takes a device
away for a moment). A network card of the Ethernet class is a note: clouds take virtual ones away when they service a
host. What is missing only since before this boot is a note too: somebody may have taken it out while the node was off;
of GPUs, `gpu_missing` knows the expected number.
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
    """How long before it is believed."""

    after_s: float = 180.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Iterator[Evidence]:  # noqa: ARG001
    """Silent where the agent does not watch the bus."""
    facts = view.facts.get(PcieFacts)
    for device in facts.devices if facts is not None else ():
        if not device.gone:
            continue
        note = device.gone_since_boot or device.kind == "ethernet"
        when = "since before this boot" if device.gone_since_boot else "since it was seen in this boot"
        yield Evidence(
            rule="pcie_device_gone",
            subject=Subject("gpu" if device.kind == "gpu" else "link", f"{view.machine}/{device.pci}"),
            argues_for=Health.SUSPECT if note else Health.DEGRADED,
            because=f"the {device.kind} device {device.pci} ({device.model}) is gone from the PCI bus, {when}",
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
    matters="a device that leaves the bus is dead or has no power; what used it has failed",
    source="NVIDIA/NVSentinel#155, leptonai/gpud",
)
