"""What of this node speaks against an order now, looked at afresh each time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.clock import Clock
from gpuwatch.hands.gpus import DRIVER, Gpu, gpus, holders, mig_instances, named
from gpuwatch.hands.processes import Process, processes
from gpuwatch.hands.settings import HandsSettings
from gpuwatch.hands.work import jobs
from gpuwatch.model.order import Order

LOOK_S = 0.25
MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The node as its /proc shows it."""

    settings: HandsSettings
    clock: Clock

    @property
    def proc(self) -> Path:
        """Where its processes are seen."""
        return self.settings.work.proc

    @property
    def driver(self) -> Path:
        """Where the driver's own files are."""
        return self.proc / DRIVER

    def held(self) -> str:
        """Why no order at all is taken now; empty: orders are taken."""
        file = self.settings.hold_file
        try:
            file.lstat()  # `exists` takes a link to nowhere, or into a loop, for nothing at all
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"whether {file} is there cannot be told: {error}"
        return f"{file} is there: somebody wants hands off"

    def objection(self, order: Order) -> str:
        """Why this must not be done on this node now; empty: it may."""
        if held := self.held():
            return held
        seen = self._seen()
        if found := jobs(seen, self.settings.work, now_unix_s=self.clock.unix_ns() / 1e9):
            return f"a job runs here: {_some(found)}"
        gpu = None
        if order.kind == "reset_gpu":
            gpu = named(order.target, gpus(self.driver))
            if gpu is None:
                return f"there is no GPU {order.target} here"
            if instances := mig_instances(gpu, self.driver):
                return f"the GPU {gpu.pci} is partitioned: {instances} MIG instances"
            if instances is None:
                return f"the GPU {gpu.pci} has no device number: who uses it cannot be told"
        if strangers := self._strangers(seen, gpu, order):
            return f"a GPU is in use: {_some([each.words() for each in strangers])}"
        return ""

    def still_ours(self, order: Order, within_s: float, meanwhile: Callable[[], None]) -> str:
        """Wait until the agent's own probe has let the GPU go. Empty: it has."""
        gpu = named(order.target, gpus(self.driver))
        end_s = time.monotonic() + within_s
        while True:
            ours = [each for each in holders(self._seen(), gpu, ()) if each.is_of_unit(self.settings.work.agent_unit)]
            if not ours:
                return ""
            if time.monotonic() >= end_s:
                return f"the agent's own probe did not let the GPU go within {within_s:g} s: {_some([ours[0].words()])}"
            meanwhile()
            time.sleep(LOOK_S)

    def _seen(self) -> list[Process]:
        return list(processes(self.proc))

    def _strangers(self, seen: list[Process], gpu: Gpu | None, order: Order) -> list[Process]:
        """Who holds a GPU, the agent left out. A killed process that the kernel keeps is no reason against a reboot,
        which is what frees it."""
        work = self.settings.work
        found = holders(seen, gpu, work.gpu_friends, condemned_too=order.kind != "reboot")
        return [each for each in found if not each.is_of_unit(work.agent_unit)]


def _some(words: list[str]) -> str:
    more = len(words) - MOST_NAMED
    return ", ".join(words[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
