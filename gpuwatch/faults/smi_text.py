"""Text that `nvidia-smi` printed, pasted by a person: its table, `-q`, and its refusals.

It is no log, and the agent never reads it: only `gpuwatch decode` does. A line counts only where the tool begins it.
"""

from __future__ import annotations

import re

from gpuwatch.faults import recovery
from gpuwatch.faults.catalogue import recovery_actions
from gpuwatch.faults.event import Detail, Event
from gpuwatch.faults.named import ADDRESS, named
from gpuwatch.model.identity import pci_address

STARTS = (
    *(b"|", b"    ", b"\t", b"GPU 0", b"Unable to determine", b"Failed to initialize NVML"),
    *(b"NVIDIA-SMI ", b"NVML lib", b"No devices were found"),
)

_HANDLE = re.compile(
    rf"Unable to determine the device handle for (?:GPU|gpu) ?(?:\d{{1,3}}: )?(?P<pci>{ADDRESS}): (?P<why>.*)"
)
_INIT = re.compile(r"Failed to initialize NVML: (?P<why>.*)")
_LIBRARY = re.compile(r"NVML library version: (?P<version>\d[\d.]*)")
_SECTION = re.compile(r"GPU (?P<pci>[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_TABLE = re.compile(r"\|\s+(?P<index>\d{1,3})\s.*?\|\s*(?P<pci>[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s")
_FIELD = re.compile(r"(?P<indent>\s+)(?P<key>[A-Z][\w /()-]*?)\s*(?::\s*(?P<value>.*?))?\s*$")
_RULE = re.compile(r"[|+][-=+]+[|+]")

_REFUSALS = (
    ("Driver/library version mismatch", "driver_mismatch"),
    ("Driver Not Loaded", "driver_not_loaded"),
    ("Unknown Error", "nvml_unknown_error"),
    ("Insufficient Permissions", "nvml_no_permission"),
    ("GPU access blocked", "nvml_no_permission"),
)
_WANTED = {"Reset": 1, "Reboot": 2, "Drain P2P": 3, "Drain and Reset": 4}  # nvidia-smi's words for NVML field 230
WHEN_IDLE = "reset when idle"


class SmiText:
    """Hears the lines in order."""

    def __init__(self) -> None:
        self._spoke = False
        self._gpu: tuple[int, str] | None = None  # of the table's row
        self._pci: str | None = None  # of the section of `-q`
        self._block = ""
        self._indent = 0
        self._uncorrectable: int | None = None

    def hear(self, line: str) -> list[Event]:
        """The events of one line."""
        if line.startswith("|"):
            return self._row(line)
        if line[:1].isspace():
            return self._field(line)
        section = _SECTION.match(line)
        if section is not None:
            self._pci, self._block = pci_address(section["pci"]), ""
            return []
        event = self._refusal(line)
        self._spoke |= event is not None
        return [event] if event is not None else []

    def _refusal(self, line: str) -> Event | None:
        handle = _HANDLE.match(line)
        if handle is not None:
            pci = pci_address(handle["pci"])
            kind = "gpu_lost" if handle["why"].startswith("GPU is lost") else "no_handle"
            return named(kind, line, pci=pci, subject=pci or "")
        init = _INIT.match(line)
        if init is not None:
            kind = next((kind for words, kind in _REFUSALS if init["why"].startswith(words)), "nvml_unknown_error")
            return named(kind, line)
        library = _LIBRARY.match(line)
        if library is not None:
            return named("driver_mismatch", line, details={"library": library["version"].rstrip(".")})
        if line.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"):
            return named("driver_not_loaded", line)
        if line.startswith("NVIDIA-SMI couldn't find libnvidia-ml"):
            return named("driver_library_missing", line)
        if line.startswith("No devices were found") and not self._spoke:  # after a refusal it only repeats it
            return named("no_devices", line)
        return None

    def _row(self, line: str) -> list[Event]:
        """The table has two rows a GPU: index and address in the first; either may hold `ERR!`."""
        first = _TABLE.match(line)
        if first is not None:
            self._gpu = (int(first["index"]), pci_address(first["pci"]) or "")
        elif _RULE.match(line):
            self._gpu = None
        if "ERR!" not in line or self._gpu is None:
            return []
        index, pci = self._gpu
        details: dict[str, Detail | None] = {"index": index, "confirm": "NVML recovery action"}
        return [named("err_field", line.strip("| "), pci=pci, subject=pci, details=details)]

    def _field(self, line: str) -> list[Event]:
        found = _FIELD.match(line)
        if found is None:
            return []
        key, value, indent = found["key"], found["value"], len(found["indent"].expandtabs(4))
        if value is None:
            self._block, self._indent, self._uncorrectable = key, indent, None
            return []
        if key == "GPU Recovery Action":
            return self._wanted(line, value)
        if indent <= self._indent:
            self._block = ""
        event: Event | None = None
        subject = self._pci or ""
        if self._block == "Remapped Rows":
            if key == "Uncorrectable Error" and value.isdecimal():
                self._uncorrectable = int(value[:9])
            elif key == "Pending" and value == "Yes":
                details: dict[str, Detail | None] = {"uncorrectable": self._uncorrectable, "plan": WHEN_IDLE}
                event = named("row_remap_pending", line.strip(), pci=self._pci, subject=subject, details=details)
            elif key == "Remapping Failure Occurred" and value == "Yes":
                event = named("row_remap_failed", line.strip(), pci=self._pci, subject=subject)
        elif self._block == "Retired Pages" and key.startswith("Pending") and value == "Yes":
            event = named(
                "page_retirement_pending", line.strip(), pci=self._pci, subject=subject, details={"plan": WHEN_IDLE}
            )
        return [event] if event is not None else []

    def _wanted(self, line: str, word: str) -> list[Event]:
        if word in ("None", "N/A", ""):
            return []
        number = _WANTED.get(word)
        row = recovery_actions().get(number, recovery_actions()[None])
        verdict = (recovery.SEVERITY.get(number, "warn") if number is not None else "warn", row.action, row.drain)
        details = {"wanted": word}
        return [
            named(
                "recovery_action",
                line.strip(),
                pci=self._pci,
                subject=self._pci or "",
                verdict=verdict,
                details=details,
            )
        ]
