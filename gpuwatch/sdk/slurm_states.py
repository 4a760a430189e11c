"""Slurm's job states, as sacct prints them, and what each means for money: data/slurm_job_states.csv.

Source of the table: Slurm's own source, tags slurm-20-11-0-1 to slurm-24-11-7-1 (`job_state_string` and the flags of
`job_states`). A state that is not in it keeps its own name and belongs to `other`: never a guess.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple, cast

from gpuwatch.model.job_history import JobGroup

_NAME = re.compile(r"[A-Z][A-Z0-9_]+", re.ASCII)  # what Slurm could call a state
_ENDED = ("completed", "cancelled", "failed", "preempted")


class JobState(NamedTuple):
    """One state: its name, its group, and whether it is a flag beside a base state."""

    name: str
    group: JobGroup
    flag: bool = False


@cache
def states() -> dict[str, JobState]:
    """Every known state by its name and by its short form."""
    text = files("gpuwatch.sdk").joinpath("data/slurm_job_states.csv").read_text(encoding="utf-8")
    found: dict[str, JobState] = {}
    for row in csv.DictReader(text.splitlines()):
        state = JobState(row["state"], cast(JobGroup, row["group"]), row["kind"] == "flag")
        found[state.name] = state
        if row["short"]:
            found[row["short"]] = state
    return found


def state_of_text(text: str) -> JobState:
    """`CANCELLED by 1000` and a cut `OUT_OF_ME+` too. Raises `ValueError` where there is none."""
    words = text.split()
    if not words:
        raise ValueError("the state is empty")
    word = words[0].upper()
    name = word.rstrip("+")
    known = states()
    if name in known:
        return known[name]
    if word.endswith("+") and name:
        like = {state for state in known.values() if state.name.startswith(name)}
        if len(like) == 1:
            return like.pop()
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"the state reads {text[:40]!r}")
    return JobState(name, "other")


def state_of_list(names: Sequence[str]) -> JobState:
    """JSON gives a base state and flags: an end state stands, unless a flag says that the job went back."""
    if not names:
        raise ValueError("the state is empty")
    found = [state_of_text(name) for name in names]
    by_name = {state.name: state for state in found}
    if "PENDING" in by_name:
        return by_name["PENDING"]
    base = next((state for state in found if not state.flag and state.group != "other"), None)
    flags = sorted((state for state in found if state.flag), key=lambda state: state.group != "requeued")
    went_back = bool(flags) and flags[0].group == "requeued"
    if base is not None and base.group in _ENDED and not went_back:
        return base
    if flags:
        return flags[0]
    return base or found[0]
