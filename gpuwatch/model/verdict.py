"""VERDICT. What is concluded about one node, from all evidence and all witnesses."""

from __future__ import annotations

import msgspec

from gpuwatch.model.evidence import Evidence, Unknown
from gpuwatch.model.states import Health


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One node's state, why, and since when."""

    slot: str
    machine: str
    health: Health
    because: str  # one sentence
    evidence: tuple[Evidence, ...] = ()
    unknowns: tuple[Unknown, ...] = ()
    since_unix_ns: int = 0  # when this health began to be concluded
    since_monotonic_ns: int = 0
    onset_unix_ns: int | None = None  # earliest proof of the failure itself
    kind: str = ""  # incident kind: node_dead | driver_failed | gpu_lost | xid | gpu_missing | run_stalled | …
    cause: str = ""  # see Evidence.cause_key
    action: str = "none"  # first rung of the repair ladder that the evidence asks for
    soft: bool = False
    data_suspect: bool = False
    pending: dict[str, int] = {}  # evidence that must last: its key -> when it was first seen (monotonic ns)
    software: bool = False  # it speaks, and all that is said against it is of what is installed, not of a board


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is concluded about one live attempt that makes no progress."""

    run: str
    attempt: str
    kind: str  # run_stalled
    because: str
    onset_unix_ns: int  # last proof of progress plus one usual step
    since_unix_ns: int
    since_monotonic_ns: int
    suspects: tuple[str, ...] = ()  # machines of the ranks that stand out; empty: nobody stands out
    explained_by: str = ""  # machine whose own failure explains the stall; then it is no incident of its own
    machines: tuple[str, ...] = ()


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Everything concluded in one tick."""

    nodes: tuple[Verdict, ...]
    runs: tuple[RunVerdict, ...] = ()
