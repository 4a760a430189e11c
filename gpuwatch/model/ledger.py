"""LEDGER. What is written down, append-only: the only memory of the past. Recovery, audit and cost read the same lines.

Each boundary is snapped once, when written, down to a multiple of 3,600 ns since 1970.
Words (attempt, member, held, phase, fault …) are those of `docs/money.md`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

TICK_NS = 3_600  # 10^-9 h
REPAIRS = frozenset(
    {"restart_service", "reset_gpu", "reboot", "power_cycle", "reimage", "repair", "validate", "burn_in"}
)
"""Names of an action or its step that count as a repair or a burn-in."""


def snap_ns(unix_ns: int) -> int:
    """The tick at or before this moment."""
    return unix_ns - unix_ns % TICK_NS


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="line"):
    at_unix_ns: int


class LifeStarted(_Line, frozen=True, kw_only=True, tag="life_started"):
    """A machine is billed from now on."""

    machine: str
    slot: str
    pool: str
    gpu_count: int
    provider: str = ""
    region: str = ""
    sku: str = ""
    price_kind: str = "ondemand"
    source: Literal["provider", "seen"] = "seen"  # seen: an estimate, from the first report
    fault: str | None = None  # it is the replacement of a faulty one: its provisioning carries that fault


class LifeEnded(_Line, frozen=True, kw_only=True, tag="life_ended"):
    """A machine is billed no more."""

    machine: str
    source: Literal["provider", "seen"] = "seen"


class LifecycleChanged(_Line, frozen=True, kw_only=True, tag="lifecycle"):
    """What is being done with a machine changed."""

    machine: str
    slot: str
    lifecycle: str
    because: str
    fault: str | None = None


class HealthChanged(_Line, frozen=True, kw_only=True, tag="health"):
    """A machine's health changed.

    `at` of `dead` and `driver_failed` is the earliest proof of the failure, without one the last proof of health; of
    every other health it is the moment of the verdict. So a `dead` may be written after a `suspect` and lie before it:
    `dead` therefore ends only with `healthy`, `joining` or `absent`, never with a weaker suspicion.
    """

    machine: str
    slot: str
    health: str
    because: str
    fault: str | None = None


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's share in an attempt: thousandths of one GPU, so 8 whole GPUs are 8000."""

    machine: str
    gpu_thousandths: int


class AttemptStarted(_Line, frozen=True, kw_only=True, tag="attempt_started"):
    """The scheduler started a job (no scheduler: the first heartbeat).

    Written again for the same attempt it adds members: with the first line's `at` they were there from the start, with
    a later `at` they joined then.
    """

    run: str
    attempt: str
    members: tuple[Member, ...]
    world_size: int | None = None
    team: str | None = None
    user: str | None = None
    expected_step_s: float | None = None  # configured; None: learn it
    tokens_per_step: int | None = None  # a change starts the learned step time afresh


class AttemptEnded(_Line, frozen=True, kw_only=True, tag="attempt_ended"):
    """The job ended there. `unplanned` ones have a fault."""

    run: str
    attempt: str
    ended: Literal["exit0", "planned", "unplanned"]
    cause: str = ""
    fault: str | None = None


class MemberLeft(_Line, frozen=True, kw_only=True, tag="member_left"):
    """One machine left a live attempt."""

    run: str
    attempt: str
    machine: str


class StepEnded(_Line, frozen=True, kw_only=True, tag="step_ended"):
    """The last rank finished this step. Steps between two recorded ones are spread evenly."""

    run: str
    attempt: str
    step: int


class PhaseBegan(_Line, frozen=True, kw_only=True, tag="phase_began"):
    """The last rank entered a phase that is no step."""

    run: str
    attempt: str
    phase: Literal["init", "checkpoint", "evaluate"]


class PhaseEnded(_Line, frozen=True, kw_only=True, tag="phase_ended"):
    """The last rank left that phase."""

    run: str
    attempt: str
    phase: Literal["init", "checkpoint", "evaluate"]
    resumed_step: int | None = None  # init: the last finished step of the state that was loaded; 0: from scratch


class EvidenceLost(_Line, frozen=True, kw_only=True, tag="evidence_lost"):
    """No reporting path of this attempt has spoken since `at`: what follows is unknown, no hang, until it is back."""

    run: str
    attempt: str


