"""Ended tries of the last day out of the accounting database, where there is one: `sacct`.

The controller itself forgets an ended job after `MinJobAge` (300 s by default), and an earlier try of a requeued job at
once. The database keeps both, tells a node's failure from a person's requeue, and who cancelled.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpuwatch.sdk import slurm_values as values
from gpuwatch.sdk.slurm_jobs import ENDED, Job

SEPARATOR = f"\x1f{secrets.token_hex(8)}\x1f"  # no user can write it into a job's name, and so a try of another job
FIELDS = (
    *("JobIDRaw", "JobID", "User", "Account", "State", "ExitCode", "Submit", "Start", "End"),
    *("NNodes", "AllocTRES", "NodeList", "JobName"),  # a name may hold anything: last
)
COMMAND = (
    *("sacct", "--local", "--allusers", "--duplicates", "--allocations", "--parsable2", "--noheader"),
    *("--starttime=now-1day", "--endtime=now", f"--delimiter={SEPARATOR}"),
    "--state=BF,CA,CD,DL,F,NF,OOM,PR,RQ,RV,TO",
    f"--format={','.join(FIELDS)}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One ended try of a job. `job.restarts` is counted, see `numbered`."""

    job: Job
    cause: str
    planned: bool


def from_sacct(answer: str) -> list[Try]:
    """Every ended try that began. Lines that make no sense are passed over."""
    tries = []
    for line in re.split(rf"\n(?=[^\n]*{SEPARATOR})|\n\Z", answer):
        cells = line.split(SEPARATOR)
        if len(cells) < len(FIELDS):
            continue
        row = dict(zip(FIELDS, cells, strict=False))
        job_id, word = values.number(row["JobIDRaw"]), row["State"].split(" ")[0].rstrip("+")
        known = ("requeued", True) if word.startswith("REQUEUE") else ENDED.get(word)
        start, end = values.unix_ns(row["Start"]), values.unix_ns(row["End"])
        if job_id is None or known is None or start is None or end is None:
            continue
        try:
            nodes = values.names(row["NodeList"])
        except ValueError:
            nodes = ()
        leader, plus, _ = row["JobID"].partition("+")
        job = Job(
            id=job_id,
            name=SEPARATOR.join(cells[len(FIELDS) - 1 :]),
            state=(word,),
            nodes=nodes,
            leader=(values.number(leader) or 0) if plus else 0,
            submitted_unix_ns=values.unix_ns(row["Submit"]),
            started_unix_ns=start,
            ended_unix_ns=end,
            exit_code=values.exit_code(row["ExitCode"]),
            account=values.text(row["Account"]),
            user=values.text(row["User"]),
            gpus_per_node=values.gpus_per_node(row["AllocTRES"], "", len(nodes)),
        )
        tries.append(Try(job=job, cause=known[0], planned=known[1]))
    return tries


def numbered(tries: Iterable[Try], newest: Mapping[int, tuple[int, bool]]) -> list[Try]:
    """The tries with their restart counts, which the database does not tell: counted back from the newest try that the
    controller told of (`newest`: job id -> its restart count, and whether that try has ended), else on from 0."""
    by_job: dict[int, list[Try]] = {}
    for item in sorted(tries, key=lambda item: item.job.started_unix_ns or 0):
        by_job.setdefault(item.job.id, []).append(item)
    found = []
    for job_id, row in by_job.items():
        count, over = newest.get(job_id, (len(row) - 1, True))
        first = count - len(row) + (1 if over else 0)
        found += [
            replace(item, job=replace(item.job, restarts=first + place))
            for place, item in enumerate(row)
            if first + place >= 0
        ]
    return found
