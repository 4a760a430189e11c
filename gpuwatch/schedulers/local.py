"""The scheduler on this machine: slots, drains and gang jobs kept in small files.

The embedded default of the demo and of trials. It has no daemon: each snapshot makes one scheduling pass. A job asks
for whole slots; its attempt is ordered by one file a slot under `steps/`, which the node's own process carries out
(`gpuwatch.simulate.node`), as a node daemon would. A slot whose node has not been seen for `node_timeout_s` is down.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from gpuwatch.clock import Clock, SystemClock
from gpuwatch.errors import SchedulerError
from gpuwatch.schedulers import (
    OUR_TAG,
    JobAction,
    NodeState,
    SchedulerJob,
    SchedulerLeaf,
    SchedulerNode,
    SchedulerSnapshot,
)
from gpuwatch.sdk.local_files import locked, read_json, write_json


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[scheduler.local]`."""

    directory: Path
    slots: tuple[str, ...]
    gpus_per_slot: int = 8
    node_timeout_s: float = 5.0


class LocalScheduler:
    """See the module. Everything is read from and written to files under one lock."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._root = settings.directory
        for folder in ("nodes", "jobs", "steps", "alive"):
            (self._root / folder).mkdir(parents=True, exist_ok=True)

    def snapshot(self) -> SchedulerSnapshot:
        with self._alone():
            jobs = self._jobs()
            for job in jobs:
                self._advance(job, jobs)
            nodes = tuple(self._node(slot, jobs) for slot in self._settings.slots)
            listed = tuple(entry for job in jobs for entry in _listed(job, self._settings.gpus_per_slot))
        return SchedulerSnapshot(nodes=nodes, jobs=listed)

    def drain(self, slot: str, *, reason: str, action_id: str) -> None:
        with self._alone():
            record = self._slot_record(slot)
            theirs = record.get("drain", "")
            if theirs and not theirs.startswith(OUR_TAG):
                raise SchedulerError(
                    f"{slot} is drained by another: {theirs!r}",
                    why="a drain that is not ours is left alone",
                    next_step="ask its owner, or resume the slot by hand first",
                )
            tagged = reason if reason.startswith(OUR_TAG) else f"{OUR_TAG} {reason}"
            write_json(self._root / "nodes" / f"{slot}.json", record | {"drain": tagged, "action_id": action_id})

    def resume(self, slot: str, *, action_id: str) -> None:
        with self._alone():
            record = self._slot_record(slot)
            theirs = record.get("drain", "")
            if theirs and not theirs.startswith(OUR_TAG):
                raise SchedulerError(
                    f"{slot} is drained by another: {theirs!r}",
                    why="only our own drains are resumed",
                    next_step="ask its owner",
                )
            write_json(self._root / "nodes" / f"{slot}.json", record | {"drain": "", "action_id": action_id})

    def act_on_job(self, job: str, action: JobAction, *, action_id: str) -> None:
        with self._alone():
            run = job.rsplit(".", 1)[0]
            record = read_json(self._root / "jobs" / f"{run}.json")
            if record is None:
                raise SchedulerError(
                    f"the local scheduler knows no job {job!r}", next_step="look at its snapshot for the job ids"
                )
            if action_id in record["acted"]:
                return
            if not record[f"may_{action}"]:
                raise SchedulerError(
                    f"job {job} does not allow {action}",
                    why=f"it was submitted with may_{action} = false",
                    next_step="end it by hand, or choose another job_action in the pool's policy",
                )
            record["acted"].append(action_id)
            attempt = record["attempts"][-1] if record["attempts"] else None
            if attempt is not None and attempt["attempt"] == job and attempt["ended_unix_ns"] is None:
                self._end(attempt, cause={"requeue": "requeued", "cancel": "cancelled", "signal": "signalled"}[action])
                record["wanted"] = action == "requeue"
            self._save(record)

    def adopt(self, slot: str, machine: str, *, action_id: str) -> None:
        with self._alone():
            record = self._slot_record(slot)
            write_json(self._root / "nodes" / f"{slot}.json", record | {"machine": machine, "action_id": action_id})

    def submit(self, run: str, *, command: tuple[str, ...], slot_count: int, team: str = "", user: str = "") -> None:
        """Queue a gang job. `{rank}`, `{ranks}`, `{attempt}`, `{run}`, `{slot}` in the command are filled in a slot."""
        with self._alone():
            self._save(
                {
                    "run": run,
                    "command": list(command),
                    "slot_count": slot_count,
                    "team": team or None,
                    "user": user or None,
                    "wanted": True,
                    "may_requeue": True,
                    "may_signal": True,
                    "may_cancel": False,
                    "acted": [],
                    "attempts": [],
                }
            )

    def finish(self, run: str) -> None:
        """Ask the run to stop by itself: its processes get the word and exit 0."""
        with self._alone():
            record = read_json(self._root / "jobs" / f"{run}.json")
            if record is not None and record["attempts"]:
                record["wanted"] = False
                record["attempts"][-1]["planned"] = True
                self._save(record)
                for slot in record["attempts"][-1]["slots"]:
                    self._order(record["attempts"][-1], slot, {"finish": True})

    def _alone(self) -> Any:
        return locked(self._root / "scheduler.lock")

    def _jobs(self) -> list[dict[str, Any]]:
        found = (read_json(path) for path in sorted((self._root / "jobs").glob("*.json")))
        return [job for job in found if job is not None]

    def _save(self, job: dict[str, Any]) -> None:
        write_json(self._root / "jobs" / f"{job['run']}.json", job)

    def _slot_record(self, slot: str) -> dict[str, Any]:
        if slot not in self._settings.slots:
            raise SchedulerError(
                f"the local scheduler knows no slot {slot!r}", next_step="look at scheduler.local.slots"
            )
        return read_json(self._root / "nodes" / f"{slot}.json") or {"drain": "", "machine": ""}

    def _alive(self, slot: str, machine: str) -> bool:
        """Whether this machine's node process was seen lately in this slot."""
        seen = read_json(self._root / "alive" / f"{slot}@{machine}.json")
        if seen is None:
            return False
        age_s = (self._clock.monotonic_ns() - seen["monotonic_ns"]) / 1e9  # same host, same clock
        return bool(age_s <= self._settings.node_timeout_s)

    def _machine(self, slot: str) -> str:
        """The machine that fills the slot: the adopted one, else the first that showed itself there."""
        record = self._slot_record(slot)
        if not record.get("machine"):
            shown = sorted(path.stem.split("@", 1)[1] for path in (self._root / "alive").glob(f"{slot}@*.json"))
            alive = [machine for machine in shown if self._alive(slot, machine)]
            if alive:
                record["machine"] = alive[0]
                write_json(self._root / "nodes" / f"{slot}.json", record)
        return str(record.get("machine", ""))

    def _occupies(self, attempt: dict[str, Any], slot: str) -> bool:
        """Whether the attempt still has a process there: an ended one does until its node reports the exit."""
        machine = attempt["slots"].get(slot)
        if machine is None:
            return False
        if attempt["ended_unix_ns"] is None:
            return True
        return self._exit_code(attempt, slot) is None and self._alive(slot, machine)

    def _node(self, slot: str, jobs: list[dict[str, Any]]) -> SchedulerNode:
        record = self._slot_record(slot)
        drain = record.get("drain", "")
        running = tuple(a["attempt"] for job in jobs for a in job["attempts"] if self._occupies(a, slot))
        machine = self._machine(slot)
        state: NodeState
        if not self._alive(slot, machine):
            state = "down"
        elif drain:
            state = "draining" if running else "drained"
        else:
            state = "allocated" if running else "idle"
        owner = "" if not drain else "gpuwatch" if drain.startswith(OUR_TAG) else "foreign"
        return SchedulerNode(
            slot=slot,
            state=state,
            reason=drain,
            drain_owner=owner,  # type: ignore[arg-type]
            jobs=running,
            machine=machine,
        )

    def _advance(self, job: dict[str, Any], jobs: list[dict[str, Any]]) -> None:
        attempt = job["attempts"][-1] if job["attempts"] else None
        if attempt is not None and attempt["ended_unix_ns"] is None:
            codes = [self._exit_code(attempt, slot) for slot in attempt["slots"]]
            if all(code is not None for code in codes):
                worst = max((code for code in codes if code is not None), key=abs)
                good = worst == 0
                self._end(attempt, cause="completed" if good else "failed", exit_code=worst)
                job["wanted"] = job["wanted"] and not good
                self._save(job)
        elif job["wanted"]:
            self._start(job, jobs)

    def _start(self, job: dict[str, Any], jobs: list[dict[str, Any]]) -> None:
        free = {}
        for slot in self._settings.slots:
            machine = self._machine(slot)
            taken = any(self._occupies(a, slot) for other in jobs for a in other["attempts"])
            if self._alive(slot, machine) and not taken and not self._slot_record(slot).get("drain"):
                free[slot] = machine
        if len(free) < job["slot_count"]:
            return
        slots = dict(list(free.items())[: job["slot_count"]])
        attempt = {
            "attempt": f"{job['run']}.{len(job['attempts']) + 1}",
            "slots": slots,
            "started_unix_ns": self._clock.unix_ns(),
            "ended_unix_ns": None,
            "cause": "",
            "exit_code": None,
            "planned": False,
        }
        job["attempts"].append(attempt)
        self._save(job)
        for rank, slot in enumerate(slots):
            words = {
                "rank": str(rank),
                "ranks": str(len(slots)),
                "run": job["run"],
                "attempt": attempt["attempt"],
                "slot": slot,
            }
            command = [part.format(**words) for part in job["command"]]
            self._order(attempt, slot, {"machine": slots[slot], "command": command})

    def _end(self, attempt: dict[str, Any], *, cause: str, exit_code: int | None = None) -> None:
        attempt["ended_unix_ns"] = self._clock.unix_ns()
        attempt["cause"] = cause
        attempt["exit_code"] = exit_code
        for slot in attempt["slots"]:
            self._order(attempt, slot, {"cancel": True})

    def _order(self, attempt: dict[str, Any], slot: str, change: dict[str, Any]) -> None:
        path = self._root / "steps" / slot / f"{attempt['attempt']}.json"
        write_json(path, (read_json(path) or {}) | change)

    def _exit_code(self, attempt: dict[str, Any], slot: str) -> int | None:
        found = read_json(self._root / "steps" / slot / f"{attempt['attempt']}.exit")
        return None if found is None else int(found["exit_code"])


