"""Ledgers written line by line for tests of the money: a small pen, and the worked examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from gpuwatch.model.ledger import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    FaultOpened,
    HealthChanged,
    LedgerLine,
    LifecycleChanged,
    LifeEnded,
    LifeStarted,
    Member,
    NodeHeld,
    NodeLetGo,
    PhaseBegan,
    PhaseEnded,
    RunClosed,
    SpareQuota,
    StepEnded,
)

HOUR_ZERO = 1_638_316_800_000_000_000  # 2021-12-01T00:00:00Z
MINUTE = 60 * 10**9

Phase = Literal["init", "checkpoint", "evaluate"]


def at(minutes: float) -> int:
    """Unix ns at so many minutes past the first hour."""
    return HOUR_ZERO + round(minutes * MINUTE)


class Pen:
    """Writes lines; times are minutes past HOUR_ZERO."""

    def __init__(self, run: str = "train", pool: str = "a100", **life: Any) -> None:
        self.lines: list[LedgerLine] = []
        self.run = run
        self.pool = pool
        self.life: dict[str, Any] = {
            "gpu_count": 8,
            "provider": "azure",
            "region": "eastus",
            "sku": "ND96asr_v4",
            "source": "provider",
            **life,
        }

    def add(self, *lines: LedgerLine) -> None:
        self.lines += lines

    def node(self, name: str, since: float = 0.0, until: float | None = None, **life: Any) -> None:
        """A machine that is in service and healthy from its first instant."""
        self.born(name, since, **life)
        self.state(name, since, lifecycle="in_service", health="healthy")
        if until is not None:
            self.gone(name, until)

    def born(self, name: str, since: float, **life: Any) -> None:
        words = {"slot": name, "pool": self.pool, **self.life, **life}
        self.add(LifeStarted(at_unix_ns=at(since), machine=name, **words))

    def gone(self, name: str, when: float, source: Literal["provider", "seen"] = "provider") -> None:
        self.add(LifeEnded(at_unix_ns=at(when), machine=name, source=source))

    def state(self, name: str, when: float, *, lifecycle: str = "", health: str = "", fault: str | None = None) -> None:
        if lifecycle:
            self.add(
                LifecycleChanged(
                    at_unix_ns=at(when), machine=name, slot=name, lifecycle=lifecycle, because="test", fault=fault
                )
            )
        if health:
            self.add(
                HealthChanged(at_unix_ns=at(when), machine=name, slot=name, health=health, because="test", fault=fault)
            )

    def hold(self, names: Iterable[str], since: float, until: float | None = None, share: int | None = None) -> None:
        for name in names:
            self.add(NodeHeld(at_unix_ns=at(since), run=self.run, machine=name, gpu_thousandths=share))
            if until is not None:
                self.add(NodeLetGo(at_unix_ns=at(until), run=self.run, machine=name))

    def start(self, attempt: str, when: float, names: Iterable[str], share: int = 8000, **more: Any) -> None:
        members = tuple(Member(machine=name, gpu_thousandths=share) for name in names)
        self.add(AttemptStarted(at_unix_ns=at(when), run=self.run, attempt=attempt, members=members, **more))

    def end(
        self,
        attempt: str,
        when: float,
        how: Literal["exit0", "planned", "unplanned"] = "unplanned",
        fault: str | None = None,
        cause: str = "",
    ) -> None:
        self.add(AttemptEnded(at_unix_ns=at(when), run=self.run, attempt=attempt, ended=how, fault=fault, cause=cause))

    def phase(
        self, attempt: str, kind: Phase, begin: float, end: float | None = None, resumed: int | None = None
    ) -> None:
        self.add(PhaseBegan(at_unix_ns=at(begin), run=self.run, attempt=attempt, phase=kind))
        if end is not None:
            self.add(PhaseEnded(at_unix_ns=at(end), run=self.run, attempt=attempt, phase=kind, resumed_step=resumed))

    def step(self, attempt: str, number: int, when: float) -> None:
        self.add(StepEnded(at_unix_ns=at(when), run=self.run, attempt=attempt, step=number))

    def steps(self, attempt: str, first: int, count: int, since: float, each: float) -> None:
        """`count` steps of `each` minutes, the first of which starts at `since`."""
        for i in range(count):
            self.step(attempt, first + i, since + each * (i + 1))

    def saved(self, attempt: str, step: int, when: float, *, suspect: bool = False) -> None:
        self.add(CheckpointSaved(at_unix_ns=at(when), run=self.run, attempt=attempt, step=step, suspect=suspect))

    def close(self, when: float, how: Literal["exit0", "declared", "given_up"]) -> None:
        self.add(RunClosed(at_unix_ns=at(when), run=self.run, how=how))

    def fault(self, fault: str, onset: float, seen: float, machine: str | None = None, **more: Any) -> None:
        words = {"kind": "node_dead", "cause": "unreachable", "because": "test", **more}
        self.add(
            FaultOpened(
                at_unix_ns=at(seen), fault=fault, onset_unix_ns=at(onset), machine=machine, slot=machine, **words
            )
        )

    def quota(self, count: int, when: float = 0.0) -> None:
        self.add(SpareQuota(at_unix_ns=at(when), pool=self.pool, count=count))


def names(count: int, first: int = 1) -> list[str]:
    return [f"node-{number:03d}" for number in range(first, first + count)]


def example_a() -> list[LedgerLine]:
    """Example A: one hour, 124 nodes and a spare, node 17 fails at 00:20; steps so short that they count as 0."""
    pen = Pen()
    _fleet(pen)
    nodes = names(124)
    pen.start("1", 0, nodes)
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 540_000, 9)
    pen.phase("1", "checkpoint", 9, 10)
    pen.saved("1", 540_000, 10)
    pen.step("1", 1_140_000, 20)
    _breaks(pen, nodes)
    pen.phase("2", "init", 29, 32, resumed=540_000)
    pen.step("2", 540_000 + 1_680_000, 60)
    return pen.lines


def example_b() -> list[LedgerLine]:
    """Example B: the same hour with 105 s steps; 100 before it set the ideal."""
    pen = Pen()
    _fleet(pen, since=-211)
    nodes = names(124)
    pen.start("1", -211, nodes)
    pen.phase("1", "init", -211, -201, resumed=385)
    pen.steps("1", 386, 120, -201, 1.75)  # the last of them, 505, ends at 00:09
    pen.phase("1", "checkpoint", 9, 10)
    pen.saved("1", 505, 10)
    pen.steps("1", 506, 6, 10, 100 / 60)
    _breaks(pen, nodes)
    pen.phase("2", "init", 29, 32, resumed=505)
    pen.steps("2", 506, 16, 32, 1.75)
    return pen.lines


def _fleet(pen: Pen, since: float = 0.0) -> None:
    for name in names(124):
        pen.node(name, since, until=35 if name == "node-017" else 60)
    pen.node("spare-1", since, until=60)
    pen.quota(1, since)
    pen.hold(names(124), since)


def _breaks(pen: Pen, nodes: Sequence[str]) -> None:
    broken = "node-017"
    pen.fault("F1", 20, 25, broken)
    pen.state(broken, 20, health="dead", fault="F1")
    pen.state(broken, 25, lifecycle="cordoned", fault="F1")
    pen.end("1", 25, "unplanned", fault="F1")
    pen.hold(["spare-1"], 25)
    pen.start("2", 29, [name for name in nodes if name != broken] + ["spare-1"])


def example_c() -> list[LedgerLine]:
    """Example C: a normal end with evaluation, save and exit 0 at 00:48, then the nodes are let go."""
    pen = Pen()
    nodes = names(124)
    for name in nodes:
        pen.node(name, 0, until=48)
    pen.hold(nodes, 0, 48)
    pen.start("1", 0, nodes)
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.steps("1", 1, 20, 0, 1.75)
    pen.phase("1", "evaluate", 35, 47)
    pen.phase("1", "checkpoint", 47, 47 + 40 / 60)
    pen.saved("1", 20, 47 + 40 / 60)
    pen.end("1", 48, "exit0")
    return pen.lines


def five_of_a_hundred() -> list[LedgerLine]:
    """Five of 100 nodes die 15 min after a save, are cordoned after 5; spares wait 20 min, then a restart."""
    pen = Pen()
    nodes, spares = names(100), names(5, 101)
    broken = nodes[:5]
    for name in nodes + spares:
        pen.node(name, 1, until=41 if name in broken else 61)
    pen.quota(5, 1)
    pen.hold(nodes, 1)
    pen.start("1", 1, nodes)
    pen.phase("1", "init", 1, 1, resumed=0)
    pen.saved("1", 0, 1)
    pen.step("1", 900_000_000, 16)
    pen.fault("F5", 16, 21, broken[0])
    for name in broken:
        pen.state(name, 16, health="dead", fault="F5")
        pen.state(name, 21, lifecycle="cordoned", fault="F5")
    pen.end("1", 21, "unplanned", fault="F5")
    pen.hold(spares, 21)
    pen.start("2", 41, nodes[5:] + spares)
    pen.phase("2", "init", 41, 51, resumed=0)
    pen.step("2", 600_000_000, 61)
    return pen.lines
