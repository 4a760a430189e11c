"""Messy ledgers for property tests: attempts that overlap, ends that are missing, members nobody knows, any order."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from gpuwatch.model.ledger import (
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
    Member,
    MemberLeft,
    NodeHeld,
    NodeLetGo,
    PhaseBegan,
    PhaseEnded,
    ProvenUp,
    RunClosed,
    SpareQuota,
    StepEnded,
)
from gpuwatch.model.money import BillRow
from tests.ledgers import HOUR_ZERO, MINUTE

NOW = HOUR_ZERO + 300 * MINUTE

moments = st.builds(
    lambda minute, odd: HOUR_ZERO + minute * MINUTE + odd,
    st.integers(min_value=0, max_value=310),  # some lie after `now`
    st.sampled_from([0, 0, 0, 1, 3599, 3600, 7_777_777, 59_999_999_999]),
)
machines = st.sampled_from(["m1", "m2", "m3", "m4"])
members = st.sampled_from(["m1", "m2", "m3", "m4", "stranger"])
runs = st.sampled_from(["r1", "r2"])
attempts = st.sampled_from(["a1", "a2", "a3"])
faults = st.sampled_from(["F1", "F2", "F3"])
maybe_fault = st.one_of(st.none(), faults)
steps = st.integers(min_value=0, max_value=40)
phases = st.sampled_from(["init", "checkpoint", "evaluate"])
healths = st.sampled_from(["healthy", "healthy", "joining", "suspect", "unknown", "degraded", "driver_failed", "dead"])
lifecycles = st.sampled_from(
    ["in_service", "in_service", "cordoned", "draining", "drained", "repairing", "replacing", "validating", "retired"]
)
shares = st.sampled_from([8000, 8000, 4000, 1, 0, 6001])

life_lines: st.SearchStrategy[LedgerLine] = st.one_of(
    st.builds(
        LifeStarted,
        at_unix_ns=moments,
        machine=machines,
        slot=machines,
        pool=st.sampled_from(["p", "q"]),
        gpu_count=st.sampled_from([8, 8, 0, 3]),
        provider=st.just("azure"),
        region=st.just("eastus"),
        sku=st.sampled_from(["ND96asr_v4", "ND96amsr_A100_v4", "no such machine"]),
        source=st.sampled_from(["provider", "seen"]),
        fault=maybe_fault,
    ),
    st.builds(LifeEnded, at_unix_ns=moments, machine=machines, source=st.sampled_from(["provider", "seen"])),
    st.builds(
        HealthChanged,
        at_unix_ns=moments,
        machine=machines,
        slot=machines,
        health=st.just("absent"),
        because=st.just(""),
    ),
)
"""Lines that say how much was billed."""

evidence_lines: st.SearchStrategy[LedgerLine] = st.one_of(
    st.builds(
        HealthChanged,
        at_unix_ns=moments,
        machine=machines,
        slot=machines,
        health=healths,
        because=st.just(""),
        fault=maybe_fault,
    ),
    st.builds(
        LifecycleChanged,
        at_unix_ns=moments,
        machine=machines,
        slot=machines,
        lifecycle=lifecycles,
        because=st.just(""),
        fault=maybe_fault,
    ),
    st.builds(
        AttemptStarted,
        at_unix_ns=moments,
        run=runs,
        attempt=attempts,
        members=st.lists(st.builds(Member, machine=members, gpu_thousandths=shares), max_size=4).map(tuple),
        team=st.sampled_from([None, "red", "blue"]),
        expected_step_s=st.sampled_from([None, None, 60.0, 0.5]),
    ),
    st.builds(
        AttemptEnded,
        at_unix_ns=moments,
        run=runs,
        attempt=attempts,
        ended=st.sampled_from(["exit0", "planned", "unplanned", "unplanned"]),
        cause=st.sampled_from(["", "numerical"]),
        fault=maybe_fault,
    ),
    st.builds(MemberLeft, at_unix_ns=moments, run=runs, attempt=attempts, machine=members),
    st.builds(StepEnded, at_unix_ns=moments, run=runs, attempt=attempts, step=steps),
    st.builds(StepEnded, at_unix_ns=moments, run=runs, attempt=attempts, step=steps),
    st.builds(PhaseBegan, at_unix_ns=moments, run=runs, attempt=attempts, phase=phases),
    st.builds(
        PhaseEnded,
        at_unix_ns=moments,
        run=runs,
        attempt=attempts,
        phase=phases,
        resumed_step=st.one_of(st.none(), steps),
    ),
    st.builds(EvidenceLost, at_unix_ns=moments, run=runs, attempt=attempts),
    st.builds(EvidenceBack, at_unix_ns=moments, run=runs, attempt=attempts),
    st.builds(CheckpointSaved, at_unix_ns=moments, run=runs, attempt=attempts, step=steps, suspect=st.booleans()),
    st.builds(RunClosed, at_unix_ns=moments, run=runs, how=st.sampled_from(["exit0", "declared", "given_up"])),
    st.builds(
        NodeHeld, at_unix_ns=moments, run=runs, machine=machines, gpu_thousandths=st.sampled_from([None, None, 4000])
    ),
    st.builds(NodeLetGo, at_unix_ns=moments, run=runs, machine=machines),
    st.builds(
        FaultOpened,
        at_unix_ns=moments,
        fault=faults,
        kind=st.sampled_from(["node_dead", "straggler", "run_stalled"]),
        onset_unix_ns=moments,
        cause=st.sampled_from(["", "xid_79"]),
        because=st.just(""),
        machine=st.one_of(st.none(), machines),
        run=st.one_of(st.none(), runs),
    ),
    st.builds(FaultBlamed, at_unix_ns=moments, fault=faults, machine=machines, because=st.just("")),
    st.builds(FaultClosed, at_unix_ns=moments, fault=faults, because=st.just("")),
    st.builds(Maintenance, at_unix_ns=moments, machine=machines, begin_unix_ns=moments, end_unix_ns=moments),
    st.builds(ProvenUp, at_unix_ns=moments, machine=machines, until_unix_ns=moments),
    st.builds(SpareQuota, at_unix_ns=moments, pool=st.sampled_from(["p", "q"]), count=st.integers(0, 3)),
    st.builds(
        ActionStep,
        at_unix_ns=moments,
        action_id=st.just("x"),
        kind=st.sampled_from(["reboot", "drain"]),
        step=st.just("s"),
        state=st.just("intended"),
        slot=machines,
        machine=machines,
        fault=st.sampled_from(["", "F1"]),
    ),
)
"""Lines that say what the billed time was: they may move money, and never change the total."""


def _opening() -> list[LedgerLine]:
    lines: list[LedgerLine] = []
    for machine in ("m1", "m2", "m3"):
        lines.append(
            LifeStarted(
                at_unix_ns=HOUR_ZERO,
                machine=machine,
                slot=machine,
                pool="p",
                gpu_count=8,
                provider="azure",
                region="eastus",
                sku="ND96asr_v4",
                source="provider",
            )
        )
        lines.append(
            LifecycleChanged(at_unix_ns=HOUR_ZERO, machine=machine, slot=machine, lifecycle="in_service", because="")
        )
        lines.append(HealthChanged(at_unix_ns=HOUR_ZERO, machine=machine, slot=machine, health="healthy", because=""))
        lines.append(NodeHeld(at_unix_ns=HOUR_ZERO, run="r1", machine=machine))
    return lines


def story(seed: int) -> list[LedgerLine]:
    """A run that might have been: attempts that step, save, break and come back on three machines."""
    chance = random.Random(seed)
    lines: list[LedgerLine] = []
    minute, step, saved = chance.choice([0, 3]), 0, 0
    each = chance.choice([1, 2, 3])
    for number in range(chance.randint(1, 4)):
        attempt = f"a{number + 1}"
        gang = tuple(Member(machine=f"m{i}", gpu_thousandths=8000) for i in range(1, chance.choice([3, 4])))
        own: dict[str, Any] = {"run": "r1", "attempt": attempt}

        def at(minutes: float, own: int = minute) -> int:
            return HOUR_ZERO + int((own + minutes) * MINUTE) + chance.choice([0, 0, 1, 1_234_567])

        lines.append(AttemptStarted(at_unix_ns=at(0), members=gang, expected_step_s=each * 60.0, **own))
        lines.append(PhaseBegan(at_unix_ns=at(0), phase="init", **own))
        went = chance.choice([1, 5])
        if chance.random() < 0.2:  # it never gets as far as a step
            minute += went + chance.randint(1, 9)
            lines.append(AttemptEnded(at_unix_ns=at(went + 1), ended="unplanned", fault=None, **own))
            continue
        lines.append(PhaseEnded(at_unix_ns=at(went), phase="init", resumed_step=saved, **own))
        step = saved
        for _ in range(chance.randint(0, 12)):
            length = each * chance.choice([1, 1, 1, 1, 1.02, 2])
            went += length  # type: ignore[assignment]
            step += 1
            if chance.random() < 0.8:
                lines.append(StepEnded(at_unix_ns=at(went), step=step, **own))
            if chance.random() < 0.2:
                kind: Any = chance.choice(["checkpoint", "evaluate"])
                lines.append(PhaseBegan(at_unix_ns=at(went), phase=kind, **own))
                went += 2
                lines.append(PhaseEnded(at_unix_ns=at(went), phase=kind, **own))
                if kind == "checkpoint":
                    saved = step
                    lines.append(CheckpointSaved(at_unix_ns=at(went), step=step, suspect=chance.random() < 0.1, **own))
        how: Any = chance.choice(["unplanned", "unplanned", "unplanned", "planned", "exit0", "live"])
        fault = f"F{number % 3 + 1}"
        if how == "unplanned":
            machine = f"m{chance.randint(1, 3)}"
            lines.append(
                FaultOpened(
                    at_unix_ns=at(went + 4),
                    fault=fault,
                    kind="node_dead",
                    onset_unix_ns=at(went + 0.5),
                    cause="xid_79",
                    because="",
                    machine=chance.choice([machine, None]),
                    run="r1",
                )
            )
            if chance.random() < 0.6:
                broken = {"machine": machine, "slot": machine, "because": "", "fault": fault}
                lines.append(HealthChanged(at_unix_ns=at(went + 0.5), health="dead", **broken))
                lines.append(LifecycleChanged(at_unix_ns=at(went + 4), lifecycle="cordoned", **broken))
                if chance.random() < 0.5:
                    lines.append(HealthChanged(at_unix_ns=at(went + 20), health="healthy", **broken))
                    lines.append(LifecycleChanged(at_unix_ns=at(went + 20), lifecycle="in_service", **broken))
        if how != "live":
            named = fault if how == "unplanned" and chance.random() < 0.7 else None
            lines.append(AttemptEnded(at_unix_ns=at(went + 5), ended=how, fault=named, **own))
        minute += int(went) + chance.choice([4, 5, 9, 15])
    return lines


evidence = st.lists(evidence_lines, max_size=12)
nothing: st.SearchStrategy[list[LedgerLine]] = st.just([])
lives = st.one_of(nothing, st.lists(life_lines, max_size=6))
stories = st.builds(
    lambda seed, dropped: [line for i, line in enumerate(story(seed)) if i % 23 not in dropped],
    st.integers(0, 10**6),
    st.one_of(st.just(frozenset()), st.frozensets(st.integers(0, 22), max_size=4)),
)
ledgers = st.builds(
    lambda some, told, more: [*_opening(), *some, *told, *more],
    lives,
    stories,
    st.one_of(nothing, evidence),
)
"""Three machines that live and a run that holds them, a story with lines missing, then whatever comes."""

bills = st.lists(
    st.builds(
        lambda machine, begin, length, ticks, cents, kind, is_open, extra: BillRow(
            machine=machine,
            period_start_unix_ns=begin,
            period_end_unix_ns=begin + length * 30 * MINUTE,
            quantity_ticks=ticks,
            cost_usd=Decimal(cents).scaleb(-2),
            kind=kind,
            open=is_open,
            quantity_hours=Decimal(ticks).scaleb(-9) + Decimal(extra).scaleb(-11) if ticks else None,
        ),
        st.sampled_from(["m1", "m2", "m4", "orphan", ""]),
        moments,
        st.integers(0, 6),
        st.sampled_from([0, 1, 500_000_000, 1_000_000_000, 583_333_333, 4_000_000_000, -250_000_000]),
        st.integers(-500, 99_999),
        st.sampled_from(["usage", "usage", "usage", "shared", "unused_commitment", "tax"]),
        st.booleans(),
        st.integers(-40, 40),
    ),
    max_size=8,
)