class EvidenceBack(_Line, frozen=True, kw_only=True, tag="evidence_back"):
    """A fresh report of this attempt arrived after such a silence, with or without progress."""

    run: str
    attempt: str


class CheckpointSaved(_Line, frozen=True, kw_only=True, tag="checkpoint_saved"):
    """A checkpoint of the state after `step` became durable on its last shard."""

    run: str
    attempt: str
    step: int
    suspect: bool = False


class RunClosed(_Line, frozen=True, kw_only=True, tag="run_closed"):
    """No attempt of this run will follow."""

    run: str
    how: Literal["exit0", "declared", "given_up"]


class NodeHeld(_Line, frozen=True, kw_only=True, tag="node_held"):
    """A machine is allocated to, or reserved for, an open run, until `NodeLetGo` or the run closes.

    Without it a machine is held only while it is a member of a live attempt, and nothing is `recovery` in between.
    """

    run: str
    machine: str
    gpu_thousandths: int | None = None  # a share; None: the run's own share there as a member, else the whole machine


class NodeLetGo(_Line, frozen=True, kw_only=True, tag="node_let_go"):
    """It no longer is."""

    run: str
    machine: str


class ProvenUp(_Line, frozen=True, kw_only=True, tag="proven_up"):
    """The machine's own records of the same boot show that it was up from `at` to `until`: it was never dead then."""

    machine: str
    until_unix_ns: int


class FaultOpened(_Line, frozen=True, kw_only=True, tag="fault_opened"):
    """Something failed. `at` is when it was detected."""

    fault: str
    kind: str
    onset_unix_ns: int
    cause: str
    because: str
    machine: str | None = None
    slot: str | None = None
    run: str | None = None
    pool: str = ""


class FaultBlamed(_Line, frozen=True, kw_only=True, tag="fault_blamed"):
    """The broken machine became known later. Moves no money."""

    fault: str
    machine: str
    because: str


class FaultClosed(_Line, frozen=True, kw_only=True, tag="fault_closed"):
    """The fault is over: repaired, replaced, recovered or given up."""

    fault: str
    because: str


class FaultNote(_Line, frozen=True, kw_only=True, tag="fault_note"):
    """One line of an incident's timeline."""

    fault: str
    text: str


class Maintenance(_Line, frozen=True, kw_only=True, tag="maintenance"):
    """A window announced beforehand; `at` is the announcement."""

    machine: str
    begin_unix_ns: int
    end_unix_ns: int


class SpareQuota(_Line, frozen=True, kw_only=True, tag="spare_quota"):
    """From now on this many free healthy nodes of the pool are spare by intention."""

    pool: str
    count: int


class ActionStep(_Line, frozen=True, kw_only=True, tag="action_step"):
    """One step of one action: intended before it happens, then done, failed or cancelled.

    A `kind` or `step` in `REPAIRS` turns a cordoned node's `draining` into `quarantine`, from its first `intended` on.
    """

    action_id: str
    kind: str
    step: str
    state: Literal["intended", "done", "failed", "cancelled"]
    slot: str
    machine: str
    fault: str
    because: str = ""


class HoldNoted(_Line, frozen=True, kw_only=True, tag="hold"):
    """Something was not done, and why. Written when it begins or its reason changes."""

    slot: str
    machine: str
    reason: str
    because: str
    fault: str = ""


class HumanAct(_Line, frozen=True, kw_only=True, tag="human_act"):
    """A person approved, held, cleared or ordered something."""

    who: str
    what: str
    subject: str


LedgerLine = (
    LifeStarted
    | LifeEnded
    | LifecycleChanged
    | HealthChanged
    | AttemptStarted
    | AttemptEnded
    | MemberLeft
    | StepEnded
    | PhaseBegan
    | PhaseEnded
    | EvidenceLost
    | EvidenceBack
    | CheckpointSaved
    | RunClosed
    | NodeHeld
    | NodeLetGo
    | ProvenUp
    | FaultOpened
    | FaultBlamed
    | FaultClosed
    | FaultNote
    | Maintenance
    | SpareQuota
    | ActionStep
    | HoldNoted
    | HumanAct
)
