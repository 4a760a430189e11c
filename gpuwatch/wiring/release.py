"""`gpuwatch agent release` and `resume`: the driver given back by the agent on this node, and taken again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gpuwatch.collectors
from gpuwatch.agent.book import Book
from gpuwatch.agent.release import ReleaseFile
from gpuwatch.agent.settings import Settings, load
from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector
from gpuwatch.model.moment import Moment
from gpuwatch.registry import leaves
from gpuwatch.sdk.processes import is_alive, what_it_waits_for

LOOK_S = 0.1
PATIENCE_S = 30.0  # the agent looks each third of its watchdog's time, and a slow call takes seconds
TAKEN_S = 3.0  # an agent that runs takes the driver again within a second


def release(config: Path, *, minutes: float, because: str = "", patience_s: float = PATIENCE_S) -> int:
    """Ask, and wait until no process of the agent holds the driver. 0: so it is; 1: one still does."""
    settings, doors, asked = _of(config)
    clock = SystemClock()
    asked.ask(Moment(clock.unix_ns(), clock.monotonic_ns()), minutes * 60.0, because)
    until_s = time.monotonic() + patience_s
    while held := _holders(settings, doors):
        if time.monotonic() > until_s:
            for name, pid in held.items():
                print(f"{name}: its process {pid} is still there: {what_it_waits_for(pid)}")
            print("The release stands: none is started anew. Look again with the same command.")
            return 1
        time.sleep(LOOK_S)
    print(f"released: no process of the agent holds the driver, for at most {minutes:g} min.")
    print("This node counts as unknown meanwhile. `gpuwatch agent resume` ends it.")
    return 0


def resume(config: Path) -> int:
    """End the release. 0, whether there was one or not."""
    settings, doors, asked = _of(config)
    if not asked.take_back():
        print("the driver was not released")
        return 0
    until_s = time.monotonic() + TAKEN_S
    while not (held := _holders(settings, doors)) and time.monotonic() < until_s:
        time.sleep(LOOK_S)
    print(f"the driver is watched again by process {', '.join(map(str, held.values()))}" if held else
          "the release is over; no agent has taken the driver yet (is one running?)")  # fmt: skip
    return 0


def check(config: Path) -> int:
    """Whether an agent would take this settings file, and could use the files that it names for https. Raises
    `ConfigError` with every fault."""
    settings = load(config, leaves(gpuwatch.collectors, "COLLECTOR", Collector), with_files=True)
    print(f"{config}: good; collectors: {' '.join(sorted(settings.collectors))}")
    return 0


def _of(config: Path) -> tuple[Settings, dict[str, Collector[Any]], ReleaseFile]:
    doors = leaves(gpuwatch.collectors, "COLLECTOR", Collector)
    settings = load(config, doors)
    return settings, doors, ReleaseFile(Path(settings.agent.state_dir))


def _holders(settings: Settings, doors: dict[str, Collector[Any]]) -> dict[str, int]:
    """Collector -> the pid of its child, where it holds the driver."""
    found: dict[str, int] = {}
    for name, door in doors.items():
        record = Book(Path(settings.agent.state_dir), name).read() if door.can_hang else None
        if record is not None and is_alive(record.pid, record.start_ticks):
            found[name] = record.pid
    return found
