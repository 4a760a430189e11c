"""One GPU of this node by its UUID or PCI address: who holds it, and whether it is partitioned. Asks no driver library.

Source: the driver's own files under /proc/driver/nvidia, of which `information` names UUID, address and device number,
and `capabilities/gpuN/mig/giM` is there for each MIG instance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from gpuwatch.hands.processes import Process
from gpuwatch.model.identity import pci_address

DRIVER = "driver/nvidia"  # under /proc


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as the driver's files have it."""

    pci: str  # `0000:9b:00`
    uuid: str
    minor: int | None  # of /dev/nvidiaN; None: the file does not say


def gpus(driver: Path) -> list[Gpu]:
    """All GPUs of which the driver has a file; those that fell off the bus may be among them."""
    found = []
    for place in sorted(driver.glob("gpus/*")):
        try:
            text = (place / "information").read_text(errors="replace")
        except OSError:
            text = ""
        said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
        number = said.get("Device Minor", "")
        pci = pci_address(place.name)
        if pci is not None:
            found.append(Gpu(pci=pci, uuid=said.get("GPU UUID", ""), minor=int(number) if number.isdecimal() else None))
    return found


def named(target: str, among: Iterable[Gpu]) -> Gpu | None:
    """The GPU that an order means; None: it is not here."""
    address = pci_address(target)
    return next((gpu for gpu in among if gpu.uuid == target or (address is not None and gpu.pci == address)), None)


def holders(
    seen: Iterable[Process], gpu: Gpu | None, friends: Collection[str], *, condemned_too: bool = True
) -> list[Process]:
    """Who has this GPU open, or any GPU, friends left out.

    `condemned_too`: also those that were killed already and only wait for the kernel: nothing can run over them.
    """
    found = []
    for process in seen:
        if process.gone or not process.devices or process.is_friend(friends):
            continue
        if process.condemned and not condemned_too:
            continue
        if any(_is_of(device, gpu) for device in process.devices):
            found.append(process)
    return found


def _is_of(device: str, gpu: Gpu | None) -> bool:
    """/dev/nvidiactl and /dev/nvidia-uvm alone are no GPU, but who holds a capability may hold a part of any."""
    number = device.removeprefix("/dev/nvidia")
    if device.startswith("/dev/nvidia-caps/"):
        return True
    return number.isdecimal() and (gpu is None or gpu.minor is None or int(number) == gpu.minor)


def mig_instances(gpu: Gpu, driver: Path) -> int | None:
    """How many MIG instances there are on it; None: that cannot be told."""
    if gpu.minor is None:
        return None
    return len(list(driver.glob(f"capabilities/gpu{gpu.minor}/mig/gi*")))
