"""What sysfs says of the devices on the PCI bus that matter to a GPU node."""

from __future__ import annotations

import msgspec


class PciDevice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One GPU, switch, network card or NVMe disk. One that was here and is gone keeps its address, with `gone`."""

    pci: str  # `0000:1a:00.0`
    kind: str  # gpu | switch (NVSwitch) | infiniband | ethernet | nvme | pcie_switch (its upstream port)
    model: str = ""  # vendor and device, `10de:2330`: devices of the same model are siblings
    driver: str | None = None
    width: int | None = None  # lanes now
    width_max: int | None = None  # what the device can
    width_best: int | None = None  # the most that was ever seen on this device
    speed_gts: float | None = None  # GT/s a lane now; a GPU at rest runs slower on purpose
    speed_max_gts: float | None = None
    speed_best_gts: float | None = None
    all_ones: bool | None = None  # it answers every read with ones: off the bus, though still listed
    gone: bool = False
    gone_since_boot: bool = False  # it was there before this boot, and one of its model is missing now
    aer: dict[str, int] = {}  # correctable, nonfatal, fatal: errors since boot
    hung: str = ""  # reading it does not come back: why, in words


class PcieFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All devices that are watched."""

    devices: tuple[PciDevice, ...] = ()


FACTS = PcieFacts
