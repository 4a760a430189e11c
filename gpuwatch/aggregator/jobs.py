"""The scheduler's jobs in our words: attempts with machines for slots, and which run holds which machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuwatch.model.ledger import AttemptStarted, LedgerLine, Member, NodeHeld, NodeLetGo, snap_ns
from gpuwatch.model.run import JobFact
from gpuwatch.schedulers import SchedulerJob, SchedulerSnapshot


class Jobs:
    """Remembers who was a member: a slot's machine may have been replaced by the time an attempt's end is read."""

    def __init__(
        self,
        machine_at: Callable[[str, int | None], str | None],
        gpus_of: Callable[[str], int | None],
        written: Iterable[LedgerLine],
    ) -> None:
        self._machine_at = machine_at  # slot, moment -> the machine that filled it then, as far as that is known
        self._gpus_of = gpus_of  # slot -> its GPUs, where they are known
        self._members: dict[str, tuple[Member, ...]] = {}
        self._held: dict[str, str] = {}  # machine -> the run that holds it
        self._open_runs: set[str] = set()
        for line in written:
            if isinstance(line, AttemptStarted):
                self._members.setdefault(line.attempt, line.members)
            elif isinstance(line, NodeHeld):
                self._held[line.machine] = line.run
            elif isinstance(line, NodeLetGo):
                self._held.pop(line.machine, None)

    def is_open(self, run: str) -> bool:
        """A job of this run is running or waiting to run."""
        return run in self._open_runs

    def facts(self, snapshot: SchedulerSnapshot) -> tuple[JobFact, ...]:
        """Every attempt that the scheduler lists."""
        self._open_runs = {job.run for job in snapshot.jobs if job.state != "ended"}
        return tuple(self._fact(job) for job in snapshot.jobs)

    def holds(self, snapshot: SchedulerSnapshot, now_unix_ns: int) -> list[LedgerLine]:
        """Machines that a run took or let go since the last call.

        A run that waits to be started again holds what it had, until somebody else gets it: those machines stand still
        for it. What ended for good lets go.
        """
        wanted: dict[str, str] = {}
        at: dict[str, int] = {}
        for job in snapshot.jobs:
            if job.state != "running":
                continue
            for member in self._members_of(job):
                wanted[member.machine] = job.run
                at[member.machine] = job.started_unix_ns or now_unix_ns
        for machine, run in self._held.items():
            if machine not in wanted and run in self._open_runs:
                wanted[machine] = run
        lines: list[LedgerLine] = []
        for machine, run in self._held.items():
            if wanted.get(machine) != run:
                lines.append(NodeLetGo(at_unix_ns=snap_ns(now_unix_ns), run=run, machine=machine))
        for machine, run in wanted.items():
            if self._held.get(machine) != run:
                started = min(at.get(machine, now_unix_ns), now_unix_ns)
                lines.append(NodeHeld(at_unix_ns=snap_ns(started), run=run, machine=machine))
        self._held = wanted
        return lines

    def retire(self, machine: str, now_unix_ns: int) -> list[LedgerLine]:
        """It left the fleet: nobody holds it any more."""
        run = self._held.pop(machine, None)
        return [] if run is None else [NodeLetGo(at_unix_ns=snap_ns(now_unix_ns), run=run, machine=machine)]

    def _members_of(self, job: SchedulerJob) -> tuple[Member, ...]:
        known = self._members.get(job.attempt)
        if known is None or (job.state == "running" and len(known) < len(job.slots)):
            members = []
            for slot in job.slots:
                machine = self._machine_at(slot, job.started_unix_ns)
                if machine is not None:
                    gpus = job.gpus_per_slot if job.gpus_per_slot is not None else self._gpus_of(slot)
                    members.append(Member(machine=machine, gpu_thousandths=1000 * (gpus or 1)))
            known = tuple(members)
            self._members[job.attempt] = known
        return known

    def _fact(self, job: SchedulerJob) -> JobFact:
        ended = ""
        if job.state == "ended":
            clean = job.exit_code == 0 and job.end_cause in ("", "completed")
            ended = "exit0" if clean else "planned" if job.planned else "unplanned"
        return JobFact(
            run=job.run,
            attempt=job.attempt,
            state=job.state,
            members=self._members_of(job),
            started_unix_ns=job.started_unix_ns,
            ended_unix_ns=job.ended_unix_ns,
            ended=ended,
            cause=job.end_cause,
            team=job.team,
            user=job.user,
            suspended=job.suspended,
        )
