"""The fleet as it is known now: who is in it, which machine fills which slot, what the witnesses say of each."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpuwatch.aggregator.expected import expected_gpus
from gpuwatch.aggregator.heard import Prior
from gpuwatch.aggregator.machine import Machine, build_view
from gpuwatch.aggregator.settings import Settings
from gpuwatch.aggregator.turns import in_turns
from gpuwatch.clouds import CloudMachine, CloudSnapshot
from gpuwatch.model.facts.training import Beat
from gpuwatch.model.moment import Moment
from gpuwatch.model.run import Sighting
from gpuwatch.model.states import Lifecycle
from gpuwatch.model.view import CloudSays, GroupView, NodeView, SchedulerSays
from gpuwatch.schedulers import SchedulerSnapshot
from gpuwatch.store.records import LastSeen

MAX_WAITING = 200_000  # reports with heartbeats that wait for the next tick; older ones give way to newer


class Heartbeats(NamedTuple):
    """Those of one report."""

    machine: str
    slot: str
    beats: tuple[Beat, ...]
    received: Moment


class Fleet:
    """Every machine that is known and not retired, and every slot."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._expires_ns = {name: int(policy.event_expires_s * 1e9) for name, policy in settings.policies().items()}
        self._lock = threading.Lock()  # for who is in the fleet, not for what they say
        self._machines: dict[str, Machine] = {}
        self._retired: dict[str, None] = {}
        self._current: dict[str, str] = {}  # slot -> the machine that fills it
        self._ordered: dict[str, str] = {}  # machine -> the boot that we ordered to end
        self.heartbeats: deque[Heartbeats] = deque(maxlen=MAX_WAITING)
        self.unknown_collectors: dict[str, int] = {}

    # who is in the fleet

    def machines(self) -> list[Machine]:
        """Everyone now, in order of joining."""
        with self._lock:
            return list(self._machines.values())

    def get(self, machine: str) -> Machine | None:
        """One machine's record; None for a stranger or a retired one."""
        return self._machines.get(machine)

    def current(self, slot: str) -> Machine | None:
        """The machine that fills this slot."""
        return self._machines.get(self._current.get(slot, ""))

    def machine_at(self, slot: str, unix_ns: int | None) -> str | None:
        """The machine that filled the slot at a moment, as far as it is known: a younger one than that did not."""
        record = self.current(slot)
        if record is None:
            return None
        born_ns = record.cloud_record.started_unix_ns if record.cloud_record is not None else None
        return None if unix_ns is not None and born_ns is not None and born_ns > unix_ns else record.machine

    def is_retired(self, machine: str) -> bool:
        """Released by us or gone from the cloud's list: it may not come back under this id."""
        return machine in self._retired

    def join(self, machine: str, slot: str, now_monotonic_ns: int) -> Machine:
        """The machine's record, made if it is new. A new machine takes a slot only where nobody fills it."""
        with self._lock:
            record = self._machines.get(machine)
            if record is None:
                record = Machine(machine, slot, now_monotonic_ns)
                self._place(record, slot)
                record.ordered_boot = self._ordered.get(machine, "")
                self._machines[machine] = record
                record.fills_slot = self._current.setdefault(slot, machine) == machine
            return record

    def move(self, record: Machine, slot: str) -> bool:
        """The agent names another slot than before: taken where that slot is free and the cloud does not know better.

        Else the old one stands.
        """
        with self._lock:
            listed = None if record.cloud_record is None else record.cloud_record.slot
            if self._current.get(slot, record.machine) != record.machine or (listed or slot) != slot:
                return False
            self._seat_at(record, slot)
            record.view = None
            return True

    def adopt(self, slot: str, machine: str) -> None:
        """From now on this machine fills the slot."""
        with self._lock:
            record = self._machines.get(machine)
            if record is not None:
                self._seat_at(record, slot)
            self._current[slot] = machine  # restored before it was heard of: its when it joins

    def order_boot(self, machine: str, boot: str) -> None:
        """This boot ends because we ordered it."""
        with self._lock:
            self._ordered[machine] = boot
            record = self._machines.get(machine)
            if record is not None:
                record.ordered_boot = boot

    def repaired(self, machine: str, now_monotonic_ns: int) -> None:
        """What its kernel said so far is history."""
        with self._lock:
            record = self._machines.get(machine)
            if record is not None:
                record.repaired_monotonic_ns = now_monotonic_ns

    def retire(self, machine: str) -> None:
        """It left the fleet for good; another machine that waits in the slot takes it."""
        with self._lock:
            record = self._machines.pop(machine, None)
            self._retired[machine] = None
            self._ordered.pop(machine, None)
            if record is not None:
                self._leave(record)

    def settle(self, busy_slots: set[str]) -> None:
        """Where two machines name one slot and no action decides: one that speaks comes before one that never did."""
        seen: dict[str, Machine] = {}
        for record in self.machines():
            rival = seen.setdefault(record.slot, record)
            if rival is record or record.slot in busy_slots:
                continue
            holder = self.current(record.slot)
            if holder is not None and holder.heard is None and holder.prior is None and record.heard is not None:
                self.adopt(record.slot, record.machine)

    def set_lifecycle(self, machine: str, to: Lifecycle, now_monotonic_ns: int) -> None:
        """What is being done with it changed; retired, it leaves the fleet."""
        record = self._machines.get(machine)
        if record is not None:
            record.lifecycle = to
            record.lifecycle_monotonic_ns = now_monotonic_ns
        if to is Lifecycle.RETIRED:
            self.retire(machine)

    def _seat_at(self, record: Machine, slot: str) -> None:
        """This machine, and no other, fills this slot, and no other. With the lock held."""
        self._name_slot(record, slot)
        before = self.current(slot)
        if before is not None:
            before.fills_slot = False
        self._current[slot] = record.machine
        record.fills_slot = True

    def _name_slot(self, record: Machine, slot: str) -> None:
        """It stands, or waits, in this slot. With the lock held."""
        if record.slot != slot:
            self._leave(record)
            record.slot = slot
            self._place(record, slot)

    def _leave(self, record: Machine) -> None:
        """It fills its slot no more; who waits there does. With the lock held."""
        if self._current.get(record.slot) != record.machine:
            return
        del self._current[record.slot]
        record.fills_slot = False
        waiting = [other for other in self._machines.values() if other.slot == record.slot and other is not record]
        if waiting:
            self._seat_at(waiting[-1], record.slot)

    def _seat_listed(self, item: CloudMachine, record: Machine, listed: Mapping[str, str | None]) -> None:
        """The cloud says where its machine stands: no agent's word puts it elsewhere, or another into its place."""
        if item.slot is None or item.state in ("gone", "releasing"):
            return
        with self._lock:
            self._name_slot(record, item.slot)
            holder = self.current(item.slot)
            if holder is None or (holder.cloud_record is None and holder.machine not in listed):
                self._seat_at(record, item.slot)

    def _place(self, record: Machine, slot: str) -> None:
        place = self._settings.place(slot)
        record.pool, record.domain = place.pool, place.domain
        record.group = self._settings.pools[place.pool].group or record.group
        self._expect(record)

    def _expect(self, record: Machine) -> None:
        """How many GPUs it should have, also by the type that the cloud says it is of."""
        sku = "" if record.cloud_record is None else record.cloud_record.sku
        record.expected_gpu_count = expected_gpus(self._settings.pools[record.pool], sku)

    # what the witnesses say

    def absorb_scheduler(self, snapshot: SchedulerSnapshot, asked_monotonic_ns: int) -> None:
        """The scheduler's word reaches the machine that fills the slot; its own word on who that is comes first.

        A word is as old as the question: what happened while it was being answered may not be in it.
        """
        for node in snapshot.nodes:
            known = self._machines.get(node.machine) if node.machine else None
            if known is not None and known.slot == node.slot and self._current.get(node.slot) != node.machine:
                self.adopt(node.slot, node.machine)
            record = self.current(node.slot)
            if record is None:
                continue
            record.scheduler = SchedulerSays(
                state=node.state,
                received_monotonic_ns=asked_monotonic_ns,
                reason=node.reason,
                drain_owner=node.drain_owner,
                jobs=node.jobs,
            )
            record.view = None

    def absorb_cloud(self, snapshot: CloudSnapshot, asked_monotonic_ns: int) -> list[CloudMachine]:
        """The cloud's word on each machine, and on who is not listed. Returns what it lists and we did not know."""
        strangers: list[CloudMachine] = []
        listed = {item.machine: item.slot for item in snapshot.machines}
        for item in snapshot.machines:
            record = self._machines.get(item.machine)
            if record is None:
                if item.state not in ("gone", "releasing") and not self.is_retired(item.machine):
                    strangers.append(item)
                continue
            record.cloud_record = item
            self._seat_listed(item, record, listed)
            self._expect(record)
            record.group = self._settings.pools[record.pool].group or item.group
            record.cloud = CloudSays(
                state=item.state,
                received_monotonic_ns=asked_monotonic_ns,
                because=item.because,
                absent_because=item.absent_because,
            )
            record.view = None
        for record in self.machines():
            if record.machine not in listed and record.cloud_record is not None:  # it was listed once
                record.cloud = CloudSays(
                    state="gone",
                    received_monotonic_ns=asked_monotonic_ns,
                    because="the cloud lists it no more",
                    absent_because="unexplained",
                )
                record.view = None
        return strangers

    # what is judged

    def views(self, now: Moment) -> tuple[NodeView, ...]:
        """Everyone as the thinking rooms see them, the current machine of a slot before its successor."""
        return tuple([self.view(record, now.monotonic_ns) for record in in_turns(self.machines())])

    def view(self, record: Machine, now_monotonic_ns: int) -> NodeView:
        """One machine as the thinking rooms see it; for the brain's thread."""
        return record.current_view(self._expires_ns[record.pool], now_monotonic_ns)

    def fresh_view(self, record: Machine, now_monotonic_ns: int) -> NodeView:
        """The same, for the server's thread: built anew and not kept."""
        expires_ns = self._expires_ns[record.pool]
        return build_view(record, record.heard, record.events, expires_ns, now_monotonic_ns)[0]

    def groups(self, snapshot: CloudSnapshot | None) -> tuple[GroupView, ...]:
        """The cloud's groups, and whose they are."""
        if snapshot is None:
            return ()
        return tuple(
            GroupView(name=g.name, owner=g.owner, target_count=g.target_count, refuses=g.refuses, reimages=g.reimages)
            for g in snapshot.groups
        )

    # over a restart

    def restore(self, rows: Iterable[LastSeen], retired: Iterable[str], now: Moment) -> None:
        """Begin with what an earlier process knew. Nobody counts as heard until they speak to this one."""
        self._retired = dict.fromkeys(retired)
        for row in rows:
            if row.machine in self._retired:
                continue
            record = self.join(row.machine, row.slot, now.monotonic_ns)
            record.lifecycle = Lifecycle(row.lifecycle)
            record.prior_seen = row
            if row.boot_id is not None:
                record.prior = Prior(
                    boot=row.boot_id,
                    agent_id=row.agent_id,
                    sequence=row.sequence,
                    earlier_boots=row.earlier_boots,
                    goodbye=row.goodbye,
                )
        self.seat()

    def seat(self) -> None:
        """After a restart: a slot's machine that was in service comes before one that waits to join."""
        for record in self.machines():
            holder = self.current(record.slot)
            waits = holder is not None and holder.lifecycle is Lifecycle.PROVISIONING
            if waits and record.lifecycle is not Lifecycle.PROVISIONING:
                self.adopt(record.slot, record.machine)

    def interval_s(self) -> float:
        """The longest reporting interval of those that spoke; the usual one before anybody did."""
        return max((r.heard.interval_s for r in self.machines() if r.heard is not None), default=5.0)

    def take_sightings(self) -> Iterator[Sighting]:
        """The heartbeats that came until now, each once."""
        for _ in range(len(self.heartbeats)):
            said = self.heartbeats.popleft()
            for beat in said.beats:
                yield Sighting(machine=said.machine, slot=said.slot, beat=beat, received=said.received)
