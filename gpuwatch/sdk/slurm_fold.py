"""Adds up job records as they come: each try once, cut to the period, split where asked, memory that does not grow.

One job may have several records. (JobIDRaw, Submit, Start) names one try; a record of the same try again (two
dumps that overlap) is not counted again, but an end replaces "still running". Pieces of a resized job follow the last
record of the job.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

from gpuwatch.model.job_history import Asked, JobGroup, JobHistory, JobSum, Rejected
from gpuwatch.sdk.slurm_states import JobState
from gpuwatch.sdk.slurm_times import span

FAR_UNIX_S = 1 << 40
NAMED_ROWS = 10  # of those that are broken; the rest is counted
LONG_S = 31 * 86_400  # a job that "runs" for longer is likely a record whose end was lost
_PAGE_BITS = 7


class Record(NamedTuple):
    """One record, read but not judged."""

    job: str  # JobID as printed
    raw: str  # JobIDRaw, or JobID where there is none
    state: JobState
    submit: str  # as written: names the try
    start: str
    submits: tuple[int, ...]  # what it may mean, unix s; empty: not known
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    elapsed_s: int | None  # suspension left out
    suspended_s: int
    gpus: int | str  # or why that is not known
    keys: tuple[str, ...]
    cluster: str = ""
    jobs: int = 1  # that it stands for: an array's waiting tasks


class _Open(NamedTuple):
    line: int
    record: Record
    begin: int
    tries: int


class Pages(dict[int, "array[int]"]):
    """For each job id the mark of its first try: four bytes a job, where a set would take eighty."""

    def __missing__(self, number: int) -> array[int]:
        page = self[number] = array("I", bytes(4 << _PAGE_BITS))
        return page


class Fold:
    """The sums so far. `sdk/slurm_dump.py` adds the commonest records itself, in the same way."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.since = asked.since_unix_s or 0
        self.until = FAR_UNIX_S if asked.until_unix_s is None else asked.until_unix_s
        self.cuts = sorted({0, self.since, self.until, *asked.cuts_unix_s, FAR_UNIX_S})
        self.sums: dict[tuple[int, str, tuple[str, ...] | str], list[int]] = {}
        self._never: dict[tuple[int, str, tuple[str, ...] | str], int] = {}  # of those tries, who never started
        self.groups: dict[str, JobGroup] = {}
        self.pages = Pages()
        self.first = FAR_UNIX_S
        self.last = 0
        self.rows = self.steps = self.repeated = self.outside = self.gpuless = 0
        self.other_clocks = 0  # records whose end and start do not lie as far apart as sacct says
        self.broken: list[Rejected] = []
        self.broken_count = 0
        self._unknown: list[Rejected] = []
        self._unknown_count = self._unknown_s = 0
        self._more: set[int] = set()  # tries of a job after its first
        self._named: dict[str, int] = {}  # ids that are no numbers
        self._open: dict[tuple[str, int], _Open] = {}
        self._pieces: dict[str, list[tuple[int, Record, int, int]]] = {}
        self._unheard = 0  # ended, and when is not known

    def reject(self, line: int, why: str) -> None:
        """A row that cannot be used."""
        self.broken_count += 1
        if len(self.broken) < NAMED_ROWS:
            self.broken.append(Rejected(line=line, why=why))

    def add(self, line: int, record: Record) -> None:
        """Count one record. Raises `ValueError` for one that contradicts itself."""
        held_s = None if record.elapsed_s is None else record.elapsed_s + record.suspended_s
        if record.ends and record.begins and (pair := span(record.begins, record.ends, held_s)) is None:
            raise ValueError("it ends before it starts")
        mark = mark_of(record.submit, record.start, record.cluster)
        if not self._first_time(record.raw, mark) and not (record.ends and (record.raw, mark) in self._open):
            self.repeated += 1
            return
        self._open.pop((record.raw, mark), None)
        for own_line, piece, begin, end in self._pieces.pop(record.job, ()) if record.state.name != "RESIZING" else ():
            self._spread(own_line, record.state, piece, begin, end, 0)
        tries = 0 if "+" in record.job and record.job.partition("+")[2].strip("0") else record.jobs
        if not record.begins or record.state.group == "pending":
            self._without_time(record, tries)
        elif record.ends:
            assert pair is not None
            begin, end = pair
            self.other_clocks += held_s is not None and held_s != end - begin
            self._ended(line, record, begin, end, tries)
        elif record.state.group != "running" and held_s is not None:
            self._ended(line, record, record.begins[0], record.begins[0] + held_s, tries)
        else:
            self._open[record.raw, mark] = _Open(line, record, record.begins[0], tries)
            self.first = min(self.first, record.begins[0])

    def finish(self, notes: tuple[str, ...] = ()) -> JobHistory:
        """What is still running counts up to the last moment that the history saw; then everything as a record."""
        now = self.asked.now_unix_s
        seen = [o.begin + o.record.elapsed_s + o.record.suspended_s for o in self._open.values() if o.record.elapsed_s]
        # What nobody saw is not counted: a dump of last week says nothing of this one.
        heard = min(max(*seen, self.last, *(o.begin for o in self._open.values())), now) if seen else now
        long = 0
        for item in self._open.values():
            end = max(min(heard, self.until), item.begin)
            long += end - item.begin > LONG_S
            self._spread(item.line, item.record.state, item.record, item.begin, end, item.tries)
        for line, piece, begin, end in (own for pieces in self._pieces.values() for own in pieces):
            self._spread(line, piece.state, piece, begin, end, 0)
        sums, outside = [], self.outside
        for (at, state, keys), (tries, gpu_seconds) in self.sums.items():
            if not self.since <= self.cuts[at - 1] < self.until:
                outside += tries
                continue
            own = (keys,) if isinstance(keys, str) else keys
            sums.append(
                JobSum(
                    begins_unix_s=self.cuts[at - 1],
                    state=state,
                    group=self.groups[state],
                    keys=own,
                    tries=tries,
                    gpu_seconds=gpu_seconds,
                    never_started=self._never.get((at, state, keys), 0),
                )
            )
        last = max(self.last, heard if self._open else 0)
        return JobHistory(
            source="sacct",
            sums=tuple(sums),
            begins_unix_s=max(self.first, self.since) if self.first < FAR_UNIX_S else None,
            ends_unix_s=min(last, self.until) if last else None,
            rows=self.rows,
            steps=self.steps,
            repeated=self.repeated,
            outside=outside,
            gpuless_tries=self.gpuless,
            running_tries=len(self._open),
            further_tries=len(self._more),
            broken=tuple(self.broken),
            broken_count=self.broken_count,
            unknown_gpus=tuple(self._unknown),
            unknown_gpus_count=self._unknown_count,
            unknown_gpus_job_seconds=self._unknown_s,
            notes=(*notes, *self._notes(long, bool(seen))),
        )

    def _notes(self, long: int, seen: bool) -> list[str]:
        notes = []
        if self._open and not seen:
            notes.append("Running jobs are counted up to now: the dump does not say when it was made.")
        if long:
            notes.append(
                f"Jobs that have been running for more than 31 days: {long:,}. They may be records whose end was lost: "
                "look at `sacctmgr show runawayjobs`."
            )
        if self.other_clocks:
            notes.append(
                f"In {self.other_clocks:,} rows End - Start is not ElapsedRaw + Suspended; End - Start is used. A "
                "wrong --tz makes it an hour where the clocks changed; sacct --truncate does it too."
            )
        if self._unheard:
            notes.append(f"{self._unheard:,} jobs ended and have no start: no time is counted for them.")
        return notes

    def _first_time(self, raw: str, mark: int) -> bool:
        if raw.isdecimal() and len(raw) < 11:
            number = int(raw)
            page, at = self.pages[number >> _PAGE_BITS], number & (1 << _PAGE_BITS) - 1
            first = page[at]
            if not first:
                page[at] = mark
                return True
        else:
            first = self._named.get(raw, 0)
            if not first:
                self._named[raw] = mark
                return True
        if first == mark:
            return False
        later = hash((raw, mark))  # one number: a set of its own for each such job takes ten times the memory
        if later in self._more:
            return False
        self._more.add(later)
        return True

    def _ended(self, line: int, record: Record, begin: int, end: int, tries: int) -> None:
        self.first, self.last = min(self.first, begin), max(self.last, end)
        if record.state.name == "RESIZING":
            self._pieces.setdefault(record.job, []).append((line, record, begin, end))
        else:
            self._spread(line, record.state, record, begin, end, tries)

    def _without_time(self, record: Record, tries: int) -> None:
        """Pending, or ended before it began: counted, no time."""
        when = record.submits if record.state.group == "pending" else record.ends or record.submits
        moment = when[0] if when else self.since
        if record.state.group == "pending":
            moment = max(moment, self.since)  # it waits still
        unheard = record.state.group in ("completed", "failed") and not record.begins
        self._unheard += unheard
        never = 0 if unheard and record.state.name != "DEADLINE" else tries
        self._count(bisect_right(self.cuts, moment), record.state, record.keys, tries, 0, never)

    def _spread(self, line: int, state: JobState, record: Record, begin: int, end: int, tries: int) -> None:
        held_s = end - begin
        begin, end = max(begin, self.since), min(end, self.until)
        if begin > end or begin >= self.until or (begin == end and held_s):
            self.outside += tries
            return
        gpus, never = record.gpus, 0
        if isinstance(gpus, str):
            never = 0 if held_s else tries  # some releases give the end as the start of what ended in the queue
            if end > begin:
                self._unknown_count += 1
                self._unknown_s += end - begin
                if len(self._unknown) < NAMED_ROWS:
                    self._unknown.append(Rejected(line=line, why=f"job {record.job}: {gpus}"))
            gpus = 0
        elif not gpus:
            self.gpuless += tries
        at = bisect_right(self.cuts, begin)
        while end > self.cuts[at]:
            self._count(at, state, record.keys, tries, gpus * (self.cuts[at] - begin))
            begin, tries, at = self.cuts[at], 0, at + 1
        self._count(at, state, record.keys, tries, gpus * (end - begin), never)

    def _count(
        self, at: int, state: JobState, keys: tuple[str, ...], tries: int, gpu_seconds: int, never: int = 0
    ) -> None:
        self.groups[state.name] = state.group
        own = keys[0] if len(keys) == 1 else keys
        if never:
            self._never[at, state.name, own] = self._never.get((at, state.name, own), 0) + never
        entry = self.sums.setdefault((at, state.name, own), [0, 0])
        entry[0] += tries
        entry[1] += gpu_seconds


def mark_of(submit: str, start: str, cluster: str) -> int:
    """Which try of a job: 32 bits that are not 0. Two tries of one job share them once in four thousand million."""
    return hash((submit, start, cluster)) & 0xFFFFFFFF or 1


def waiting_tasks(job: str) -> int:
    """`1004_[1-3,7%2]` -> 4 tasks that wait; 1 for any other job. A list cut by sacct counts what it shows."""
    _, bracket, inner = job.partition("_[")
    if not bracket:
        return 1
    tasks = 0
    for part in inner.rstrip("]").partition("%")[0].split(","):
        first, dash, rest = part.partition("-")
        last, _, step = rest.partition(":")
        if first.isdecimal() and not dash:
            tasks += 1
        elif first.isdecimal() and last.isdecimal() and (not step or (step.isdecimal() and int(step))):
            tasks += max((int(last) - int(first)) // int(step or 1) + 1, 0)
    return max(tasks, 1)
