"""One field of `nvidia-smi -q`: what it says of a GPU that is not well. Most fields say nothing.

`before` holds the fields of the same block above it: a width means something only beside the widest.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.faults import recovery
from gpuwatch.faults.catalogue import recovery_actions
from gpuwatch.faults.event import Event
from gpuwatch.faults.named import named

WHEN_IDLE = "reset when idle"
RECOVERY = "GPU Recovery Action"
WANTED = {"Reset": 1, "Reboot": 2, "Drain P2P": 3, "Drain and Reset": 4}  # nvidia-smi's words for NVML field 230
HEALTH = {  # of the fabric, as NVML sums it up
    "Unhealthy": ("degraded", "contact_support", "yes"),
    "Limited Capacity": ("degraded", "contact_support", "after_count"),
}
SLOW = frozenset({"HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown"})


def read(block: str, key: str, value: str, before: Mapping[str, str], pci: str | None, line: str) -> Event | None:
    """The event of `key : value` in this block, None where it is none."""
    subject = pci or ""
    if value == "GPU is lost":
        return named("gpu_lost", line, pci=pci, subject=subject)
    if value in ("Unknown Error", "[Unknown Error]", "ERR!"):
        details = {"field": key, "confirm": "NVML recovery action"}
        return named("err_field", line, pci=pci, subject=subject, details=details)
    if key == RECOVERY:
        return wanted(value, pci, line)
    if key == "SRAM Threshold Exceeded" and value == "Yes":
        return named("ecc_threshold", line, pci=pci, subject=subject)
    if block == "Volatile" and "Uncorrectable" in key and value.isdecimal() and int(value[:9]):
        return uncorrected(line, pci, value, key)
    if block == "Volatile Double Bit" and key == "Total" and value.isdecimal() and int(value[:9]):
        return uncorrected(line, pci, value, "Double Bit")  # older words for the same; the parts of it stand above
    if key == "Reset Required" and value == "Yes":
        return named("gpu_reset_required", line, pci=pci, subject=subject)
    if key in SLOW and value == "Active":
        return named("hw_slowdown", line, pci=pci, subject=f"{subject} {key}", details={"reason": key})
    if block == "Remapped Rows" or key == "Remapping Failure Occurred":
        return _remapped(key, value, before, pci, line)
    retiring = key == "Pending Page Blacklist" or (block.lower() == "retired pages" and key.startswith("Pending"))
    if retiring and value == "Yes":
        return named("page_retirement_pending", line, pci=pci, subject=subject, details={"plan": WHEN_IDLE})
    if block == "Link Width" and key == "Current":
        return _width(value, before.get("Max", ""), pci, line)
    if block == "Health" and key == "Summary" and value in HEALTH:
        return named("fabric_failed", line, pci=pci, subject=subject, verdict=HEALTH[value], details={"health": value})
    return _fabric(key, value, before, pci, line) if block == "Fabric" else None


def wanted(word: str, pci: str | None, line: str) -> Event | None:
    """The driver's recovery action, in nvidia-smi's words; None where it wants nothing."""
    if word in ("None", "N/A", ""):
        return None
    number = WANTED.get(word)
    row = recovery_actions().get(number, recovery_actions()[None])
    verdict = (recovery.SEVERITY.get(number, "warn") if number is not None else "warn", row.action, row.drain)
    return named("recovery_action", line, pci=pci, subject=pci or "", verdict=verdict, details={"wanted": word})


def uncorrected(line: str, pci: str | None, count: str, field: str = "") -> Event:
    """Memory errors since the driver was loaded. When they were is not said, so they drain nobody by themselves."""
    details = {"field": field or None, "errors": int(count[:9])}
    return named("ecc_uncorrected", line, pci=pci, subject=f"{pci or ''} {field}".strip(), details=details)


def _remapped(key: str, value: str, before: Mapping[str, str], pci: str | None, line: str) -> Event | None:
    if key == "Pending" and value == "Yes":
        said = before.get("Uncorrectable Error", "")
        count = int(said[:9]) if said.isdecimal() else None
        details = {"uncorrectable": count, "plan": WHEN_IDLE}
        return named("row_remap_pending", line, pci=pci, subject=pci or "", details=details)
    if key == "Remapping Failure Occurred" and value == "Yes":
        return named("row_remap_failed", line, pci=pci, subject=pci or "")
    return None


def _width(now: str, most: str, pci: str | None, line: str) -> Event | None:
    lanes, all_lanes = now.removesuffix("x"), most.removesuffix("x")
    if not lanes.isdecimal() or not all_lanes.isdecimal() or int(lanes[:4]) >= int(all_lanes[:4]):
        return None
    return named("pcie_width", line, pci=pci, subject=pci or "", details={"now": f"x{lanes}", "max": f"x{all_lanes}"})


def _fabric(key: str, value: str, before: Mapping[str, str], pci: str | None, line: str) -> Event | None:
    if key == "State" and value in ("In Progress", "Not Started"):
        return named("fabric_not_ready", line, pci=pci, subject=pci or "", details={"state": value})
    if key == "Status" and before.get("State") == "Completed" and value not in ("Success", "N/A", ""):
        return named("fabric_failed", line, pci=pci, subject=pci or "", details={"status": value})
    return None
