"""How soon a fault is known: fatal Xids, killed nodes, second witnesses, on a real aggregator with real agents.

Times of a usual installation (the defaults of agent and aggregator), not of the demo. What is measured ends when the
line can be read from the ledger by another process. Every node falls on its own and at a random moment of its interval;
the rules that hold many alike at once are out of the way, so that one sample says nothing about the next.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import signal
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from gpuwatch.simulate.cluster import Cluster, free_port
from tests.benchmarks.alerts import Alerts
from tests.benchmarks.ledger_watch import LedgerWatch
from tests.benchmarks.row import Row

INTERVAL_S = 5.0  # the agents' default
TELL_AFTER_S = 36.0  # the cloud is made to know it so long after the node fell silent: past our own patience of 30 s
SEED = 20261130
WORDS = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."

AGGREGATOR: dict[str, str | None] = {
    "tick_s": "1.0",
    "mode": '"observe"',
    "dead_after_s": "30.0",
    "witness_fresh_s": "60.0",
    "driver_grace_s": "60.0",
    "join_deadline_s": "900.0",
    "interval_s": "5.0",  # of cloud and scheduler
    "node_timeout_s": "600.0",  # the scheduler is no witness here: the cloud is
    "max_nodes_out": "2\nshared_cause_nodes = 100000\nmany_silent_nodes = 100000",
}
AGENT: dict[str, str | None] = {
    "interval_s": f"{INTERVAL_S}",
    "deadline_s": None,
    "metrics_listen": '"127.0.0.1:0"',
}


def measure(*, quick: bool = False) -> list[Row]:
    """Three rows: some nodes get Xids again and again, the others are killed once."""
    killed_count, xid_count = (6, 4) if quick else (20, 8)
    chance = random.Random(SEED)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        cluster = Cluster(directory, node_count=killed_count + xid_count, port=free_port())
        _set(cluster.config, AGGREGATOR)
        _set_agents(cluster.directory / "cluster.json", AGENT)
        stack.callback(cluster.stop)
        cluster.start()
        _healthy(cluster, len(cluster.slots))
        watch = stack.enter_context(LedgerWatch(cluster.ledger))
        victims, struck = cluster.slots[:killed_count], cluster.slots[killed_count:]
        heads = {slot: psutil.Process(int((cluster.machine_directory(slot) / "pid").read_text())) for slot in victims}
        alerts = None
        if not quick and shutil.which("prometheus") is not None:
            alerts = stack.enter_context(Alerts.over({_metrics_port(head): slot for slot, head in heads.items()}))
        time.sleep(2 * INTERVAL_S)
        ending = threading.Event()
        xids = Xids(cluster, struck, watch, chance, ending)
        xids.start()
        stack.callback(ending.set)
        silent, told = _kill(heads, chance)
        _until(90, lambda: all(watch.first("health", slot, "dead") is not None for slot in victims))
        if alerts is not None:
            alerts.wait(set(victims), until_s=max(silent.values()) + 100)
        ending.set()
        xids.join()
        suspect = {slot: watch.first("health", slot, "suspect") for slot in victims}
        dead = {slot: watch.first("health", slot, "dead") for slot in victims}
        fired = {} if alerts is None else alerts.fired
    return [
        _xid_row(xids),
        _row(
            "node killed → SUSPECT",
            f"p99 ≤ 3 report intervals ({3 * INTERVAL_S:.0f} s)",
            [None if at is None else at - silent[slot] for slot, at in suspect.items()],
            3 * INTERVAL_S,
            "the agents report every 5 s, the judge ticks every 1 s",
        ),
        _row(
            "second witness knows → dead",
            f"p99 ≤ 1 interval ({INTERVAL_S:.0f} s)",
            [None if at is None else at - told[slot] for slot, at in dead.items()],
            INTERVAL_S,
            _beside(silent, told, fired, quick=quick),
        ),
    ]


class Xids(threading.Thread):
    """Fatal Xids into the kernel logs of some nodes, each at a random moment, again after an operator's clearing."""

    def __init__(
        self,
        cluster: Cluster,
        slots: tuple[str, ...],
        watch: LedgerWatch,
        chance: random.Random,
        ending: threading.Event,
    ) -> None:
        super().__init__(name="xids", daemon=True)
        self._cluster = cluster
        self._slots = slots
        self._watch = watch
        self._chance = chance
        self._ending = ending
        self.waits_s: list[float | None] = []

    def run(self) -> None:
        """Round after round, the nodes one after another."""
        gpu = 0
        while not self._ending.is_set():
            written: dict[str, tuple[int, float]] = {}
            pci = f"0000:{0x10 + gpu % 8:02x}:00"
            for slot in self._slots:
                time.sleep(self._chance.uniform(0.0, 0.7))
                log = self._cluster.machine_directory(slot) / "kernel.log"
                mark = self._watch.count
                at_s = time.monotonic()
                with log.open("a") as file:
                    file.write(f"[{at_s:.6f}] NVRM: Xid (PCI:{pci}): 79, {WORDS}\n")
                written[slot] = mark, at_s
            gpu += 1
            _until(5.0, lambda w=written, p=pci: all(self._decided(s, p, m) for s, (m, _) in w.items()))  # type: ignore[misc]
            for slot, (mark, at_s) in written.items():
                seen = self._decided(slot, pci, mark)
                self.waits_s.append(None if seen is None else seen - at_s)
                self._clear(slot)
            _until(15.0, self._all_well)

    def _decided(self, slot: str, pci: str, after: int) -> float | None:
        """When a drain call or a hold because of this GPU was written for this slot."""
        hold = self._watch.first("hold", slot, about=pci, after=after)
        return hold or self._watch.first("action_step", slot, about=pci, after=after)

    def _clear(self, slot: str) -> None:
        token = (self._cluster.directory / "operator-token").read_text()
        _call(self._cluster, f"api/v1/clear/{slot}", token=token)

    def _all_well(self) -> bool:
        nodes = {node["slot"]: node for node in _call(self._cluster, "api/v1/fleet")["nodes"]}
        return all(nodes[slot]["health"] == "healthy" for slot in self._slots)


