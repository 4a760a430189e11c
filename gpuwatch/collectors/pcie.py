"""The PCI bus: GPUs, NVSwitches, network cards and NVMe disks with their links, and which of them are gone.

Read from sysfs by a small program with a deadline, because a device that is being reset or is off the bus may keep its
reader waiting. What was there is remembered over restarts. A device that sleeps is not woken.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from gpuwatch.collectors import Collector, Reading, Sample, Unsupported
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.pcie import PciDevice, PcieFacts
from gpuwatch.sdk.errand import Errands
from gpuwatch.sdk.file_look import Look, look_together
from gpuwatch.sdk.pci_bus import MOST_BYTES_A_FILE, Bus, Function, says
from gpuwatch.sdk.pci_history import History

MOST_GAPS = 16


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, and which kinds."""

    enabled: bool = True
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=4)] = 4.0  # of one look
    kinds: tuple[str, ...] = ("gpu", "switch", "infiniband", "ethernet", "nvme", "pcie_switch")
    sys_root: str = "/sys"


class _Reader:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._bus = Bus(settings.sys_root)
        self._errands = Errands("pcie")
        self._history = History()

    def keep(self, folder: Path, ours: bool) -> None:
        self._errands.keep(folder, ours=ours)
        self._history.keep(folder, ours)

    def read(self) -> Reading:
        """One look at every device that is watched."""
        on_bus = self._bus.functions()
        if on_bus is None:
            if self._history.knows_any():
                raise ProbeError("the PCI bus cannot be listed", why=f"{self._settings.sys_root}/bus/pci/devices")
            raise Unsupported("no PCI bus here")
        functions = [function for function in on_bus if function.kind in self._settings.kinds]
        gone = [lost for lost in self._history.gone(on_bus, self._bus.listed) if lost[1].kind in self._settings.kinds]
        if not functions and not gone:
            raise Unsupported("no GPU, switch, network card or NVMe disk on the PCI bus")
        looks = look_together(
            self._errands,
            {function.pci: function.paths() for function in functions},
            deadline_s=self._settings.deadline_s,
            most_bytes=MOST_BYTES_A_FILE,
        )
        unasked = [seen.unasked for seen in looks.values()]
        if unasked and all(unasked) and not gone:  # what is gone is known without
            raise ProbeError("no device on the PCI bus could be looked at", why=unasked[0])
        gaps = {f"devices.{pci}": why for pci, seen in looks.items() if (why := seen.hung or seen.unasked)}
        gaps |= {f"devices.{pci}": "it does not say what it is" for pci in self._bus.unreadable[:MOST_GAPS]}
        devices = [self._device(function, looks[function.pci]) for function in functions]
        for pci, before, earlier in gone:
            devices.append(
                PciDevice(
                    pci=pci,
                    kind=before.kind,
                    model=before.model,
                    width_best=before.width_best,
                    speed_best_gts=before.speed_best_gts,
                    gone=True,
                    gone_since_boot=earlier,
                )
            )
        self._history.save()
        return Reading(PcieFacts(tuple(devices)), gaps, abandoned_count=self._errands.abandoned_count)

    def close(self) -> None:
        pass

    def _device(self, function: Function, seen: Look) -> PciDevice:
        now = says(function, seen)
        before = self._history.see(function, now)
        return PciDevice(
            pci=function.pci,
            kind=function.kind,
            model=function.model,
            driver=function.driver(),
            width=now.width,
            width_max=now.width_max,
            width_best=before.width_best,
            speed_gts=now.speed_gts,
            speed_max_gts=now.speed_max_gts,
            speed_best_gts=before.speed_best_gts,
            all_ones=now.all_ones,
            aer=now.aer,
            hung=seen.hung[:300],
        )


def metrics(facts: PcieFacts) -> Iterable[Sample]:
    """One series a number of a device that is known."""
    for device in facts.devices:
        labels = {"pci": device.pci, "kind": device.kind}
        here = 0.0 if device.gone or device.all_ones else 1.0
        yield Sample(name="gpuwatch_pcie_present", help="Whether it is on the bus.", value=here, labels=labels)
        for name, text, value in (
            ("link_width_lanes", "Lanes of its link now.", device.width),
            ("link_width_best_lanes", "The most lanes that its link ever had.", device.width_best),
            ("link_transfers_per_second", "Transfers a second on each lane now.", _each_second(device.speed_gts)),
        ):
            if value is not None:
                yield Sample(name=f"gpuwatch_pcie_{name}", help=text, value=value, labels=labels)
        for kind, count in device.aer.items():
            by_kind = labels | {"severity": kind}
            text = "PCIe errors since boot, by severity."
            yield Sample(name="gpuwatch_pcie_errors_total", help=text, value=count, labels=by_kind, counter=True)


def _each_second(gts: float | None) -> float | None:
    return None if gts is None else gts * 1e9


def open_reader(settings: Settings) -> _Reader:
    """A reader of this machine."""
    return _Reader(settings)


COLLECTOR = Collector(facts=PcieFacts, settings=Settings, open=open_reader, metrics=metrics)
