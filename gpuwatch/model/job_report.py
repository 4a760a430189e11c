"""JOB REPORT: GPU time and money by job state, user, account, partition, month. Made by `cost`, printed by `reports`.

It is made of a scheduler's history alone: it knows how long GPUs were held and how their jobs ended, nothing of what
they did meanwhile.
"""

from __future__ import annotations

from decimal import Decimal

import msgspec


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line: its keys in the order of `JobReport.by`, its GPU time, its money."""

    keys: tuple[str, ...]
    detail: str = ""
    tries: int = 0  # that began; a requeued job has several, a job of several parts is one
    gpu_seconds: int = 0  # exact; adds up
    gpu_hours: Decimal = Decimal(0)  # the same to three places, each line rounded on its own
    usd: Decimal | None = None  # rounded so that the lines add up; None: nothing of it has a price ("unknown $")
    unpriced_gpu_seconds: int = 0  # in no amount
    share_percent: Decimal | None = None  # of all GPU time
    never_started: int = 0  # in no try: they wait, or ended while they waited


class GpuPrice(msgspec.Struct, frozen=True, kw_only=True):
    """One price that the report multiplied by."""

    what: str
    usd_per_gpu_hour: str  # a decimal with its places; a node's price over its GPUs may have many
    kind: str = ""
    as_of: str = ""
    source: str = ""
    older_than_book: bool = False


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a format needs."""

    by: tuple[str, ...]
    source: str  # whose history, for example `sacct`
    since_unix_ns: int | None  # None: nothing was found
    until_unix_ns: int | None
    made_unix_ns: int
    currency: str = "USD"
    rows: tuple[JobRow, ...] = ()
    total: JobRow = JobRow(keys=())
    sum_line: str = ""
    groups: dict[str, JobRow] = {}  # always there, whatever the report is split by
    lost_at_most: JobRow | None = None  # failed time: an upper bound of what failures cost
    waste_at_most: JobRow | None = None  # failed and, where it is known, idle time; None: neither
    waste_line: str = ""  # the same in a sentence, with what is not in it
    idle: JobRow | None = None  # of a fleet whose size was given: paid for and in no job
    fleet_gpus: int | None = None
    said: tuple[str, ...] = ()  # what the groups mean, in sentences
    prices: tuple[GpuPrice, ...] = ()
    findings: tuple[str, ...] = ()
    rows_read: int = 0
    rows_broken: int = 0
    empty_because: str = ""
