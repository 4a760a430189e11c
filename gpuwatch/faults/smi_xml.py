"""`nvidia-smi -q -x`, pasted by a person: the fields of `-q` under other names, one a line."""

from __future__ import annotations

import re

from gpuwatch.faults import smi_query
from gpuwatch.faults.event import Event
from gpuwatch.model.identity import pci_address

_GPU = re.compile(r'\s*<gpu id="(?P<pci>[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])">\s*$')
_FIELD = re.compile(r"\s*<(?P<tag>[a-z][a-z0-9_]{1,63})>(?P<value>[^<>]{1,80})</(?P=tag)>\s*$")
_BLOCK = re.compile(r"\s*<(?P<tag>fabric|volatile|aggregate|ecc_errors)>\s*$")

_NAMES = {  # tag -> block and field of `-q`
    "remapped_row_unc": ("Remapped Rows", "Uncorrectable Error"),
    "remapped_row_pending": ("Remapped Rows", "Pending"),
    "remapped_row_failure": ("Remapped Rows", "Remapping Failure Occurred"),
    "pending_blacklist": ("Retired Pages", "Pending Page Blacklist"),
    "pending_retirement": ("Retired Pages", "Pending Page Blacklist"),
    "max_link_width": ("Link Width", "Max"),
    "current_link_width": ("Link Width", "Current"),
    "sram_threshold_exceeded": ("", "SRAM Threshold Exceeded"),
    "reset_required": ("", "Reset Required"),
    "summary": ("Health", "Summary"),
    "gpu_recovery_action": ("", smi_query.RECOVERY),
}
_IN_BLOCK = {
    ("fabric", "state"): ("Fabric", "State"),
    ("fabric", "status"): ("Fabric", "Status"),
    ("volatile", "dram_uncorrectable"): ("Volatile", "DRAM Uncorrectable"),
    ("volatile", "sram_uncorrectable"): ("Volatile", "SRAM Uncorrectable"),
    ("volatile", "sram_uncorrectable_parity"): ("Volatile", "SRAM Uncorrectable Parity"),
    ("volatile", "sram_uncorrectable_secded"): ("Volatile", "SRAM Uncorrectable SEC-DED"),
}
_REASON = re.compile(r"clocks_(?:event|throttle)_reason_hw_(slowdown|thermal_slowdown|power_brake_slowdown)")


class SmiXml:
    """Hears the lines in order."""

    def __init__(self) -> None:
        self._pci: str | None = None
        self._block = ""
        self._before: dict[str, str] = {}

    def hear(self, line: str) -> list[Event]:
        """The events of one line."""
        field = _FIELD.match(line)
        if field is not None:
            return self._field(field["tag"], field["value"].strip(), line.strip())
        gpu = _GPU.match(line)
        if gpu is not None:
            self._pci, self._block, self._before = pci_address(gpu["pci"]), "", {}
        block = _BLOCK.match(line)
        if block is not None:
            self._block = block["tag"]
        return []

    def _field(self, tag: str, value: str, line: str) -> list[Event]:
        reason = _REASON.fullmatch(tag)
        if reason is not None:
            block, key = "", "HW " + reason[1].replace("_", " ").title()
        else:
            block, key = _NAMES.get(tag) or _IN_BLOCK.get((self._block, tag)) or ("", tag)
        event = smi_query.read(block, key, value, self._before, self._pci, line)
        self._before[key] = value
        return [event] if event is not None else []
