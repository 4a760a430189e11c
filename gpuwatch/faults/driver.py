"""What the driver and its slot say without a number: a GPU lost, not started, a driver that does not fit.

Each function reads one message, or several lines of one message joined by a blank, and gives an event or nothing. The
words alone seldom condemn a node: severity and action are those of the published cases named beside them.
"""

from __future__ import annotations

import re

from gpuwatch.faults.event import Detail, Event
from gpuwatch.faults.named import named
from gpuwatch.faults.xid import lost_gpu
from gpuwatch.model.identity import pci_address

NO_NUMBER = -1
_ADDRESS = r"(?:PCI:)?(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)(?![\w.])"
_LOST = re.compile(rf"NVRM:\s+(?:The NVIDIA )?GPU (?:at )?{_ADDRESS}:?\s.*?\bfallen off the bus", re.DOTALL)
_NAMED = re.compile(rf"NVRM:\s+The NVIDIA GPU {_ADDRESS}")
_SAID = re.compile(rf"NVRM:\s+GPU at {_ADDRESS}:\s*(?P<uuid>GPU-[0-9a-fA-F-]+)")
_SERIAL = re.compile(rf"NVRM:\s+GPU (?:Board Serial Number:|{_ADDRESS}: GPU serial number is)\s*(?P<serial>[^\s.]*)")
_INIT = re.compile(rf"NVRM:\s+(?:GPU {_ADDRESS}:\s+)?RmInitAdapter failed!?\s*(?:\((?P<codes>[^)]*)\))?")
_MINOR = re.compile(rf"NVRM:\s+(?:GPU {_ADDRESS}:\s+)?rm_init_adapter failed\b.*?\bminor number (?P<minor>\d{{1,5}})")
_WPR2 = re.compile(r"NVRM:\s+(?:GPU(?P<index>\d{1,3}) )?\w+: unexpected WPR2 already up")  # older drivers: no number
_CAUSES = (  # what no reboot mends: words, action, meaning
    (
        re.compile(rf"NVRM:\s+(?:GPU {_ADDRESS}:\s+)?GPU does not have the necessary power cables connected"),
        "drain_replace",
        "A power cable is not connected: no reboot helps, as with Xid 54",
    ),
    (  # NVIDIA/gpu-operator#492, NVIDIA/open-gpu-kernel-modules#344
        re.compile(rf"NVRM:\s+BAR\d is \S+ @ \S+ \({_ADDRESS}\)"),
        "contact_support",
        "It was given no room in the address space: a matter of the firmware's or the virtual machine's settings",
    ),
)
_MISMATCH = re.compile(r"NVRM:\s+API mismatch:")
_CLIENT = re.compile(r"client(?: '(?P<name>[^']*)' \(pid (?P<pid>\d{1,10})\))?\s+has the version (?P<version>\d[\d.]*)")
_MODULE = re.compile(r"kernel module has\s+the version (?P<version>\d[\d.]*)")
_NO_DEVICE = re.compile(
    r"NVRM:\s+(?:The NVIDIA probe routine was not called|No NVIDIA (?:devices probed|GPU found|graphics adapter)"
    r"|None of the NVIDIA (?:devices|graphics adapters) were initialized)"
)
_STUCK = re.compile(  # leptonai/gpud#1271, #1272, NVIDIA/open-gpu-kernel-modules#971
    r"NVRM:\s+(?:GPU\d{1,3} )?knvlink(?:UpdatePostRxDetectLinkMask_\w+: Failed to update Rx Detect Link mask"
    r"|DiscoverPostRxDetLinks_\w+: Getting peer\d{1,3}(?:'s)? postRxDetLinkMask failed)"
)
_HEARTBEAT = re.compile(r"NVRM:\s+GPU(?P<index>\d{1,3}) _kgspIsHeartbeatTimedOut: Heartbeat timed out")
_PEERMEM = re.compile(r"(?:nvidia[-_]peermem|nv_peer_mem):?\s+\w+:\d+ ERROR detected invalid context")
_SLOT = re.compile(
    rf"pcieport {_ADDRESS}: pciehp: Slot\((?P<slot>[^)]*)\): (?P<what>Link Down|Card not present)", re.IGNORECASE
)


def lost(message: str) -> Event | None:
    """A GPU off the bus, in one line or in three joined ones. None where there is no address to blame."""
    found = _LOST.match(message)
    pci = pci_address(found["pci"]) if found is not None else None
    return lost_gpu(pci, message.removeprefix("NVRM:").strip()) if pci is not None else None


def names_gpu(message: str) -> bool:
    """Whether this is the first of three lines about one GPU; the last says what is wrong with it."""
    return _NAMED.match(message) is not None


def begins_paragraph(message: str) -> bool:
    """Whether more lines of the same message may follow that decide what it means."""
    return _MISMATCH.match(message) is not None


def identity(message: str) -> tuple[str, str] | None:
    """`(address, UUID)` of the announcement before a GPU's first Xid."""
    found = _SAID.match(message)
    pci = pci_address(found["pci"]) if found is not None else None
    return (pci, found["uuid"]) if found is not None and pci is not None else None


