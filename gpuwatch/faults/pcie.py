"""What the kernel says of the PCI Express bus: errors (AER), containment (DPC), narrow links, devices gone.

Forms: drivers/pci/pcie/{aer,err,dpc}.c, drivers/pci/pci.c of the Linux kernel. One error is several lines of a port and
of the devices behind it, in any order: `chains` joins them.
"""

from __future__ import annotations

import re

from gpuwatch.faults.event import Event
from gpuwatch.faults.named import ADDRESS, address_of, function_address, named

HEADS = ("pcieport ", "dpc 0")
WORDS = ("AER: ", "PCIe ", "inaccessible", "; giving up", "no AER-aware driver", "currently in D3")
PORT = "pcieport"

_HEAD = rf"(?P<driver>[\w-]+) (?P<pci>{ADDRESS})(?: [\w.-]+)?: "
_BUS_ERROR = re.compile(
    rf"(?:(?:(?P<driver>[\w-]+) )?(?P<pci>{ADDRESS})(?: [\w.-]+)?: )?\s*(?:AER: )?"
    r"PCIe Bus Error: severity=(?P<severity>[^,]+),"
)
_RECEIVED = re.compile(
    rf"{_HEAD}AER: (?:Multiple )?(?P<severity>(?:Un)?[Cc]orrect(?:ed|able)(?: \((?:Non-)?Fatal\))?) error "
    rf"(?:message )?received(?:(?:: | from )(?P<source>{ADDRESS}))?"
)
_NO_RECOVERY = re.compile(
    rf"{_HEAD}(?:AER: )?(?:can't recover \(no error_detected callback\)|device has no AER-aware driver)"
)
_RECOVERY = re.compile(rf"{_HEAD}(?:AER: )?device recovery (?P<how>failed|successful)")
_CONTAINED = re.compile(
    rf"(?P<driver>{PORT}|dpc) (?P<pci>{ADDRESS})(?::pcie\d+)?: DPC:? containment event, "
    rf"status:0x(?P<status>[0-9a-f]{{1,8}})"
    rf"(?: source:0x(?P<id>[0-9a-f]{{4}})|, ERR_(?:NON)?FATAL received from (?P<source>{ADDRESS}))?"
)
_BANDWIDTH = re.compile(
    rf"{_HEAD}[\d.]+ Gb/s available PCIe bandwidth, limited by (?P<speed>[\d.]+) GT/s PCIe x(?P<now>\d+) link at "
    rf"(?P<at>{ADDRESS}) \(capable of [\d.]+ Gb/s with (?P<best>[\d.]+) GT/s PCIe x(?P<max>\d+) link\)"
)
_GONE = re.compile(
    rf"{_HEAD}(?:(?:Unable to|can't) change power state .*(?:device|config space) inaccessible"
    r"|not ready \d+ms after [\w ]+; giving up)"
    rf"|(?P<gpu>nvidia) (?P<at>{ADDRESS}): Refused to change power state, currently in D3$"  # before Linux 5.5
)
_NO_SOURCE = "0000:00:00.0"  # the port did not record it


def read(message: str) -> Event | None:
    """The event of a bus message, None if it is none."""
    found = _BUS_ERROR.match(message)
    if found is not None:
        return _error(message, found["severity"], found["driver"], found["pci"], None)
    found = _RECEIVED.match(message)
    if found is not None:
        source, port = function_address(found["source"]), function_address(found["pci"])
        if source in (None, _NO_SOURCE, port):
            return _error(message, found["severity"], found["driver"], found["pci"], None)
        return _error(message, found["severity"], None, found["source"], port)
    found = _CONTAINED.match(message)
    if found is not None:
        port, source = function_address(found["pci"]), found["source"] or _sender(found)
        if source is not None:
            return _error(message, "Uncorrected (Fatal)", None, source, port)
        return _error(message, "Uncorrected (Fatal)", found["driver"], found["pci"], None)
    found = _RECOVERY.match(message)
    if found is not None and found["how"] == "successful":
        pci = function_address(found["pci"])
        return named("aer_recovered", message, pci=pci, subject=pci or "")
    found = _BANDWIDTH.match(message)
    if found is not None:
        return _link(message, found)
    found = _GONE.match(message)
    if found is not None:
        driver, pci = found["driver"] or found["gpu"], found["pci"] or found["at"]
        return named("pci_inaccessible", message, pci=address_of(driver, pci))
    return None


def victim(message: str) -> tuple[str, str] | None:
    """`(driver, address)` of a device whose driver cannot recover from an error that its port reports."""
    found = _NO_RECOVERY.match(message)
    pci = function_address(found["pci"]) if found is not None else None
    return (found["driver"], pci) if found is not None and pci is not None else None


def _sender(contained: re.Match[str]) -> str | None:
    """The device whose message made the port contain it, where the port says so: bits 1 and 2 of its status."""
    if contained["id"] is None or int(contained["id"], 16) == 0 or int(contained["status"], 16) >> 1 & 3 not in (1, 2):
        return None
    number = int(contained["id"], 16)
    domain = contained["pci"].rpartition(":")[0].rpartition(":")[0] or "0000"
    return f"{domain}:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"


def _error(text: str, severity: str, driver: str | None, address: str | None, via: str | None) -> Event:
    word = severity.lower()
    if "(fatal)" in word:
        kind = "aer_fatal"
    elif word.startswith("uncorrect"):
        kind = "aer_nonfatal"
    else:
        kind = "aer_corrected"
    pci = function_address(address)
    return named(kind, text, pci=pci, subject=pci or "", details={"via": via, "device": driver})


def _link(text: str, found: re.Match[str]) -> Event | None:
    narrow = int(found["now"]) < int(found["max"])
    pci = address_of(found["driver"], found["pci"])
    if narrow:
        details = {"now": f"x{found['now']}", "max": f"x{found['max']}", "at": found["at"].lower()}
        return named("pcie_width", text, pci=pci, details=details)
    if float(found["speed"]) < float(found["best"]):
        speeds = {"now": f"{found['speed']} GT/s", "max": f"{found['best']} GT/s", "at": found["at"].lower()}
        return named("pcie_speed", text, pci=pci, details=speeds)
    return None
