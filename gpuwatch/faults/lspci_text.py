"""Text of `lspci`, pasted by a person: a device that is gone, and with `-vv` one whose link has too few lanes.

The speed of a link is not judged: an idle GPU lowers it (NVIDIA/open-gpu-kernel-modules#731); its lanes it keeps.
"""

from __future__ import annotations

import re

from gpuwatch.faults.event import Event
from gpuwatch.faults.named import function_address, named
from gpuwatch.model.identity import pci_address

_DEVICE = re.compile(
    r"(?P<pci>(?:[0-9a-f]{4,5}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) "
    r"(?P<kind>[A-Z0-9][\w /.()-]{0,60}?)(?: \[[0-9a-f]{4}\])?: (?P<what>\S.*)"
)
_GPU_CLASS = re.compile(r"(?:3D|VGA|Display)\b")
_BRIDGE = re.compile(r"(?:PCI bridge|Host bridge|ISA bridge|Bridge)\b")  # half-used slots are nobody's fault
_WIDTH = re.compile(r"\s+Lnk(?P<what>Cap|Sta):\s.*?\bWidth x(?P<width>\d{1,2})\b(?: \((?P<note>\w+)\))?")
_ALL_ONES = "(rev ff)"
_HEX = frozenset(bytes([digit]) for digit in b"0123456789abcdef")
_LANES = (1, 2, 4, 8, 12, 16, 32)


def is_device(raw: bytes) -> bool:
    """Whether a device may begin in this line."""
    return b":" in (raw[2:3], raw[4:5], raw[5:6]) and raw[:1] in _HEX


class LspciText:
    """Hears the lines in order."""

    def __init__(self) -> None:
        self._device: re.Match[str] | None = None
        self._most: int | None = None

    def hear(self, line: str) -> list[Event]:
        """The events of one line."""
        device = _DEVICE.match(line)
        if device is not None:
            self._device, self._most = device, None
            return _gone(device) if _ALL_ONES in line else []
        width = _WIDTH.match(line)
        if width is None:
            return []
        lanes = int(width["width"])
        if width["what"] == "Cap":
            self._most = lanes
            return []
        return self._narrow(lanes, width["note"], line)

    def _narrow(self, lanes: int, note: str | None, line: str) -> list[Event]:
        device, most = self._device, self._most
        if lanes not in _LANES or (device is not None and _BRIDGE.match(device["kind"]) is not None):
            return []
        if note != "downgraded" and (note is not None or most is None or lanes >= most):
            return []
        pci = _address(device) if device is not None else None
        details = {"now": f"x{lanes}", "max": f"x{most}" if most is not None else None}
        return [named("pcie_width", line.strip(), pci=pci, subject=pci or "", details=details)]


def _address(device: re.Match[str]) -> str | None:
    if _GPU_CLASS.match(device["kind"]) is not None:
        return pci_address(device["pci"])
    return function_address(device["pci"] if device["pci"].count(":") == 2 else f"0000:{device['pci']}")


def _gone(device: re.Match[str]) -> list[Event]:
    """A device that answers with all ones: revision ff (lyulyul/shine-cluster#171). A GPU's other functions are its."""
    if _GPU_CLASS.match(device["kind"]) is None and (device["kind"].startswith("Audio") or "NVIDIA" in device["what"]):
        return []
    return [named("pci_all_ones", device[0], pci=_address(device))]
