"""A clock, a cloud and a scheduler that tests move by hand. They keep their state over any number of aggregators."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpuwatch.clouds import CloudGroup, CloudMachine, CloudSnapshot, MachineState, Receipt
from gpuwatch.errors import CloudError, SchedulerError
from gpuwatch.model.moment import Moment
from gpuwatch.model.money import BillRow
from gpuwatch.schedulers import (
    OUR_TAG,
    JobAction,
    NodeState,
    SchedulerJob,
    SchedulerNode,
    SchedulerSnapshot,
)

START_UNIX_NS = 1_700_000_000 * 10**9


class FakeClock:
    """Two clocks; `step` moves the wall clock alone."""

    def __init__(self) -> None:
        self._unix_ns = START_UNIX_NS
        self._monotonic_ns = 1_000 * 10**9

    def unix_ns(self) -> int:
        return self._unix_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def now(self) -> Moment:
        return Moment(self._unix_ns, self._monotonic_ns)

    def pass_s(self, seconds: float) -> None:
        self._unix_ns += int(seconds * 1e9)
        self._monotonic_ns += int(seconds * 1e9)

    def step_s(self, seconds: float) -> None:
        self._unix_ns += int(seconds * 1e9)

    def reboot(self) -> None:
        """The monotonic clock of another boot of this machine begins anew."""
        self._monotonic_ns = 5 * 10**9


class FakeCloud:
    """Machines in a list. `fails` and `pending` make the next calls misbehave; `hook` runs before each call."""

    def __init__(self, clock: FakeClock, group: str = "pool") -> None:
        self._clock = clock
        self.group = group
        self.owner = "gpuwatch"
        self.target_count: int | None = None
        self.reimages = False
        self.listed: dict[str, CloudMachine] = {}
        self.calls: list[tuple[str, str]] = []
        self.fails: list[CloudError] = []
        self.pending_count = 0
        self.bill_rows: tuple[BillRow, ...] = ()
        self.hook: Callable[[str], None] = lambda _call: None

    def add(self, machine: str, slot: str, action_id: str = "") -> None:
        self.listed[machine] = CloudMachine(
            machine=machine,
            slot=slot,
            group=self.group,
            state="running",
            provider="fake",
            region="here",
            sku="eight-gpus",
            gpu_count=8,
            started_unix_ns=self._clock.unix_ns(),
            action_id=action_id,
        )

    def set_state(self, machine: str, state: MachineState, absent_because: str = "") -> None:
        self.listed[machine] = msgspec.structs.replace(
            self.listed[machine], state=state, absent_because=absent_because, because="the test says so"
        )

    def alive(self, slot: str) -> list[str]:
        """Machines of a slot that are still billed."""
        return [m.machine for m in self.listed.values() if m.slot == slot and m.ended_unix_ns is None]

    def snapshot(self) -> CloudSnapshot:
        self._call("snapshot", "")
        group = CloudGroup(name=self.group, owner=self.owner, target_count=self.target_count, reimages=self.reimages)
        return CloudSnapshot(machines=tuple(self.listed.values()), groups=(group,))

    def create(self, *, slot: str, group: str, action_id: str) -> Receipt:
        self._call("create", action_id)
        made = next((m.machine for m in self.listed.values() if m.action_id == action_id), None)
        if made is None:
            if self.pending_count > 0:
                self.pending_count -= 1
                return Receipt(action_id=action_id, state="pending", because="capacity is being found")
            made = f"new-{slot}-{len(self.listed)}"
            self.add(made, slot, action_id)
        return Receipt(action_id=action_id, state="done", machine=made)

    def release(self, machine: str, *, action_id: str) -> Receipt:
        self._call("release", action_id)
        record = self.listed[machine]
        if record.ended_unix_ns is None:
            now_ns = self._clock.unix_ns()
            self.listed[machine] = msgspec.structs.replace(record, state="gone", ended_unix_ns=now_ns)
        return Receipt(action_id=action_id, state="done", machine=machine)

    def reimage(self, machine: str, *, action_id: str) -> Receipt:
        self._call("reimage", action_id)
        if self.pending_count > 0:
            self.pending_count -= 1
            return Receipt(action_id=action_id, state="pending", because="it is being reimaged")
        return Receipt(action_id=action_id, state="done", machine=machine)

    def bill(self) -> tuple[BillRow, ...]:
        return self.bill_rows

    def _call(self, name: str, action_id: str) -> None:
        self.hook(name)
        if name != "snapshot":
            self.calls.append((name, action_id))
            if self.fails:
                raise self.fails.pop(0)


class FakeScheduler:
    """Slots with drains, and jobs with their slots."""

    def __init__(self, slots: tuple[str, ...]) -> None:
        self.drains: dict[str, str] = dict.fromkeys(slots, "")
        self.down: set[str] = set()
        self.machines: dict[str, str] = dict.fromkeys(slots, "")
        self.jobs: dict[str, SchedulerJob] = {}
        self.acted: list[tuple[str, str, str]] = []
        self.calls: list[tuple[str, str]] = []
        self.hook: Callable[[str], None] = lambda _call: None
        self.obeys = True  # False: a job that is told to end stays

    def add_job(self, job: str, slots: tuple[str, ...], *, run: str = "run", may_requeue: bool = True) -> None:
        self.jobs[job] = SchedulerJob(
            job=job,
            run=run,
            attempt=job,
            state="running",
            slots=slots,
            started_unix_ns=START_UNIX_NS,
            may_requeue=may_requeue,
            gpus_per_slot=8,
        )

    def end_job(self, job: str, cause: str, exit_code: int | None = None, at_unix_ns: int = START_UNIX_NS) -> None:
        self.jobs[job] = msgspec.structs.replace(
            self.jobs[job], state="ended", end_cause=cause, ended_unix_ns=at_unix_ns, exit_code=exit_code
        )

    def snapshot(self) -> SchedulerSnapshot:
        self.hook("snapshot")
        nodes = []
        for slot, reason in self.drains.items():
            jobs = tuple(j.job for j in self.jobs.values() if j.state == "running" and slot in j.slots)
            state: NodeState = "allocated" if jobs else "idle"
            if reason:
                state = "draining" if jobs else "drained"
            if slot in self.down:
                state = "down"
            owner = "" if not reason else "gpuwatch" if reason.startswith(OUR_TAG) else "foreign"
            nodes.append(
                SchedulerNode(
                    slot=slot,
                    state=state,
                    reason=reason,
                    drain_owner=owner,  # type: ignore[arg-type]
                    jobs=jobs,
                    machine=self.machines[slot],
                )
            )
        return SchedulerSnapshot(nodes=tuple(nodes), jobs=tuple(self.jobs.values()))

    def drain(self, slot: str, *, reason: str, action_id: str) -> None:
        self._call("drain", action_id)
        self._own(slot)
        self.drains[slot] = f"{OUR_TAG} {reason}"

    def resume(self, slot: str, *, action_id: str) -> None:
        self._call("resume", action_id)
        self._own(slot)
        self.drains[slot] = ""

    def act_on_job(self, job: str, action: JobAction, *, action_id: str) -> None:
        self._call("act_on_job", action_id)
        if (job, action, action_id) in self.acted:
            return
        record = self.jobs[job]
        if not {"signal": record.may_signal, "requeue": record.may_requeue, "cancel": record.may_cancel}[action]:
            raise SchedulerError(f"{job} does not allow {action}")
        self.acted.append((job, action, action_id))
        if self.obeys and record.state == "running":
            self.end_job(job, {"requeue": "requeued", "cancel": "cancelled", "signal": "signalled"}[action])

    def adopt(self, slot: str, machine: str, *, action_id: str) -> None:
        self._call("adopt", action_id)
        self.machines[slot] = machine

    def _own(self, slot: str) -> None:
        theirs = self.drains[slot]
        if theirs and not theirs.startswith(OUR_TAG):
            raise SchedulerError(f"{slot} is drained by another: {theirs!r}")

    def _call(self, name: str, action_id: str) -> None:
        self.hook(name)
        self.calls.append((name, action_id))
