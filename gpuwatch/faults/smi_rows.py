"""Rows of `nvidia-smi --query-gpu=… --format=csv`, pasted by a person: an answer in brackets in place of a reading.

    0, GPU-455d8f70-2051-db6c-0430-ffc457bff834, [GPU requires reset], [GPU requires reset]
    1, Reset                                                             (gpu_recovery_action, NVIDIA/DCGM#263)

`[N/A]` and `[Not Supported]` are answers, no faults. A row counts only where it says which GPU it is about.
"""

from __future__ import annotations

import re

import msgspec

from gpuwatch.faults import smi_query
from gpuwatch.faults.event import Detail, Event
from gpuwatch.faults.named import named
from gpuwatch.model.identity import pci_address

_KINDS = {"[GPU is lost]": "gpu_lost", "[GPU requires reset]": "gpu_reset_required", "[Unknown Error]": "err_field"}
_CELL = re.compile(r"[\w .:/%()+-]{0,128}|\[[\w /]{1,64}\]")
_PCI = re.compile(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_UUID = re.compile(r"GPU-[0-9a-fA-F-]{36}")
_INDEX = re.compile(r"\d{1,3}")


def is_row(raw: bytes) -> bool:
    """Whether such a row may be in this line."""
    return b", [" in raw or (raw[:1].isdigit() and (b", Re" in raw or b", Dr" in raw))


def read(line: str) -> Event | None:
    """The event of a row, the worst of its answers; None if it is none."""
    cells = [cell.strip() for cell in line.split(",")]
    if not all(map(_CELL.fullmatch, cells)):
        return None
    pci = next((pci_address(cell) for cell in cells if _PCI.fullmatch(cell) is not None), None)
    uuid = next((cell for cell in cells if _UUID.fullmatch(cell) is not None), None)
    index = int(cells[0]) if _INDEX.fullmatch(cells[0]) is not None else None
    subject = pci or uuid or (f"index {index}" if index is not None else None)
    if subject is None:
        return None
    gpu: dict[str, Detail] = {key: value for key, value in (("index", index), ("gpu", uuid)) if value is not None}
    kind = next((kind for answer, kind in _KINDS.items() if answer in cells), None)
    if kind is not None:
        confirm: dict[str, Detail] = {"confirm": "NVML recovery action"} if kind == "err_field" else {}
        return named(kind, line, pci=pci, subject=subject, details=gpu | confirm)
    word = next((cell for cell in cells[1:] if cell in smi_query.WANTED), None)
    event = smi_query.wanted(word, pci, line) if word is not None else None
    return msgspec.structs.replace(event, subject=subject, details=gpu | event.details) if event is not None else None