def _kill(heads: dict[str, psutil.Process], chance: random.Random) -> tuple[dict[str, float], dict[str, float]]:
    """Each node falls silent at once and for ever; later its machine ends, which the cloud can see. When each was."""
    silent: dict[str, float] = {}
    told: dict[str, float] = {}
    begun_s = time.monotonic()
    plan = sorted((begun_s + chance.uniform(0.0, 4 * INTERVAL_S), slot) for slot in heads)
    for at_s, slot in plan:
        time.sleep(max(0.0, at_s - time.monotonic()))
        children = heads[slot].children(recursive=True)
        heads[slot].suspend()  # it would start its agent again
        silent[slot] = time.monotonic()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGKILL)
    for at_s, slot in sorted((at_s + TELL_AFTER_S + chance.uniform(0.0, 1.0), slot) for slot, at_s in silent.items()):
        time.sleep(max(0.0, at_s - time.monotonic()))
        told[slot] = time.monotonic()
        heads[slot].kill()
    return silent, told


def _xid_row(xids: Xids) -> Row:
    return _row(
        "fatal Xid in the kernel log → decision recorded (drain call, or a hold with its because)",
        "p99 ≤ 1 s",
        xids.waits_s,
        1.0,
        "the log is a file, which wakes the agent as /dev/kmsg does; the ledger is read by another process every 10 ms",
    )


def _row(what: str, budget: str, waits_s: list[float | None], limit_s: float, beside: str) -> Row:
    """With fewer than 100 samples the worst stands for the 99th percentile."""
    known = sorted(wait for wait in waits_s if wait is not None)
    missed = len(waits_s) - len(known)
    if not known:
        return Row(what=what, budget=budget, measured=f"never seen, of {len(waits_s)}", beside=beside, met=False)
    p99 = known[min(len(known) - 1, int(len(known) * 0.99))]
    worst = f"max {known[-1]:.2f} s" if len(known) < 100 else f"p99 {p99:.2f} s, max {known[-1]:.2f} s"
    over = sum(1 for wait in known if wait > limit_s)
    measured = f"median {known[len(known) // 2]:.2f} s, {worst}, n = {len(known)}, of which {over} past the budget"
    if missed:
        measured += f"; {missed} were never seen"
    return Row(what=what, budget=budget, measured=measured, beside=beside, met=p99 <= limit_s and missed == 0)


def _beside(silent: dict[str, float], told: dict[str, float], fired: dict[str, float], *, quick: bool) -> str:
    delays = sorted(told[slot] - silent[slot] for slot in told)
    words = [
        f"the witness's own delay, made so: the cloud could tell {delays[0]:.0f} to {delays[-1]:.0f} s after the node "
        f"fell silent; it is asked every 5 s"
    ]
    if fired:
        after = sorted(at - silent[slot] for slot, at in fired.items())
        words.append(
            f"Prometheus `up == 0` for 1m over the same agents, scraped and evaluated every 5 s, fired {after[0]:.0f} "
            f"to {after[-1]:.0f} s after the node fell silent (n = {len(after)}; Alertmanager's `group_wait` comes on "
            "top)"
        )
    else:
        words.append("Prometheus left out by --quick" if quick else "no Prometheus on this machine")
    return "; ".join(words)


def _set(path: Path, keys: dict[str, str | None]) -> None:
    path.write_text(_changed(path.read_text(), keys))


def _set_agents(path: Path, keys: dict[str, str | None]) -> None:
    shared = json.loads(path.read_text())
    path.write_text(json.dumps(shared | {"agent_toml": _changed(shared["agent_toml"], keys)}))


def _changed(text: str, keys: dict[str, str | None]) -> str:
    """Every line of these keys, whatever its table; None takes the line out."""
    for key, value in keys.items():
        line = "" if value is None else f"{key} = {value}"
        text, count = re.subn(rf"^{key} = .*$", lambda _, own=line: own, text, flags=re.MULTILINE)  # type: ignore[misc]
        assert count, f"the simulated cluster's settings have no {key}"
    return text


def _healthy(cluster: Cluster, count: int) -> None:
    def well() -> bool:
        try:
            nodes = _call(cluster, "api/v1/fleet")["nodes"]
        except OSError:
            return False
        return sum(1 for node in nodes if node["health"] == "healthy") == count

    if not _until(120, well):
        raise TimeoutError(f"not all of {count} nodes became healthy; {cluster.log_tail()}")


def _metrics_port(head: psutil.Process) -> int:
    for process in head.children(recursive=True):
        for connection in process.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN:
                return int(connection.laddr.port)
    raise LookupError(f"the agent under {head.pid} listens nowhere")


def _call(cluster: Cluster, path: str, *, token: str = "") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(
        f"http://127.0.0.1:{cluster.port}/{path}", headers=headers, method="POST" if token else "GET"
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def _until(seconds: float, holds: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)
    return True
