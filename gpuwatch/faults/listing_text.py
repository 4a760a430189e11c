"""Text of `ibstat`, `ibstatus`, `ibv_devinfo` and `rdma link`, and of files below /sys, pasted by a person."""

from __future__ import annotations

import re

from gpuwatch.faults.event import Detail, Event
from gpuwatch.faults.named import function_address, named

STARTS = (
    b"CA '",
    b"Infiniband device '",
    b"hca_id:",
    b"link ",
    b"/sys/class/infiniband/",
    b"\t",
    b"    ",
    b"TOTAL_ERR_",
)

_CARD = re.compile(
    r"(?:(?:CA|Infiniband device) '(?P<dev>[\w.-]+)'(?: port (?P<port>\d+) status:)?|hca_id:\s+(?P<hca>[\w.-]+)\s*$)"
)
_PORT = re.compile(r"\s+(?:Port (?P<port>\d+):|port:\s+(?P<verbs>\d+))\s*$")
_VERBS = re.compile(r"\s+state:\s+PORT_(?P<state>[A-Z]+) \(\d\)\s*$")
_RDMA = re.compile(
    r"link (?P<dev>[\w.-]+)/(?P<port>\d+) (?:subnet_prefix .*)?"
    r"state (?P<state>[A-Z_]+) physical_state (?P<phys>[A-Z_]+)\b"
)
_FILE = re.compile(
    r"/sys/class/infiniband/(?P<dev>[\w.-]+)/ports/(?P<port>\d+)/(?:state|phys_state|(?:hw_)?counters/\w+):(?P<word>.*)"
)
_STATE = re.compile(r"\s+state:\s+(?:\d+: )?(?P<state>\w+)\s*$", re.IGNORECASE)
_PHYSICAL = re.compile(r"\s+phys(?:ical)? state:\s+(?:\d+: )?(?P<state>\w+)\s*$", re.IGNORECASE)

_LOGICAL = re.compile(r"[0-5]: (?P<state>NOP|DOWN|INIT|ARMED|ACTIVE|ACTIVE_DEFER)")
_PHYS = re.compile(
    r"[1-7]: (?P<state>Sleep|Polling|Disabled|PortConfigurationTraining|LinkUp|LinkErrorRecovery|Phy Test)"
)
_NO_VALUE = re.compile(
    r"N/A(?: \(no PMA\))?|Unknown(?: speed)?|<unknown>"
    r"|cat: /sys/\S+: (?:Invalid argument|Operation not supported|No data available)"
)
_TOTAL = re.compile(r"TOTAL_ERR_(?P<kind>COR|NONFATAL|FATAL) (?P<count>\d{1,18})$")
_TOTALS = {"COR": "aer_corrected", "NONFATAL": "aer_nonfatal", "FATAL": "aer_fatal"}
_WIDTH = re.compile(r"\S*/(?P<pci>[0-9a-f]{4,5}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/current_link_width:(?:63|255)")


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


def at_path(line: str) -> Event | None:
    """The same of a port's file with its path before it, as `grep . …/ports/*/state` prints them."""
    found = _FILE.match(line)
    event = value(found["word"]) if found is not None else None
    if found is None or event is None:
        return None
    details = {"dev": found["dev"], "port": int(found["port"])} | event.details
    return named(event.kind, line, subject=f"{found['dev']}/{found['port']}", details=details)


def error_total(line: str) -> Event | None:
    """The last line of an `aer_dev_…` file below /sys, where it counts anything."""
    found = _TOTAL.match(line)
    if found is None or not int(found["count"]):
        return None
    return named(_TOTALS[found["kind"]], line, details={"errors": int(found["count"])})


class PortText:
    """Ports as the tools list them: state first, physical state after it (`ibv_devinfo` says only the state)."""

    def __init__(self) -> None:
        self._dev = ""
        self._port = 1
        self._state = ""

    def hear(self, line: str) -> list[Event]:
        """The events of one line."""
        card = _CARD.match(line)
        if card is not None:
            self._dev, self._port, self._state = card["dev"] or card["hca"], int(card["port"] or 1), ""
            return []
        link = _RDMA.match(line)
        if link is not None:
            return _inactive(link["dev"], int(link["port"]), link["state"], link["phys"])
        if not self._dev:
            return []
        port = _PORT.match(line)
        if port is not None:
            self._port, self._state = int(port["port"] or port["verbs"]), ""
            return []
        verbs = _VERBS.match(line)
        if verbs is not None:
            return _inactive(self._dev, self._port, verbs["state"], None)
        physical = _PHYSICAL.match(line)
        if physical is None:
            state = _STATE.match(line)
            self._state = state["state"].lower() if state is not None else self._state
            return []
        return _inactive(self._dev, self._port, self._state, physical["state"]) if self._state else []


def _inactive(dev: str, port: int, state: str, phys: str | None) -> list[Event]:
    if state.lower().startswith("active"):
        return []
    words = [word.lower() for word in (state, phys) if word is not None]
    phys = words[1] if phys is not None else None
    details: dict[str, Detail | None] = {"dev": dev, "port": port, "state": words[0], "phys": phys}
    said = f"{dev} port {port}: {', '.join(words)}"
    return [named("ib_not_active", said, subject=f"{dev}/{port}", details=details)]
