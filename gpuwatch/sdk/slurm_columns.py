"""Where each column of a sacct dump is: found by its header's names, in any order and case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuwatch.errors import HistoryError

COMMAND = (
    "TZ=UTC sacct --allusers --duplicates --parsable2 --starttime 2026-11-01 --endtime 2026-12-01 "
    "--format=JobID,JobIDRaw,User,Account,Partition,State,Submit,Start,End,ElapsedRaw,Suspended,AllocTRES > jobs.txt"
)
_FREE_TEXT = frozenset(
    {"jobname", "comment", "admincomment", "systemcomment", "workdir", "submitline", "reason", "extra"}
)
_KNOWN = _FREE_TEXT | {
    *("jobid", "jobidraw", "user", "account", "partition", "state", "submit", "start", "end", "eligible", "elapsed"),
    *("elapsedraw", "suspended", "alloctres", "allocgres", "reqtres", "reqgres", "nnodes", "nodelist", "exitcode"),
    *("cluster", "qos", "timelimit", "ncpus", "alloccpus", "allocnodes", "group", "gid", "uid"),
}
_DELIMITERS = ("|", "\t", ";", ",", "^", "~")


class Columns(NamedTuple):
    """The place of each column; -1: it is not there."""

    width: int
    delimiter: str
    job: int
    raw: int
    state: int
    submit: int
    start: int
    end: int
    elapsed_raw: int
    elapsed: int
    suspended: int
    tres: int
    gres: int
    cluster: int
    keys: tuple[int, ...]
    quoted: bool  # a spreadsheet's export: the header is quoted, so the rows are
    free_text: int  # the only column that may hold anything, so that a delimiter in it can be told; -1: none or several


def find_delimiter(header: str) -> str:
    """The one that splits the line into the most names that sacct knows; empty: the line is no header."""
    found = {mark: sum(name in _KNOWN for name in names(header, mark)) for mark in _DELIMITERS}
    best = max(_DELIMITERS, key=lambda mark: found[mark])
    return best if found[best] >= 2 else ""


def names(header: str, delimiter: str) -> list[str]:
    """The header's names in lower case, without quotes and without a width (`JobID%20`)."""
    return [name.strip().strip('"').partition("%")[0].lower() for name in header.split(delimiter)]


def is_header(header: str, delimiter: str) -> bool:
    """Whether a line names columns."""
    found = names(header, delimiter)
    return "state" in found and ("jobid" in found or "jobidraw" in found)


def columns_of(header: str, delimiter: str, keys: Sequence[str]) -> Columns:
    """The places of what is needed for these keys. Raises `HistoryError` with everything that lacks."""
    found = names(header, delimiter)
    place = {name: index for index, name in reversed(list(enumerate(found)))}
    lacking = [
        " or ".join(choice)
        for choice in (
            ("JobID", "JobIDRaw"),
            ("State",),
            ("Start",),
            ("End", "ElapsedRaw", "Elapsed"),
            ("AllocTRES", "AllocGRES"),
            *((key.capitalize(),) for key in keys),
        )
        if not any(name.lower() in place for name in choice)
    ]
    if lacking:
        raise HistoryError(
            f"the dump has no column {', no '.join(lacking)}",
            why=f"its header names {', '.join(name for name in header.split(delimiter) if name.strip())[:400]!r}",
            next_step=f"make it with\n  {COMMAND}",
        )
    free = [index for index, name in enumerate(found) if name in _FREE_TEXT]
    job = place.get("jobid", place.get("jobidraw", -1))
    return Columns(
        width=len(found),
        delimiter=delimiter,
        job=job,
        raw=place.get("jobidraw", job),
        state=place["state"],
        submit=place.get("submit", -1),
        start=place["start"],
        end=place.get("end", -1),
        elapsed_raw=place.get("elapsedraw", -1),
        elapsed=place.get("elapsed", -1),
        suspended=place.get("suspended", -1),
        tres=place.get("alloctres", -1),
        gres=place.get("allocgres", -1),
        cluster=place.get("cluster", -1),
        keys=tuple(place[key] for key in keys),
        quoted='"' in header,
        free_text=free[0] if len(free) == 1 else -1,
    )
