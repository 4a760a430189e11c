"""The four identities that are never mixed, and the PCI address that joins their sources."""

from __future__ import annotations

import re
from typing import NewType

SlotId = NewType("SlotId", str)  # the scheduler's name of a place: drains and budgets belong to it
MachineId = NewType("MachineId", str)  # the provider's resource id: actions, tokens and bills belong to it
BootId = NewType("BootId", str)  # /proc/sys/kernel/random/boot_id: events belong to it
GpuId = NewType("GpuId", str)  # UUID: strikes belong to it
RunId = NewType("RunId", str)
FaultId = NewType("FaultId", str)  # also the id of its incident

_PCI = re.compile(r"^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?$", re.IGNORECASE)


def pci_address(text: str) -> str | None:
    """One GPU's address in the form that joins NVML, kernel and lspci: `0000:9b:00`.

    Lower case, the domain in at least four digits, no function (a GPU's Xid has none). `None` if it is no address.
    """
    found = _PCI.match(text.strip())
    if found is None:
        return None
    domain, bus, device = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}".lower()  # a controller's own domain has five: 10000
