"""A whole centre in one thread: real settings, store, fleet, brain and executor; time, cloud and scheduler by hand."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from gpuwatch.aggregator import settings as settings_file
from gpuwatch.aggregator.scene import Scene
from gpuwatch.aggregator.settings import Hand, Settings
from gpuwatch.aggregator.witnesses import Witness
from gpuwatch.clouds import CloudSnapshot
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.facts.training import Beat, TrainingFacts
from gpuwatch.model.policy import Mode
from gpuwatch.model.token import machine_token
from gpuwatch.model.wire import Envelope, Goodbye, Report
from gpuwatch.schedulers import SchedulerSnapshot
from gpuwatch.store.records import EventKey, LastSeen, StoredEvent
from gpuwatch.store.sqlite import Store
from gpuwatch.wiring.core import Core, Hands
from tests.fakes_hands import FakeClock, FakeCloud, FakeScheduler

SECRET = b"a secret of the tests, long enough"
_PACK = msgspec.msgpack.Encoder().encode

TOML = """
[server]
secret_file = "secret"
state_dir = "state"
hold_file = "HOLD"

[pools.p]
gpus = 8
usd_per_hour = 27.197

[pools.p.policy]
mode = "{mode}"
job_action = "requeue"
drain_deadline_s = 60
max_nodes_out = 2
max_out_ratio = 0.5
hold_off_s = 60
cool_down_s = 30
driver_grace_s = 10
{policy}
"""


class DirectKeeper:
    """The committer without its thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(self, events: Sequence[StoredEvent], seen: Sequence[LastSeen] = ()) -> Future[set[EventKey]]:
        future: Future[set[EventKey]] = Future()
        try:
            future.set_result(self._store.keep(events, seen))
        except Exception as error:
            future.set_exception(error)
        return future


class Agent:
    """One node's agent as the test wants it."""

    def __init__(self, slot: str, machine: str, clock: FakeClock) -> None:
        self.slot = slot
        self.machine = machine
        self.clock = clock
        self.boot = f"boot-of-{machine}"
        self.agent_id = "agent-1"
        self.sequence = 0
        self.speaks = True
        self.nvml: Envelope | None = None  # None: eight healthy GPUs
        self.events: tuple[KernelEvent, ...] = ()
        self.log_readable = True
        self.beats: tuple[Beat, ...] = ()
        self.extra: tuple[Envelope, ...] = ()  # of other collectors, with each report
        self.interval_s = 5.0

    def xid(self, number: int, event_id: str = "e1", pci: str = "0000:1a:00") -> None:
        """The kernel log tells of a fatal Xid once."""
        self.events = (
            KernelEvent(
                id=f"{self.boot}/{event_id}",
                at_unix_ns=self.clock.unix_ns(),
                kind="xid",
                text=f"NVRM: Xid (PCI:{pci}): {number}, GPU has fallen off the bus.",
                xid=number,
                pci=pci,
                severity="fatal",
                action="drain_replace",
                drain="yes",
                boot_id=self.boot,
            ),
        )

    def reboot(self, boot: str) -> None:
        """Another boot, another agent."""
        self.boot, self.agent_id, self.sequence = boot, f"agent-{boot}", 0

    def report(self, goodbye: Goodbye | None = None) -> Report:
        """The next report."""
        self.sequence += 1
        now_ns = self.clock.unix_ns()
        gpus = tuple(Gpu(index=n, uuid=f"GPU-{self.machine}-{n}", pci=f"0000:{0x1A + n:02x}:00") for n in range(8))
        nvml = self.nvml or Envelope(
            "nvml", now_ns, 0.01, "ok", facts=_raw(NvmlFacts("580.1", gpus, pci_gpu_count=8, driver_loaded=True))
        )
        log = Envelope("kernel_log", now_ns, 0.01, "ok", facts=_raw(KernelLogFacts(self.log_readable, self.events)))
        self.events = ()
        envelopes = [msgspec.structs.replace(nvml, at_unix_ns=now_ns), log]
        if self.beats:
            envelopes.append(Envelope("training", now_ns, 0.01, "ok", facts=_raw(TrainingFacts(self.beats))))
        envelopes += self.extra
        return Report(
            2,
            self.slot,
            self.machine,
            self.boot,
            self.agent_id,
            self.sequence,
            now_ns,
            tuple(envelopes),
            goodbye,
            "test",
            self.interval_s,
        )


