"""One look at this node, with no server and no settings: every source once, each with its deadline, then the rules."""

from __future__ import annotations

import select
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

import gpuwatch.rules
from gpuwatch.agent.answers import Latest
from gpuwatch.agent.book import Book
from gpuwatch.agent.child import Processes
from gpuwatch.agent.frames import Unpacker
from gpuwatch.agent.identity import Identity
from gpuwatch.agent.inline import Inline
from gpuwatch.clock import Clock
from gpuwatch.collectors import Collector
from gpuwatch.decide.assess import assess
from gpuwatch.errors import ProbeError
from gpuwatch.model.evidence import Evidence, Finding
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import SICK, Lifecycle
from gpuwatch.model.view import NodeView, Source
from gpuwatch.registry import leaves
from gpuwatch.rules import FleetRule, Rule

NS = 10**9
START_S = 10.0  # an interpreter and the driver's library, on a node in trouble
MOST_EVENT_ROUNDS = 200  # a long log comes in pieces
Level = Literal["ok", "warning", "critical", "unknown"]
EXIT_CODES: dict[Level, int] = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know, with the rule or source that says it."""

    level: Level
    rule: str
    subject: str
    because: str
    action: str = "none"


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
        """The worst remark: critical before warning before unknown."""
        levels = {remark.level for remark in self.remarks}
        order: tuple[Level, ...] = ("critical", "warning", "unknown")
        return next((level for level in order if level in levels), "ok")


def look(
    identity: Identity,
    doors: Mapping[str, Collector[Any]],
    settings: Mapping[str, Any],
    *,
    clock: Clock,
    processes: Processes,
    state_dir: Path,
    expected_gpus: int | None = None,
) -> Look:
    """Look once. `settings`: of each collector that is on. `state_dir`: where an agent keeps its probe's record."""
    answers: list[Latest] = []
    events: list[KernelEvent] = []
    for name, its_settings in settings.items():
        door = doors[name]
        if door.can_hang:
            answers.append(_in_child(name, door, its_settings, clock, processes, Book(state_dir, name), identity))
        else:
            answer, more = _in_thread(name, door, its_settings, clock)
            answers.append(answer)
            events += more
    now = Moment(clock.unix_ns(), clock.monotonic_ns())
    view = _view(identity, answers, events, doors, now, expected_gpus)
    findings = assess(view, now, _rules())
    return Look(
        slot=identity.slot,
        machine=identity.machine,
        boot_id=identity.boot_id,
        at_unix_ns=now.unix_ns,
        statement=statement(answers),
        remarks=(*_none_of(expected_gpus, answers), *_remarks(findings, answers), *_about_sources(answers)),
        sources=tuple(answers),
        events=tuple(events),
    )


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


def _in_child(
    name: str,
    door: Collector[Any],
    settings: Any,
    clock: Clock,
    processes: Processes,
    book: Book,
    identity: Identity,
) -> Latest:
    at_unix_ns = clock.unix_ns()
    record = book.read()
    if (
        record is not None
        and record.boot_id == identity.boot_id
        and record.killed
        and processes.is_alive(record.pid, record.start_ticks)
    ):
        # The agent has a child there that cannot be killed: another one would be stuck beside it.
        return Latest(
            collector=name,
            status="hung",
            at_unix_ns=at_unix_ns,
            reason=record.reason,
            since_unix_ns=record.since_unix_ns,
            abandoned_count=1,
        )
    child = processes.start(name, settings)
    unpacker = Unpacker()
    deadline_s = float(getattr(settings, "deadline_s", door.deadline_s))
    until_ns = clock.monotonic_ns() + int((START_S + deadline_s) * NS)
    try:
        while (left_s := (until_ns - clock.monotonic_ns()) / NS) > 0:
            select.select([child], [], [], left_s)
            for frame in unpacker.feed(child.read()):
                facts = msgspec.msgpack.decode(frame.facts, type=door.facts) if frame.status == "ok" else None
                return Latest(
                    collector=name,
                    status=frame.status,
                    at_unix_ns=frame.at_unix_ns,
                    took_s=frame.took_s,
                    reason=frame.reason,
                    facts=facts,
                    gaps=frame.gaps,
                )
            if (code := child.exit_code()) is not None:
                why = f"its probe ended with code {code}"
                return Latest(collector=name, status="failed", at_unix_ns=at_unix_ns, reason=why)
        doing = child.doing()
        where = f" in {doing}" if doing else ""
        reason = f"no answer for more than {START_S + deadline_s:g} s{where}; child {child.waits_for()}"
        child.kill()  # once, and not waited for
        return Latest(collector=name, status="hung", at_unix_ns=at_unix_ns, reason=reason, since_unix_ns=at_unix_ns)
    except ProbeError as error:
        child.kill()
        return Latest(collector=name, status="failed", at_unix_ns=at_unix_ns, reason=error.what)
    finally:
        child.let_go()


