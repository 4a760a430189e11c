"""The demo's story: break the cluster four times, watch through the aggregator's own API, and keep the score.

Nothing is told that the aggregator did not say: every line about a fault comes from its incidents.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuwatch.errors import GpuwatchError
from gpuwatch.simulate.cluster import Cluster

POLL_S = 0.25
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # this machine is asked through no proxy
UNDER_WAY = ("waiting", "asking", "judging", "giving", "releasing", "draining", "looking")  # told when they are done


@dataclass(frozen=True, slots=True)
class Chapter:
    """One fault: how it is made, which incident must come of it, and whether a machine must be replaced."""

    title: str
    kinds: tuple[str, ...]
    slot: str
    replaces: bool
    inject: Callable[[], None]
    heal: Callable[[], None] | None = None


@dataclass(slots=True)
class Score:
    """What happened of what had to happen."""

    met: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)  # fault id -> title


class Story:
    """Tells it line by line through `say`."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._say = say
        self._told: dict[str, set[str]] = {}
        self.score = Score()

    def chapters(self) -> list[Chapter]:
        """The four faults, each on a node of the gang."""
        cluster = self._cluster
        dead, wedged, lost, hung = victims(cluster.slots)
        return [
            Chapter(
                f"pulling the plug of {dead}: every process of that node is killed",
                ("node_dead",),
                dead,
                True,
                lambda: cluster.kill_node(dead),
            ),
            Chapter(
                f"wedging the driver of {wedged}: its NVML calls never return",
                ("driver_failed", "probe_hung", "driver_hung"),
                wedged,
                True,
                lambda: cluster.wedge_driver(wedged),
            ),
            Chapter(
                f"a GPU of {lost} falls off the bus: Xid 79 in its kernel log",
                ("xid", "gpu_lost", "xid_79"),
                lost,
                True,
                lambda: _ignore(cluster.drop_gpu(lost, 3)),
            ),
            Chapter(
                f"one rank on {hung} hangs in its data loader; the node is healthy",
                ("run_stalled",),
                hung,
                False,
                lambda: cluster.hang_rank(hung, 5),
                lambda: cluster.heal_rank(hung),
            ),
        ]

    def begin(self, *, gang: int) -> bool:
        """Wait until all nodes are healthy, start the run, wait for its first checkpoint. False: it did not begin."""
        cluster, nodes = self._cluster, len(self._cluster.slots)
        if not self._until("the aggregator answers", 20, lambda: self._get("healthz") is not None):
            return False
        if not self._until(f"{nodes} agents report", 40, lambda: self._healthy() == nodes):
            return False
        self._say(f"{nodes} nodes, {8 * nodes} GPUs: all healthy.")
        cluster.submit(slot_count=gang)
        self._say(f"a training run starts on {gang} of them; one is spare.")
        if not self._until(
            "the first checkpoint is durable", 40, lambda: (self._run().get("checkpoint_step") or 0) > 0
        ):
            return False
        self._say(f"the run steps; first checkpoint at step {self._run()['checkpoint_step']}.")
        return True

    def play(self, chapter: Chapter) -> None:
        """One fault from its making to its end."""
        before = set(self._incidents())
        machine = self._cluster.machine_directory(chapter.slot).name
        self._say("")
        self._say(f"> {chapter.title}")
        chapter.inject()
        title = chapter.title
        if not self._until(f"detected: {title}", 40, lambda: self._opened(chapter, before) is not None):
            return
        fault = self._opened(chapter, before)
        assert fault is not None
        self.score.faults[fault] = title
        if chapter.heal is not None:
            chapter.heal()
        self._until(f"incident over: {title}", 60, lambda: self._incidents()[fault].get("closed_unix_ns") is not None)
        if chapter.replaces:
            self._until(f"{chapter.slot} has a new machine", 30, lambda: self._fills(chapter.slot) not in ("", machine))
        elif self._fills(chapter.slot) != machine:
            self.score.missed.append(f"{chapter.slot} is healthy and should have stayed")
        self._until("the run steps again", 40, self._steps)
        self._until("all nodes are healthy", 30, lambda: self._healthy() == len(self._cluster.slots))
        self._say(f"  {chapter.slot:<6} {_bill(self._incidents()[fault])}")

    def end(self) -> None:
        """Let the run finish by itself, and wait until the aggregator has written that down."""
        self._say("")
        self._say("> the run is told to finish")
        self._cluster.finish()
        self._until("the run ended with exit 0", 30, lambda: not self._run())
        time.sleep(2 * POLL_S)
        self._tell()

    def prices(self) -> dict[str, dict[str, Any]]:
        """Each incident of the story as the aggregator knows it now."""
        known = self._incidents()
        return {fault: known[fault] for fault in self.score.faults if fault in known}

    def _opened(self, chapter: Chapter, before: set[str]) -> str | None:
        for fault, incident in self._incidents().items():
            mine = incident.get("slot") == chapter.slot or (incident.get("run") and not chapter.replaces)
            if fault not in before and incident["kind"] in chapter.kinds and mine:
                return fault
        return None

    def _fills(self, slot: str) -> str:
        node = next((node for node in self._nodes() if node["slot"] == slot), None)
        return str(node["machine"]) if node is not None else ""

    def _healthy(self) -> int:
        return sum(1 for node in self._nodes() if node["health"] == "healthy" and node["lifecycle"] == "in_service")

    def _steps(self) -> bool:
        step = self._run().get("step")
        time.sleep(1.2)
        later = self._run().get("step")
        return step is not None and later is not None and later > step

    def _nodes(self) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = (self._get("api/v1/fleet") or {}).get("nodes", [])
        return nodes

    def _run(self) -> dict[str, Any]:
        runs = (self._get("api/v1/fleet") or {}).get("runs", [])
        return runs[0] if runs else {}

    def _incidents(self) -> dict[str, dict[str, Any]]:
        return {one["fault"]: one for one in (self._get("api/v1/incidents") or {}).get("incidents", [])}

    def _until(self, what: str, seconds: float, holds: Callable[[], bool]) -> bool:
        """Wait and tell; a wait in vain is a miss, not a crash."""
        until = time.monotonic() + seconds
        while True:
            if holds():
                self._tell()
                self.score.met.append(what)
                return True
            self._tell()
            if not self._cluster.alive():
                raise GpuwatchError("the aggregator ended", why=self._cluster.log_tail(), next_step="report this")
            if time.monotonic() > until:
                self.score.missed.append(f"{what} (waited {seconds:.0f} s)")
                self._say(f"  ! not within {seconds:.0f} s: {what}")
                return False
            time.sleep(POLL_S)

    def _tell(self) -> None:
        """Whatever the aggregator has added to the timelines of its incidents since the last look."""
        for fault, incident in self._incidents().items():
            told = self._told.setdefault(fault, set())
            where = incident.get("slot") or incident.get("run") or ""
            for entry in incident.get("timeline", []):
                if entry["text"] not in told and not entry["text"].startswith(UNDER_WAY):
                    told.add(entry["text"])
                    self._say(f"  {where:<6} {entry['text']}")

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            with OPENER.open(f"http://127.0.0.1:{self._cluster.port}/{path}", timeout=5) as answer:
                found = json.loads(answer.read() or b"{}")
        except (urllib.error.URLError, TimeoutError, ConnectionError, json.JSONDecodeError):
            return None
        return found if isinstance(found, dict) else {"answer": found}


def victims(slots: Sequence[str]) -> tuple[str, str, str, str]:
    """Which node dies, whose driver hangs, which loses a GPU, which hosts the stuck rank: four different ones.

    None is the last, the first spare. Each replaced node is the spare after that: one hit twice would not be in the
    run, and its second fault would cost next to nothing.
    """
    spare = len(slots) - 1
    return slots[min(4, spare - 1)], slots[8 if spare > 8 else 0], slots[2], slots[1]


def _bill(incident: dict[str, Any]) -> str:
    """What the incident cost, by category, dearest first."""
    price = incident.get("price") or {}
    parts = ", ".join(f"{name.replace('_', ' ')} ${usd}" for name, usd in (price.get("by_category") or {}).items())
    return f"= ${price['usd']}: {parts}" if price.get("usd") else "= unknown $"


def _ignore(_: object) -> None:
    return None
