"""RUNS as the thinking rooms see them now: one gang, its ranks, its progress."""

from __future__ import annotations

import msgspec

from gpuwatch.model.facts.training import Beat
from gpuwatch.model.ledger import Member
from gpuwatch.model.moment import Moment


class Sighting(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rank's record as the aggregator received it."""

    machine: str
    slot: str
    beat: Beat
    received: Moment


class JobFact(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt as the scheduler tells it, with its slots already turned into machines."""

    run: str
    attempt: str
    state: str  # pending | running | ended
    members: tuple[Member, ...] = ()
    started_unix_ns: int | None = None
    ended_unix_ns: int | None = None
    ended: str = ""  # exit0 | planned | unplanned, once ended
    cause: str = ""
    team: str | None = None
    user: str | None = None
    suspended: bool = False  # it stands still by somebody's order: no stall


class RankView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rank's latest record, and when it last moved."""

    rank: int
    machine: str
    slot: str
    step: int | None
    phase: str
    alive: bool | None
    received_monotonic_ns: int  # when the aggregator last received a record of this rank, moved or not
    moved_monotonic_ns: int  # when the aggregator last received a record that differed
    step_end_unix_ns: int | None = None
    phase_start_unix_ns: int | None = None
    step_s: float | None = None
    still_s: float = 0.0  # for how long its own node has read this same record, by the node's clock


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One live attempt of a run. `step` is the gang's: finished by the last rank."""

    run: str
    attempt: str
    machines: tuple[str, ...]
    ranks: tuple[RankView, ...]
    world_size: int
    step: int | None
    phase: str
    moved_monotonic_ns: int  # last progress of the gang
    step_end_unix_ns: int | None = None
    usual_step_s: float | None = None  # learned; None before enough steps
    usual_phase_s: float | None = None  # usual length of the phase it is in
    checkpoint_step: int | None = None
    checkpoint_unix_ns: int | None = None
    team: str | None = None
    user: str | None = None
    checkpoint_every_steps: int | None = None  # learned; None before two saves