def serial(message: str) -> tuple[str | None, str] | None:
    """`(address, serial)`; no address: that of the announcement just before. Empty and 0 are no serial."""
    found = _SERIAL.match(message)
    if found is None or found["serial"] in ("", "0"):
        return None
    return (pci_address(found["pci"]) if found["pci"] else None, found["serial"])


def left_over_firmware(message: str) -> int | None:
    """The driver's number of a GPU whose protected region survived a warm reboot: only power off clears it.
    NO_NUMBER where the line does not say it."""
    found = _WPR2.match(message)
    return int(found["index"] or NO_NUMBER) if found is not None else None


def init_failed(message: str, left_over: int | None) -> Event | None:
    """The driver could not start a GPU (NVIDIA/open-gpu-kernel-modules#1230, #1353; Bumblebee#722 for the old form)."""
    found = _INIT.match(message) or _MINOR.match(message)
    meaning, action = "The driver could not start this GPU; it counts as missing", "reboot"
    for words, instead, why in _CAUSES if found is None else ():
        found = words.match(message)
        if found is not None:
            meaning, action = f"{meaning}. {why}", instead
            break
    if found is None and left_over is None:
        return None
    details: dict[str, Detail] = {}
    groups = found.groupdict() if found is not None else {}
    if groups.get("codes"):
        details["codes"] = groups["codes"]
    if groups.get("minor"):
        details["minor"] = int(groups["minor"])
    if left_over is not None:
        if left_over != NO_NUMBER:
            details["gpu_index"] = left_over
        details["protected_region_up"] = True
        meaning += ". A warm reboot does not clear its protected region: power it off (cold)"
        action = "drain_replace"
    return _event(
        "gpu_init_failed",
        "GPU could not be started",
        meaning,
        ("fatal", action, "yes"),
        message,
        pci=pci_address(groups["pci"]) if groups.get("pci") else None,
        details=details,
    )


def mismatch(message: str) -> Event | None:
    """Libraries of another version than the kernel module: packages were upgraded, the module was not."""
    if _MISMATCH.match(message) is None:
        return None
    client, module = _CLIENT.search(message), _MODULE.search(message)
    details: dict[str, Detail] = {}
    if client is not None:
        details["client"] = client["version"].rstrip(".")
    if module is not None:
        details["module"] = module["version"].rstrip(".")
    return _event(
        "driver_mismatch",
        "Driver and library do not fit",
        "Libraries and kernel module of the driver have different versions. Running jobs go on; new ones fail",
        ("degraded", "reboot", "yes"),
        message,
        pid=int(client["pid"]) if client is not None and client["pid"] else None,
        name=client["name"] if client is not None and client["name"] else None,
        details=details,
    )


def mismatch_complete(message: str) -> bool:
    """Whether both versions have been read."""
    return _CLIENT.search(message) is not None and _MODULE.search(message) is not None


def simple(message: str) -> Event | None:
    """The events that are told in one line."""
    if _NO_DEVICE.match(message) is not None:
        return _event(
            "driver_no_device",
            "The driver has no GPU",
            "Another driver holds the GPU, or there is none. May be on purpose (passed to a virtual machine); on a "
            "compute node NVML's own answer decides",
            ("warn", "none", "no"),
            message,
        )
    found = _HEARTBEAT.match(message)
    if found is not None:
        return _event(
            "gsp_heartbeat",
            "GPU firmware heartbeat late",
            "The on-GPU firmware did not tick in time. Seen with working GPUs too; an Xid 119 or 120 beside it decides",
            ("warn", "none", "no"),
            message,
            details={"gpu_instance": int(found["index"])},
        )
    if _PEERMEM.match(message) is not None:
        return _event(
            "peermem_invalid_context",
            "RDMA memory freed late",
            "A job was killed while its GPU memory was registered with the network card. Harmless in most cases",
            ("warn", "none", "no"),
            message,
        )
    if _STUCK.match(message) is not None:
        return named("nvlink_driver_stuck", message)
    if message.startswith("NVRM:") and "[NV_ERR_RESET_REQUIRED]" in message:
        return named("gpu_reset_required", message)
    found = _SLOT.match(message)
    if found is not None:
        return _event(
            "pcie_link_down",
            "PCIe slot lost its device",
            "The hot-plug port says that the device in its slot is gone. With an Xid 79 beside it: the same fault",
            ("degraded", "none", "after_count"),
            message,
            pci=_port(found["pci"]),
            details={"slot": found["slot"]},
        )
    return None


def _port(text: str) -> str:
    """A port keeps its function: ports of one device differ only there."""
    device, _, function = text.partition(".")
    return f"{pci_address(device)}.{function or '0'}"


def _event(
    kind: str,
    title: str,
    meaning: str,
    verdict: tuple[str, str, str],
    text: str,
    *,
    pci: str | None = None,
    pid: int | None = None,
    name: str | None = None,
    details: dict[str, Detail] | None = None,
) -> Event:
    severity, action, drain = verdict
    return Event(
        kind=kind,
        title=title,
        meaning=meaning,
        severity=severity,
        action=action,
        drain=drain,
        text=text,
        pci=pci,
        pid=pid,
        name=name,
        details=details or {},
    )
