"""JOB HISTORY: what a scheduler's own accounting can tell, added up while it is read.

Importers make it, `cost` prices it. A history of millions of jobs does not fit into memory, so only sums come in.
"""

from __future__ import annotations

from typing import Literal

import msgspec

JobGroup = Literal["completed", "failed", "cancelled", "preempted", "requeued", "running", "pending", "other"]

KEYS = ("user", "account", "partition")  # what a job is anybody's by


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What to keep apart while adding up, and how to read."""

    keys: tuple[str, ...] = ()  # of KEYS
    since_unix_s: int | None = None  # what is before is cut off; None: from the first record
    until_unix_s: int | None = None  # exclusive; None: to the end of what the history saw
    cuts_unix_s: tuple[int, ...] = ()  # sums are kept apart at these moments: months, changes of price
    now_unix_s: int
    zone: str = ""  # of times written without one: an IANA name; empty: this machine's
    delimiter: str = ""  # empty: found from the header


class JobSum(msgspec.Struct, frozen=True, kw_only=True):
    """Tries of one state and one set of keys in one stretch between two cuts."""

    begins_unix_s: int  # of the stretch: its cut, or the period's begin
    state: str  # the scheduler's own word
    group: JobGroup
    keys: tuple[str, ...]  # in the order of `Asked.keys`
    tries: int  # begun, or queued, in this stretch; a requeued job has several, a job of several parts is one
    gpu_seconds: int
    never_started: int = 0  # of these tries: they wait, or ended while they waited


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """One row that could not be used. In JSON a line number is the job's place in the list."""

    line: int
    why: str


class JobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Sums, and what is wrong with them."""

    source: str  # for example `sacct`
    sums: tuple[JobSum, ...] = ()
    begins_unix_s: int | None = None  # the first second that a counted try held; None: none did
    ends_unix_s: int | None = None  # the last moment that the history saw, or the period's end
    rows: int = 0  # read, headers and empty lines not counted
    steps: int = 0  # rows that are parts of a job's own row
    repeated: int = 0  # rows of a try that was counted already
    outside: int = 0  # tries outside the period
    gpuless_tries: int = 0  # they ran and held no GPU
    running_tries: int = 0
    further_tries: int = 0  # records of a job after its first: requeued, resized
    broken: tuple[Rejected, ...] = ()  # the first ten
    broken_count: int = 0
    unknown_gpus: tuple[Rejected, ...] = ()  # ran, but how many GPUs is not known: the first ten
    unknown_gpus_count: int = 0
    unknown_gpus_job_seconds: int = 0
    notes: tuple[str, ...] = ()  # what else a reader must know, in plain words
