"""`nvidia-smi nvlink -s`, pasted by a person: links that are not in use.

    GPU 3: Tesla V100-SXM2-32GB (UUID: GPU-…)
             Link 0: 25.781 GB/s
             Link 3: <inactive>

Some boards leave links unused by design (Azure/azurehpc-health-checks#162), so the model decides (`gpu_models`).
"""

from __future__ import annotations

import re

from gpuwatch.faults.event import Detail, Event
from gpuwatch.faults.gpu_models import model_of
from gpuwatch.faults.named import named

STARTS = (b"GPU ", b"NVML: Unable to retrieve NVLink", b"all links are ", b"All links are ")

_GPU = re.compile(r"GPU (?P<index>\d{1,3}): (?P<name>[^()]{1,80}) \(UUID: (?P<uuid>GPU-[0-9a-fA-F-]{1,40})\)\s*$")
_LINK = re.compile(r"\s+Link (?P<link>\d{1,3}): (?P<state>[\d.]+ GB/s|<inactive>)\s*$")
_NONE = re.compile(r"(?:NVML: Unable to retrieve NVLink information as )?all links are inactive\b", re.IGNORECASE)
_FEWER = ("degraded", "reboot", "yes")


class NvlinkText:
    """Hears the lines in order. A GPU is told when the next one begins, or the text ends."""

    def __init__(self) -> None:
        self._begin(None)

    def _begin(self, gpu: re.Match[str] | None) -> None:
        self._gpu = gpu
        self._used = 0
        self._unused: list[int] = []
        self._none = False

    def hear(self, line: str) -> list[Event]:
        """The events that this line completes."""
        gpu = _GPU.match(line)
        if gpu is not None:
            events = self.finish()
            self._begin(gpu)
            return events
        link = _LINK.match(line) if self._gpu is not None else None
        if link is not None and link["state"] == "<inactive>":
            self._unused.append(int(link["link"]))
        elif link is not None:
            self._used += 1
        elif self._gpu is not None and _NONE.match(line) is not None:
            self._none = True
        return []

    def finish(self) -> list[Event]:
        """What there is to tell of the last GPU."""
        gpu, used, unused, none = self._gpu, self._used, tuple(self._unused), self._none
        self._begin(None)
        if gpu is None or not (unused or none):
            return []
        model = model_of(gpu["name"])
        due = model.nvlinks if model is not None else None
        if due is not None and used >= due:
            return []
        details: dict[str, Detail | None] = {
            "index": int(gpu["index"]),
            "gpu": gpu["uuid"],
            "links": "all" if none or not used else unused,
            "due": due,
        }
        said = f"GPU {gpu['index']}, {gpu['name']}: {used} of {due or 'its'} links in use"
        verdict = _FEWER if due is not None else None
        return [named("nvlink_inactive", said, subject=gpu["uuid"], verdict=verdict, details=details)]
