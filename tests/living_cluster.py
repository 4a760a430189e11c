"""A cluster of real processes under watch: what its API, its ledger, its cloud and its scheduler say, side by side."""

from __future__ import annotations

import io
import json
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import msgspec

from gpuwatch.clouds import CloudMachine
from gpuwatch.model.ledger import ActionStep, FaultOpened, HealthChanged, LedgerLine
from gpuwatch.simulate.cluster import Cluster, free_port
from gpuwatch.wiring import cost_report

POLL_S = 0.1
_LINES = msgspec.json.Decoder(LedgerLine)


class Living:
    """A cluster that runs, and eyes on it. `gated`: the agents reach the aggregator only through `agents_port`."""

    def __init__(self, directory: Path, *, node_count: int = 4, agents_port: int | None = None) -> None:
        self.cluster = Cluster(directory, node_count=node_count, port=free_port(), agents_port=agents_port)
        self.slots = self.cluster.slots

    def start(self, *, gang: int = 0) -> None:
        """Everything on, everybody healthy and, with `gang`, a run that steps on so many nodes."""
        self.cluster.start()
        self.until("all nodes are healthy", 60, self.well)
        if gang:
            self.cluster.submit(slot_count=gang)
            self.until("the run steps", 60, lambda: (self.run().get("step") or 0) > 1)

    # eyes

    def get(self, path: str) -> bytes | None:
        """One page of the aggregator; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.cluster.port}/{path}", timeout=5) as answer:
                found: bytes = answer.read()
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return None
        return found

    def api(self, name: str) -> dict[str, Any]:
        """One page of the API; empty while it does not answer."""
        found = self.get(f"api/v1/{name}")
        return {} if found is None else json.loads(found)

    def metric(self, name: str) -> float:
        """One series of its /metrics; 0 where it is not there."""
        for line in (self.get("metrics") or b"").decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[-1])
        return 0.0

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Slot -> what the API says of it."""
        return {node["slot"]: node for node in self.api("fleet").get("nodes", [])}

    def run(self) -> dict[str, Any]:
        """The first run that the API knows."""
        runs = self.api("fleet").get("runs", [])
        return runs[0] if runs else {}

    def well(self) -> bool:
        """Every node is healthy and in service, and no doubt is left."""
        fleet = self.api("fleet")
        good = [n for n in fleet.get("nodes", []) if n["health"] == "healthy" and n["lifecycle"] == "in_service"]
        return len(good) == len(self.slots) and not fleet["blind_because"]

    def until(self, what: str, seconds: float, holds: Callable[[], bool]) -> None:
        """Wait for it, or fail with what is known."""
        deadline_s = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self.story()}")
            time.sleep(POLL_S)

    def watch(self, seconds: float, look: Callable[[], None]) -> None:
        """Look again and again for so long."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            look()
            time.sleep(POLL_S)

    # the ledger, as another reader of the same file sees it

    def query(self, sql: str, *args: object) -> list[Any]:
        """Rows of the ledger's file; none before there is one."""
        if not self.cluster.ledger.exists():
            return []
        with closing(sqlite3.connect(f"file:{self.cluster.ledger}?mode=ro", uri=True, timeout=5)) as db:
            return db.execute(sql, args).fetchall()

    def mark(self) -> int:
        """The last line's number."""
        return int(self.query("SELECT COALESCE(MAX(id), 0) FROM ledger")[0][0])

    def lines(self, kind: str, after: int = 0) -> list[LedgerLine]:
        """Lines of one kind in the order of writing."""
        rows = self.query("SELECT body FROM ledger WHERE line = ? AND id > ? ORDER BY id", kind, after)
        return [_LINES.decode(row[0]) for row in rows]

    def steps(self, after: int = 0) -> list[tuple[str, str, str]]:
        """(action, step, state) of every step that was written."""
        found = self.lines("action_step", after)
        return [(line.action_id, line.step, line.state) for line in found if isinstance(line, ActionStep)]

    def condemned(self, after: int = 0) -> list[str]:
        """Every time that a node was called dead, gone or failed, and every incident and action."""
        said = [
            f"{line.slot} {line.health}: {line.because}"
            for line in self.lines("health", after)
            if isinstance(line, HealthChanged) and line.health in ("dead", "absent", "driver_failed", "degraded")
        ]
        said += [f"opened {line.fault}" for line in self.lines("fault_opened", after) if isinstance(line, FaultOpened)]
        return said + [" ".join(step) for step in self.steps(after)]

    def last_seen(self) -> list[dict[str, Any]]:
        """What is kept of each machine's last report."""
        return [json.loads(row[0]) for row in self.query("SELECT body FROM last_seen")]

    # cloud and money

    def billed(self) -> list[CloudMachine]:
        """Machines whose meter runs."""
        return [machine for machine in self.cluster.machines() if machine.state != "gone"]

    def leaks(self) -> list[str]:
        """Machines that are billed and fill no slot, and slots that two machines are billed for."""
        filling = {node.machine for node in self.cluster.slot_nodes()}
        return [machine.machine for machine in self.billed() if machine.machine not in filling]

    def open_actions(self) -> list[str]:
        """Actions that have not ended."""
        return [row[0] for row in self.query("SELECT action_id FROM sagas WHERE ended = 0")]

    def check_money(self) -> Decimal:
        """`cost-report` reads the ledger, and its categories sum to what the provider bills. Returns the sum."""
        now_ns = time.time_ns()
        self.until("the next bill", 40, lambda: _newest(self.cluster.ledger) > now_ns)
        _, rows = cost_report.read_ledger(self.cluster.ledger)
        page, text = io.StringIO(), io.StringIO()
        clock = AsOf(max(row.period_end_unix_ns for row in rows))
        assert cost_report.run(self.cluster.ledger, form="json", out=page, clock=clock) == 0
        assert cost_report.run(self.cluster.ledger, out=text, clock=clock) == 0
        assert "The categories sum to the bill, $" in text.getvalue(), text.getvalue()
        cells = {name: Decimal(usd) for name, usd in json.loads(page.getvalue())["categories_usd"].items()}
        total = sum((row.cost_usd for row in rows), Decimal(0)).quantize(Decimal("0.01"), ROUND_HALF_UP)
        assert sum(cells.values()) == total, (cells, total)
        assert min(cells.values()) >= 0, cells
        return total

    # for whoever reads the failure

    def story(self) -> str:
        """What happened lately, in words."""
        nodes = [f"{s} {n['machine']} {n['health']} {n['lifecycle']}: {n['because']}" for s, n in self.nodes().items()]
        steps = [" ".join(step) for step in self.steps()[-12:]]
        held = [f"held {hold['slot']}: {hold['because']}" for hold in self.api("holds").get("holds", [])]
        return "\n".join([*nodes, *held, *steps, f"blind: {self.api('fleet').get('blind_because')}", self.tail()])

    def tail(self) -> str:
        """The aggregator's last words."""
        return self.cluster.log_tail()


class AsOf:
    """The moment up to which the meter was read: a report as of then has nothing to estimate."""

    def __init__(self, unix_ns: int) -> None:
        self._unix_ns = unix_ns

    def unix_ns(self) -> int:
        return self._unix_ns

    def monotonic_ns(self) -> int:
        return self._unix_ns


def _newest(ledger: Path) -> int:
    return max((row.period_end_unix_ns for row in cost_report.read_ledger(ledger)[1]), default=0)
