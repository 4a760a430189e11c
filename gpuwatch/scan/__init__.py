"""One look at this node, with no server and no settings: every source once, all at the same time, then the rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import gpuwatch.rules
from gpuwatch.agent.answers import Latest
from gpuwatch.agent.child import Processes
from gpuwatch.agent.identity import Identity
from gpuwatch.clock import Clock
from gpuwatch.collectors import Collector
from gpuwatch.decide.assess import assess
from gpuwatch.model.evidence import Evidence
from gpuwatch.model.facts.kernel_log import KernelEvent
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Lifecycle
from gpuwatch.model.view import NodeView, Source
from gpuwatch.registry import leaves
from gpuwatch.rules import FleetRule, Rule
from gpuwatch.scan.remarks import Level, Remark, remarks, worst
from gpuwatch.scan.sources import Sources

__all__ = ["DEADLINE_S", "EXIT_CODES", "Level", "Look", "Remark", "look", "node_rules"]

DEADLINE_S = 8.0  # for all sources together; an interpreter and the driver's library start within it
EXIT_CODES: dict[Level, int] = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was seen in one look."""

    slot: str
    machine: str
    boot_id: str
    at_unix_ns: int
    statement: str  # the GPUs in one sentence
    remarks: tuple[Remark, ...]
    sources: tuple[Latest, ...]  # facts decoded
    events: tuple[KernelEvent, ...]

    def level(self) -> Level:
        """The worst remark."""
        return worst(self.remarks)


def look(
    identity: Identity,
    doors: Mapping[str, Collector[Any]],
    settings: Mapping[str, Any],
    *,
    clock: Clock,
    processes: Processes,
    state_dir: Path,
    expected_gpus: int | None = None,
    deadline_s: float = DEADLINE_S,
    partial: bool = False,
) -> Look:
    """Look once. `settings`: of each collector that is on. `state_dir`: where an agent keeps its probe's record.
    `partial`: only some sources were asked for, so that what a rule lacks is no finding."""
    sources = Sources(identity, doors, clock=clock, processes=processes, state=state_dir)
    answers, events = sources.read(settings, deadline_s)
    now = Moment(clock.unix_ns(), clock.monotonic_ns())
    view = _view(identity, answers, events, doors, now, expected_gpus)
    looked_at = {doors[name].facts for name in settings}
    rules = {name: (rule, rule.settings()) for name, rule in node_rules().items() if looked_at.issuperset(rule.needs)}
    findings = assess(view, now, rules)
    if partial:  # who asks for one source alone knows that the others were not looked at
        findings = tuple(finding for finding in findings if isinstance(finding, Evidence))
    return Look(
        slot=identity.slot,
        machine=identity.machine,
        boot_id=identity.boot_id,
        at_unix_ns=now.unix_ns,
        statement=statement(answers),
        remarks=remarks(findings, answers, expected_gpus),
        sources=tuple(answers),
        events=tuple(events),
    )


def node_rules() -> dict[str, Rule[Any]]:
    """Every rule about one node."""
    found = leaves(gpuwatch.rules, "RULE", Rule, FleetRule)
    return {name: rule for name, rule in found.items() if isinstance(rule, Rule)}


def statement(answers: list[Latest]) -> str:
    """The GPUs of this node in one plain sentence."""
    nvml = next((answer for answer in answers if answer.collector == "nvml"), None)
    if nvml is None:
        return "GPUs were not looked at"
    if nvml.status == "unsupported":
        return nvml.reason or "no NVIDIA GPU or driver on this node"
    facts = nvml.facts
    if nvml.status != "ok" or not isinstance(facts, NvmlFacts):
        return f"the NVIDIA driver could not be asked ({nvml.status}): {nvml.reason}"
    if facts.init_error is not None:
        return f"the NVIDIA driver refuses to start: {nvml.gaps.get('gpus', facts.init_error)}"
    usable = sum(gpu.error is None for gpu in facts.gpus)
    on_bus = "" if facts.pci_gpu_count is None else f", {facts.pci_gpu_count} on the PCI bus"
    return f"{usable} of {len(facts.gpus)} GPUs answer{on_bus}, driver {facts.driver_version or 'version not told'}"


def _view(
    identity: Identity,
    answers: list[Latest],
    events: list[KernelEvent],
    doors: Mapping[str, Collector[Any]],
    now: Moment,
    expected_gpus: int | None,
) -> NodeView:
    facts = {doors[answer.collector].facts: answer.facts for answer in answers if answer.facts is not None}
    nvml = facts.get(NvmlFacts)
    unsupported = any(answer.collector == "nvml" and answer.status == "unsupported" for answer in answers)
    if expected_gpus is None:
        on_bus = nvml.pci_gpu_count if nvml is not None and not nvml.in_container else None
        expected_gpus = 0 if unsupported else on_bus
    return NodeView(
        slot=identity.slot,
        machine=identity.machine,
        boot=identity.boot_id,
        pool="scan",
        lifecycle=Lifecycle.IN_SERVICE,
        expected_gpu_count=expected_gpus,
        last_report_monotonic_ns=now.monotonic_ns,
        last_report_unix_ns=now.unix_ns,
        first_seen_monotonic_ns=now.monotonic_ns,
        facts=facts,
        sources={
            answer.collector: Source(
                collector=answer.collector,
                status=answer.status,
                received_monotonic_ns=now.monotonic_ns,
                at_unix_ns=answer.at_unix_ns,
                took_s=answer.took_s,
                reason=answer.reason or answer.gaps.get("events"),
                since_unix_ns=answer.since_unix_ns,
                abandoned_count=answer.abandoned_count,
            )
            for answer in answers
        },
        events=tuple(event for event in events if event.boot_id in ("", identity.boot_id)),
    )