class Centre:
    """What outlives an aggregator, and the aggregator that runs now. `second` moves everything on."""

    def __init__(self, folder: Path, *, nodes: int = 8, mode: str = "replace", policy: str = "") -> None:
        self.folder = folder
        self.clock = FakeClock()
        slots = tuple(f"gpu{n:02d}" for n in range(1, nodes + 1))
        self.cloud = FakeCloud(self.clock, group="p")
        self.scheduler = FakeScheduler(slots)
        self.agents: dict[str, Agent] = {}
        for slot in slots:
            machine = f"m-{slot}"
            self.cloud.add(machine, slot)
            self.scheduler.machines[slot] = machine
            self.agents[machine] = Agent(slot, machine, self.clock)
        self.new_agents_speak = True
        path = folder / "aggregator.toml"
        path.write_text(TOML.format(mode="observe", policy=policy))
        self.mode = mode
        loaded = settings_file.load(path)
        pool = loaded.pools["p"]
        acting = msgspec.structs.replace(pool.policy, mode=Mode(mode))  # it needs hands: ours are fakes
        pools = {"p": msgspec.structs.replace(pool, policy=acting)}
        hand = Hand("fake", None, None, 5.0, 60.0)
        self.settings: Settings = dataclasses.replace(loaded, pools=pools, cloud=hand, scheduler=hand)
        self.store: Store | None = None
        self.boot()

    def boot(self) -> None:
        """A new aggregator process on the same disk."""
        if self.store is not None:
            self.store.close()
        (self.folder / "state").mkdir(exist_ok=True)
        self.store = store = Store(self.folder / "state" / "ledger.db", sole=True)
        clock = self.clock
        self.scheduler_witness: Witness[SchedulerSnapshot] = Witness("scheduler", self.scheduler.snapshot, 5.0, clock)
        self.cloud_witness: Witness[CloudSnapshot] = Witness("cloud", self.cloud.snapshot, 5.0, clock)
        self.lag_s = 0.0
        core = Core(
            self.settings,
            store,
            Hands(self.scheduler, self.cloud, self.scheduler_witness, self.cloud_witness),
            secret=SECRET,
            keeper=DirectKeeper(store),
            clock=clock,
            lag_s=lambda: self.lag_s,
        )
        self.stage, self.fleet, self.book, self.people = core.stage, core.fleet, core.book, core.people
        self.guard, self.executor, self.ingest = core.guard, core.executor, core.ingest
        self.journal, self.brain, self.grants = core.journal, core.brain, core.grants

    # the world goes on

    def second(self) -> Scene:
        """One second: reports, answers of the witnesses, a tick, the actions."""
        self.clock.pass_s(1.0)
        whole_s = round(self.clock.monotonic_ns() / 1e9)
        for machine in self.cloud.listed.values():
            if machine.action_id and machine.machine not in self.agents and self.new_agents_speak:
                self.agents[machine.machine] = Agent(machine.slot or "", machine.machine, self.clock)
            if machine.ended_unix_ns is not None:
                self.agents.pop(machine.machine, None)
        for number, agent in enumerate(self.agents.values()):
            if agent.speaks and (whole_s + number) % int(agent.interval_s) == 0:
                self.send(agent.report())
        if whole_s % 2 == 0:
            self.scheduler_witness.ask_once()
            self.cloud_witness.ask_once()
        scene = self.brain.tick()
        self.executor.advance_all()
        return scene

    def seconds(self, count: int) -> Scene:
        """So many seconds."""
        return [self.second() for _ in range(count)][-1]

    def settle(self) -> None:
        """Until everyone is in service and the hold-off after the start is over."""
        self.seconds(75)
        assert {str(r.lifecycle) for r in self.fleet.machines()} == {"in_service"}, self.states()

    def send(self, report: Report, token_of: str | None = None) -> bytes:
        """Hand one report in, as the agent of a machine would."""
        token = machine_token(SECRET, token_of or report.machine).encode()
        return asyncio.run(self.ingest.take(token, _PACK(report)))

    def states(self) -> dict[str, str]:
        """Slot -> health and lifecycle of its machine."""
        return {
            record.slot: f"{self.stage.scene.health(record.machine)} {record.lifecycle}"
            for record in self.fleet.machines()
        }

    def lines(self, *kinds: str) -> list[Any]:
        """The ledger's lines of these kinds."""
        assert self.store is not None
        return list(self.store.lines_of(*kinds))

    def opened(self) -> list[Any]:
        """Every incident that was opened."""
        return self.lines("fault_opened")

    def harm(self) -> list[tuple[str, str]]:
        """Every call to scheduler or cloud that changed something."""
        return self.scheduler.calls + self.cloud.calls


def _raw(facts: Any) -> msgspec.Raw:
    return msgspec.Raw(_PACK(facts))
