"""Text that `nvidia-smi` printed, pasted by a person: its table, `-q`, and its refusals.

It is no log, and the agent never reads it: only `gpuwatch decode` does. A line counts only where the tool begins it.
"""

from __future__ import annotations

import re

from gpuwatch.faults import nvml_codes, nvml_words, smi_query
from gpuwatch.faults.event import Detail, Event
from gpuwatch.faults.named import ADDRESS, named
from gpuwatch.model.identity import pci_address

STARTS = (
    *(b"|", b"    ", b"\t", b"GPU 0", b"Unable to determine", b"Failed to ", b"pynvml.", b"NVMLError_"),
    *(b"NVIDIA-SMI ", b"NVML lib", b"No devices were found", b"nvidia-container-cli"),
    *(b"docker: Error response from daemon: ", b"Error response from daemon: "),
    *(b"Fabric", b"Remapped Rows", b"Retired ", b"ECC Errors", b"GPU Recovery Action", b"Remapping Failure Occurred"),
)

_HANDLE = re.compile(
    r"Unable to determine the device handle for (?:GPU|gpu) ?(?:(?P<index>\d{1,3}): )?"
    rf"(?:(?P<pci>{ADDRESS}): ?)?(?P<why>.*)"
)
_WHY = nvml_words.BY_CODE | {nvml_codes.UNKNOWN_ERROR: "no_handle"}  # of one GPU it is more than of the library
_INIT = re.compile(r"Failed to (?:initialize|properly shut down) NVML: (?P<why>.*)")
_LIBRARY = re.compile(r"NVML library version: (?P<version>\d[\d.]*)")
_SECTION = re.compile(r"GPU (?P<pci>[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_TABLE = re.compile(r"\|\s+(?P<index>\d{1,3})\s.*?\|\s*(?P<pci>[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s")
_ECC = re.compile(r"\|\s*(?P<count>[1-9]\d*) \|\s*$")  # "Volatile Uncorr. ECC", the last cell of a GPU's first row
_FIRST = re.compile(  # copied from where its text begins, without the blanks before it
    r"(?:Fabric|Remapped Rows|Retired [Pp]ages|ECC Errors)\s*$|(?:GPU Recovery Action|Remapping Failure Occurred)\s*:"
)
_FIELD = re.compile(r"(?P<indent>\s*)(?P<key>[A-Z][\w /()-]*?)\s*(?::\s*(?P<value>.*?))?\s*$")
_RULE = re.compile(r"[|+][-=+]+[|+]")


class SmiText:
    """Hears the lines in order."""

    def __init__(self) -> None:
        self._spoke = False
        self._gpu: tuple[int, str] | None = None  # of the table's row
        self._pci: str | None = None  # of the section of `-q`
        self._block = ""
        self._indent = 0
        self._before: dict[str, str] = {}  # what the block of `-q` has said so far

    def hear(self, line: str) -> list[Event]:
        """The events of one line."""
        if line.startswith("|"):
            return self._row(line)
        section = _SECTION.match(line)
        if section is not None:
            self._pci, self._block = pci_address(section["pci"]), ""
            return []
        event = self._refusal(line.lstrip())  # a quoted block is indented as a whole
        if event is not None:
            self._spoke = True
            return [event]
        return self._field(line) if line[:1].isspace() or _FIRST.match(line) is not None else []

    def _refusal(self, line: str) -> Event | None:
        handle = _HANDLE.match(line)
        if handle is not None:
            pci = pci_address(handle["pci"]) if handle["pci"] else None
            details = {"index": int(handle["index"]) if handle["index"] else None}
            subject = pci or f"index {handle['index']}"  # some versions name the index alone
            if handle["why"].startswith("Not Supported"):  # the board has no such thing: no fault
                return None
            if "insufficiently powered" in handle["why"]:  # hands are needed: no reboot connects a cable
                verdict = ("fatal", "contact_support", "yes")
                return named("no_handle", line, pci=pci, subject=subject, verdict=verdict, details=details)
            kind = _WHY.get(nvml_words.code_of(handle["why"]) or 0, "no_handle")
            return named(kind, line, pci=pci, subject=subject, details=details)
        init = _INIT.match(line)
        if init is not None:
            code = nvml_words.code_of(init["why"])
            return nvml_words.told(line, code if code is not None else nvml_codes.UNKNOWN_ERROR, with_code=False)
        library = _LIBRARY.match(line)
        if library is not None:
            return named("driver_mismatch", line, details={"library": library["version"].rstrip(".")})
        if line.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"):
            return named("driver_not_loaded", line)
        if line.startswith("NVIDIA-SMI couldn't find libnvidia-ml"):
            return named("driver_library_missing", line)
        if line.startswith("No devices were found") and not self._spoke:  # after a refusal it only repeats it
            return named("no_devices", line)
        return nvml_words.of_program(line)

    def _row(self, line: str) -> list[Event]:
        """The table has two rows a GPU: index and address in the first; either may hold `ERR!`."""
        first = _TABLE.match(line)
        if first is not None:
            self._gpu = (int(first["index"]), pci_address(first["pci"]) or "")
        elif _RULE.match(line):
            self._gpu = None
        ecc = _ECC.search(line) if first is not None else None
        events = (
            []
            if ecc is None or self._gpu is None
            else [smi_query.uncorrected(line.strip("| "), self._gpu[1], ecc["count"])]
        )
        if "ERR!" not in line or self._gpu is None:
            return events
        index, pci = self._gpu
        details: dict[str, Detail | None] = {"index": index, "confirm": "NVML recovery action"}
        return [*events, named("err_field", line.strip("| "), pci=pci, subject=pci, details=details)]

    def _field(self, line: str) -> list[Event]:
        found = _FIELD.match(line)
        if found is None:
            return []
        key, value, indent = found["key"], found["value"], len(found["indent"].expandtabs(4))
        if value is None:
            if key in ("Single Bit", "Double Bit"):  # of an older nvidia-smi: within Volatile and within Aggregate
                key = f"{self._block.partition(' ')[0]} {key}"
            self._block, self._indent, self._before = key, indent, {}
            return []
        if indent <= self._indent:
            self._block, self._before = "", {}
        event = smi_query.read(self._block, key, value, self._before, self._pci, line.strip())
        self._before[key] = value
        return [event] if event is not None else []
