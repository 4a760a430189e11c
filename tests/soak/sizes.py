"""What an agent and its probe take, sample after sample."""

from __future__ import annotations

import statistics
from typing import NamedTuple

import psutil

from tests.soak.site import Site


class Size(NamedTuple):
    """Of one process."""

    resident_bytes: float
    files: float
    threads: float


class Sizes:
    """Memory, descriptors, threads and children of the agent and its probe."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._samples: list[tuple[int, str, Size]] = []  # the agent's pid, who, what
        self.children: list[int] = []

    def look(self) -> None:
        """One sample."""
        agent = self._site.processes[-1].pid
        try:
            parent = psutil.Process(agent)
            family = parent.children(recursive=True)
            self.children.append(len(family))
            for process in (parent, *family):
                is_probe = process is not parent and "gpuwatch.agent.probe" in process.cmdline()
                if process is parent or is_probe:
                    size = Size(process.memory_info().rss, process.num_fds(), process.num_threads())
                    self._samples.append((agent, "probe" if is_probe else "agent", size))
        except psutil.Error:
            return  # it ended just now

    def enough(self) -> bool:
        """Whether the last agent's life is long enough to compare its parts."""
        last = self._site.processes[-1].pid
        return all(
            sum((agent, who) == (last, name) for agent, who, _ in self._samples) >= 9 for name in ("agent", "probe")
        )

    def early_and_late(self, name: str) -> tuple[Size, Size]:
        """Of the last agent's life: medians of the second tenth and of the last."""
        last = self._site.processes[-1].pid
        sizes = [size for agent, who, size in self._samples if (agent, who) == (last, name)]
        tenth = max(3, len(sizes) // 10)
        return _median(sizes[tenth : 2 * tenth]), _median(sizes[-tenth:])


def _median(sizes: list[Size]) -> Size:
    return Size(*(statistics.median(values) for values in zip(*sizes, strict=True)))