def _in_thread(name: str, door: Collector[Any], settings: Any, clock: Clock) -> tuple[Latest, list[KernelEvent]]:
    answered = threading.Event()
    source = Inline(name, door, settings, clock=clock, wake=answered.set)
    events: list[KernelEvent] = []

    def keep(facts: Any) -> None:
        if isinstance(facts, KernelLogFacts):
            events.extend(facts.events)

    source.on_facts = keep
    answer: Latest | None = None
    quiet = 0  # readings without an event: one may end what was half told, so a log is read until two are
    has_events = "events" in door.facts.__struct_fields__  # type: ignore[attr-defined]
    for _ in range(MOST_EVENT_ROUNDS if has_events else 1):
        before = len(events)
        answered.clear()
        source.readable(Moment(clock.unix_ns(), clock.monotonic_ns()))
        answered.wait(door.deadline_s)
        source.tick(Moment(clock.unix_ns(), clock.monotonic_ns()))
        answer = source.latest()
        quiet = quiet + 1 if len(events) == before and not source.behind else 0
        if answer is None or answer.status != "ok" or quiet == 2:
            break
    source.close()
    if answer is None:
        reason = f"no answer for more than {door.deadline_s:g} s"
        answer = Latest(collector=name, status="hung", at_unix_ns=clock.unix_ns(), reason=reason)
    return answer, events


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


def _rules() -> dict[str, tuple[Rule[Any], Any]]:
    """Every rule about one node, with its usual settings."""
    found = leaves(gpuwatch.rules, "RULE", Rule, FleetRule)
    return {name: (rule, rule.settings()) for name, rule in found.items() if isinstance(rule, Rule)}


def _remarks(findings: tuple[Finding, ...], answers: list[Latest]) -> list[Remark]:
    absent = any(answer.facts is None for answer in answers)
    remarks: list[Remark] = []
    for finding in findings:
        subject = f"{finding.subject.kind} {finding.subject.id}"
        if isinstance(finding, Evidence):
            level: Level = "critical" if finding.argues_for in SICK and not finding.soft else "warning"
            remarks.append(
                Remark(level=level, rule=finding.rule, subject=subject, because=finding.because, action=finding.action)
            )
        elif not (absent and "Facts from" in finding.because):  # said once, by the source that gave none
            remarks.append(Remark(level="unknown", rule=finding.rule, subject=subject, because=finding.because))
    order: tuple[Level, ...] = ("critical", "warning", "unknown")
    return sorted(remarks, key=lambda remark: (order.index(remark.level), remark.rule, remark.subject))


def _none_of(expected_gpus: int | None, answers: list[Latest]) -> list[Remark]:
    """Who says how many GPUs must be here is not told "all well" on a node that shows neither GPU nor driver."""
    absent = [answer for answer in answers if answer.collector == "nvml" and answer.status == "unsupported"]
    if not expected_gpus or not absent:
        return []
    because = f"0 of {expected_gpus} GPUs: {absent[0].reason or 'NVML is not there'}"
    return [Remark(level="critical", rule="gpu_missing", subject="source nvml", because=because, action="reboot")]


def _about_sources(answers: list[Latest]) -> list[Remark]:
    """A source that could not be read is unknown, never well. Its hanging driver is the rules' to judge."""
    return [
        Remark(
            level="unknown",
            rule=answer.collector,
            subject=f"source {answer.collector}",
            because=f"{answer.status}: {answer.reason or 'no reason told'}",
        )
        for answer in answers
        if answer.status == "failed" or (answer.status == "hung" and answer.collector != "nvml")
    ]
