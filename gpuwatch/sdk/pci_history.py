"""Which devices were on the bus, and how good each link was at its best. Kept over restarts of agent and node.

Within one boot a device is known by its address. Over a boot addresses may move, because buses are numbered anew, so
there only the number of each model is compared.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import msgspec

from gpuwatch.sdk.kernel_lines import this_boot_id
from gpuwatch.sdk.pci_bus import Function, Says
from gpuwatch.sdk.remembered import Remembered

MOST_DEVICES = 256
FORGOTTEN_AFTER_DAYS = 7  # a card that was taken out while the node was off


class DeviceBefore(msgspec.Struct, kw_only=True):
    """One device as it is remembered."""

    kind: str = ""
    model: str = ""
    width_best: int | None = None
    speed_best_gts: float | None = None


class Learned(msgspec.Struct, kw_only=True):
    """The file."""

    boot_id: str = ""
    devices: dict[str, DeviceBefore] = {}  # of this boot
    earlier: dict[str, DeviceBefore] = {}  # of the boot before, where something has been missing since
    earlier_day: int = 0  # the day since 1970 of that boot's end


class History:
    """All devices by address."""

    def __init__(self) -> None:
        self._memory = Remembered("pcie", Learned)
        self._begin()

    def keep(self, folder: Path, ours: bool) -> None:
        """Take up what an earlier agent learned."""
        self._memory.keep(folder, ours)
        self._begin()

    def _begin(self) -> None:
        learned, boot_id = self._memory.value, this_boot_id()
        if learned.boot_id != boot_id or not boot_id:
            learned.earlier |= learned.devices
            learned.earlier_day = _today()
            learned.boot_id, learned.devices = boot_id, {}

    def knows_any(self) -> bool:
        """Something was on the bus in this boot."""
        return bool(self._memory.value.devices)

    def see(self, function: Function, says: Says) -> DeviceBefore:
        """Add what a device says now, and tell what it was at its best."""
        learned = self._memory.value
        before = learned.devices.get(function.pci)
        if before is None or before.model != function.model:
            same = learned.earlier.get(function.pci)
            before = same if same is not None and same.model == function.model else DeviceBefore()
            before = msgspec.structs.replace(before, kind=function.kind, model=function.model)
            if len(learned.devices) < MOST_DEVICES:
                learned.devices[function.pci] = before
        if not says.all_ones:
            before.width_best = max(before.width_best or 0, says.width or 0) or None
            before.speed_best_gts = max(before.speed_best_gts or 0.0, says.speed_gts or 0.0) or None
        return before

    def gone(self, here: list[Function], addresses: frozenset[str]) -> list[tuple[str, DeviceBefore, bool]]:
        """Devices that are missing: address, what it was, and whether it was lost before this boot. `addresses`: all
        that is on the bus, also what does not say what it is."""
        learned = self._memory.value
        found = [(pci, before, False) for pci, before in learned.devices.items() if pci not in addresses]
        missing = Counter(before.model for before in learned.earlier.values())
        missing -= Counter(function.model for function in here)
        missing -= Counter(before.model for _, before, _ in found)  # told already
        for pci, before in sorted(learned.earlier.items()):
            if pci not in addresses and missing[before.model] > 0:
                missing[before.model] -= 1
                found.append((pci, before, True))
        if not found or abs(_today() - learned.earlier_day) > FORGOTTEN_AFTER_DAYS:
            learned.earlier = {}
        return found

    def save(self) -> None:
        """Keep it over restarts."""
        self._memory.save()


def _today() -> int:
    return int(time.time() // 86_400)