def _listed(job: dict[str, Any], gpus_per_slot: int) -> list[SchedulerJob]:
    """Each attempt as a job, and a pending entry while the run waits to be started again."""
    shared = {
        "run": job["run"],
        "may_requeue": job["may_requeue"],
        "may_signal": job["may_signal"],
        "may_cancel": job["may_cancel"],
        "team": job["team"],
        "user": job["user"],
        "gpus_per_slot": gpus_per_slot,
    }
    listed = [
        SchedulerJob(
            job=a["attempt"],
            attempt=a["attempt"],
            state="running" if a["ended_unix_ns"] is None else "ended",
            slots=tuple(a["slots"]),
            started_unix_ns=a["started_unix_ns"],
            ended_unix_ns=a["ended_unix_ns"],
            exit_code=a["exit_code"],
            end_cause=a["cause"],
            planned=a["planned"],
            **shared,
        )
        for a in job["attempts"]
    ]
    if job["wanted"] and (not job["attempts"] or job["attempts"][-1]["ended_unix_ns"] is not None):
        waiting = f"{job['run']}.{len(job['attempts']) + 1}"
        listed.append(SchedulerJob(job=waiting, attempt=waiting, state="pending", **shared))
    return listed


def _open(settings: Settings) -> LocalScheduler:
    return LocalScheduler(settings, SystemClock())


SCHEDULER = SchedulerLeaf(settings=Settings, open=_open)
