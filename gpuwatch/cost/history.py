"""The ledger's lines in one fixed order, whatever the order in which they were handed in, by machine and by run.

Lines after `now` are left out: a report "as of" a moment knows only what had happened by then. A line written twice
counts once. Lines at the same nanosecond are ordered by kind and then by content, so that any permutation of the same
lines gives the same history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from gpuwatch.model.ledger import (
    REPAIRS,
    ActionStep,
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    EvidenceBack,
    EvidenceLost,
    FaultBlamed,
    FaultClosed,
    FaultOpened,
    HealthChanged,
    LedgerLine,
    LifecycleChanged,
    LifeEnded,
    LifeStarted,
    Maintenance,
    MemberLeft,
    NodeHeld,
    NodeLetGo,
    PhaseBegan,
    PhaseEnded,
    ProvenUp,
    RunClosed,
    SpareQuota,
    StepEnded,
    snap_ns,
)

AttemptKey = tuple[str, str]  # run, attempt
AttemptLine = StepEnded | PhaseBegan | PhaseEnded | EvidenceLost | EvidenceBack

# What is over comes before what begins at the same instant; of two words on one machine the graver one comes last.
_KIND = {
    kind: rank
    for rank, kind in enumerate(
        (LifeEnded, LifeStarted, PhaseEnded, StepEnded, PhaseBegan, EvidenceLost, EvidenceBack, MemberLeft, NodeLetGo)
    )
}
_LIFECYCLES = "provisioning validating in_service cordoned draining drained repairing replacing quarantined retired"
_HEALTHS = "healthy joining suspect unknown degraded driver_failed dead absent"
_GRAVER = {word: rank for words in (_LIFECYCLES, _HEALTHS) for rank, word in enumerate(words.split())}
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


@dataclass(slots=True)
class MachineHistory:
    """What one machine's own lines say."""

    life: list[LifeStarted | LifeEnded] = field(default_factory=list)
    lifecycle: list[LifecycleChanged] = field(default_factory=list)
    health: list[HealthChanged] = field(default_factory=list)
    maintenance: list[Maintenance] = field(default_factory=list)
    proven_up: list[ProvenUp] = field(default_factory=list)
    holds: list[NodeHeld | NodeLetGo] = field(default_factory=list)
    repairs: list[ActionStep] = field(default_factory=list)


@dataclass(slots=True)
class RunHistory:
    """What one run's own lines say."""

    started: list[AttemptStarted] = field(default_factory=list)
    ended: list[AttemptEnded] = field(default_factory=list)
    left: list[MemberLeft] = field(default_factory=list)
    steps: dict[str, list[AttemptLine]] = field(default_factory=lambda: defaultdict(list))  # by attempt
    saves: list[CheckpointSaved] = field(default_factory=list)
    closed: list[RunClosed] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """Every line that the partition needs, sorted."""

    machines: dict[str, MachineHistory]
    runs: dict[str, RunHistory]
    faults: list[FaultOpened | FaultBlamed | FaultClosed]
    first_actions: dict[str, list[int]]  # fault -> moments at which something was ordered or a node taken out for it
    quotas: list[SpareQuota]


def in_order(lines: Iterable[LedgerLine], now_unix_ns: int) -> list[LedgerLine]:
    """Lines up to `now`, each once, by (moment, kind, content)."""
    known = [line for line in lines if line.at_unix_ns <= now_unix_ns]
    known.sort(key=lambda line: line.at_unix_ns)
    ordered: list[LedgerLine] = []
    for _, together in groupby(known, key=lambda line: line.at_unix_ns):
        group = list(together)
        if len(group) > 1:
            keyed = sorted({(_rank(line), _encode(line)): line for line in group}.items(), key=lambda item: item[0])
            group = [line for _, line in keyed]
        ordered += group
    return ordered


def _rank(line: LedgerLine) -> tuple[int, int]:
    word = ""
    if isinstance(line, LifecycleChanged):
        word = line.lifecycle
    elif isinstance(line, HealthChanged):
        word = line.health
    return _KIND.get(type(line), len(_KIND)), _GRAVER.get(word, len(_GRAVER))


def arrange(lines: Sequence[LedgerLine], now_unix_ns: int) -> History:
    """Sort the lines and deal them out to their machine, run or fault."""
    machines: defaultdict[str, MachineHistory] = defaultdict(MachineHistory)
    runs: defaultdict[str, RunHistory] = defaultdict(RunHistory)
    history = History(machines=machines, runs=runs, faults=[], first_actions=defaultdict(list), quotas=[])
    for line in in_order(lines, now_unix_ns):
        match line:
            case StepEnded() | PhaseBegan() | PhaseEnded() | EvidenceLost() | EvidenceBack():
                runs[line.run].steps[line.attempt].append(line)
            case LifeStarted() | LifeEnded():
                machines[line.machine].life.append(line)
            case LifecycleChanged():
                machines[line.machine].lifecycle.append(line)
                if line.fault and line.lifecycle != "in_service":
                    history.first_actions[line.fault].append(snap_ns(line.at_unix_ns))
            case HealthChanged():
                machines[line.machine].health.append(line)
            case Maintenance():
                machines[line.machine].maintenance.append(line)
            case ProvenUp():
                machines[line.machine].proven_up.append(line)
            case NodeHeld() | NodeLetGo():
                machines[line.machine].holds.append(line)
            case AttemptStarted():
                runs[line.run].started.append(line)
            case AttemptEnded():
                runs[line.run].ended.append(line)
            case MemberLeft():
                runs[line.run].left.append(line)
            case CheckpointSaved():
                runs[line.run].saves.append(line)
            case RunClosed():
                runs[line.run].closed.append(line)
            case FaultOpened() | FaultBlamed() | FaultClosed():
                history.faults.append(line)
            case SpareQuota():
                history.quotas.append(line)
            case ActionStep():
                if line.fault:
                    history.first_actions[line.fault].append(snap_ns(line.at_unix_ns))
                if line.kind in REPAIRS or line.step in REPAIRS:
                    machines[line.machine].repairs.append(line)
            case _:  # notes, holds and human acts move no money
                pass
    return history
