"""Text of `lspci`, `ibstat` and `ibstatus`, and of single files below /sys, pasted by a person."""

from __future__ import annotations

import re

from gpuwatch.faults.event import Event
from gpuwatch.faults.named import function_address, named
from gpuwatch.model.identity import pci_address

STARTS = (b"CA '", b"Infiniband device '", b"\t", b"    ", b"TOTAL_ERR_")

_LSPCI = re.compile(
    r"(?P<pci>(?:[0-9a-f]{4,5}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<kind>[A-Z0-9][\w /.()-]*?)(?: \[[0-9a-f]{4}\])?: "
    r"(?P<what>.*\(rev ff\).*)"
)
_GPU_CLASS = re.compile(r"(?:3D|VGA|Display)\b")
_CARD = re.compile(r"(?:CA|Infiniband device) '(?P<dev>[\w.-]+)'(?: port (?P<port>\d+) status:)?")
_PORT = re.compile(r"\s+Port (?P<port>\d+):\s*$")
_STATE = re.compile(r"\s+state:\s+(?:\d+: )?(?P<state>\w+)\s*$", re.IGNORECASE)
_PHYSICAL = re.compile(r"\s+phys(?:ical)? state:\s+(?:\d+: )?(?P<state>\w+)\s*$", re.IGNORECASE)

_LOGICAL = re.compile(r"[0-5]: (?P<state>NOP|DOWN|INIT|ARMED|ACTIVE|ACTIVE_DEFER)")
_PHYS = re.compile(
    r"[1-7]: (?P<state>Sleep|Polling|Disabled|PortConfigurationTraining|LinkUp|LinkErrorRecovery|Phy Test)"
)
_NO_VALUE = re.compile(r"N/A(?: \(no PMA\))?|Unknown(?: speed)?|<unknown>")
_TOTAL = re.compile(r"TOTAL_ERR_(?P<kind>COR|NONFATAL|FATAL) (?P<count>\d{1,18})$")
_TOTALS = {"COR": "aer_corrected", "NONFATAL": "aer_nonfatal", "FATAL": "aer_fatal"}
_WIDTH = re.compile(r"\S*/(?P<pci>[0-9a-f]{4,5}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/current_link_width:(?:63|255)")


def bus_line(line: str) -> Event | None:
    """A device that answers with all ones: revision ff (lyulyul/shine-cluster#171). A GPU's other functions are its."""
    found = _LSPCI.match(line)
    if found is None:
        return None
    if _GPU_CLASS.match(found["kind"]) is not None:
        return named("pci_all_ones", line, pci=pci_address(found["pci"]))
    if found["kind"].startswith("Audio") or "NVIDIA" in found["what"]:
        return None
    text = found["pci"] if found["pci"].count(":") == 2 else f"0000:{found['pci']}"
    return named("pci_all_ones", line, pci=function_address(text))


def value(text: str) -> Event | None:
    """The whole content of one file below /sys. A value that is fine, or that says nothing by itself, is no event."""
    word = text.strip()
    if _NO_VALUE.fullmatch(word) is not None:
        return named("no_value", word)
    found = _LOGICAL.fullmatch(word)
    if found is not None:
        state = found["state"].lower()
        return None if state.startswith("active") else named("ib_not_active", word, details={"state": state})
    found = _PHYS.fullmatch(word)
    if found is not None:
        phys = found["state"].lower()
        return None if phys == "linkup" else named("ib_not_active", word, details={"phys": phys})
    found = _WIDTH.fullmatch(word)
    if found is not None:
        return named("pci_all_ones", word, pci=function_address(found["pci"]))
    return None


def error_total(line: str) -> Event | None:
    """The last line of an `aer_dev_…` file below /sys, where it counts anything."""
    found = _TOTAL.match(line)
    if found is None or not int(found["count"]):
        return None
    return named(_TOTALS[found["kind"]], line, details={"errors": int(found["count"])})


class PortText:
    """Ports as `ibstat` and `ibstatus` list them: state first, physical state after it."""

    def __init__(self) -> None:
        self._dev = ""
        self._port = 1
        self._state = ""

    def hear(self, line: str) -> list[Event]:
        """The events of one line."""
        card = _CARD.match(line)
        if card is not None:
            self._dev, self._port, self._state = card["dev"], int(card["port"] or 1), ""
            return []
        if not self._dev:
            return []
        port = _PORT.match(line)
        if port is not None:
            self._port, self._state = int(port["port"]), ""
            return []
        physical = _PHYSICAL.match(line)
        if physical is None:
            state = _STATE.match(line)
            self._state = state["state"].lower() if state is not None else self._state
            return []
        if self._state in ("", "active"):
            return []
        details = {"dev": self._dev, "port": self._port, "state": self._state, "phys": physical["state"].lower()}
        said = f"{self._dev} port {self._port}: {self._state}, {details['phys']}"
        return [named("ib_not_active", said, subject=f"{self._dev}/{self._port}", details=details)]
