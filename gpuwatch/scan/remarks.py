"""What is worth telling of one look: the rules' findings and the sources that gave no answer, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from gpuwatch.agent.answers import Latest
from gpuwatch.faults.nvml_codes import LIBRARY_NOT_FOUND
from gpuwatch.model.evidence import Evidence, Finding
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.states import SICK

Level = Literal["ok", "warning", "critical", "unknown"]
WORST_FIRST: tuple[Level, ...] = ("critical", "warning", "unknown")


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know, with the rule or source that says it."""

    level: Level
    rule: str
    subject: str
    because: str
    action: str = "none"
    conclusive: bool = False  # may take this node out of service on this one look, without a second witness or look


def worst(remarks: Iterable[Remark]) -> Level:
    """The worst level among them: critical before warning before unknown."""
    levels = {remark.level for remark in remarks}
    return next((level for level in WORST_FIRST if level in levels), "ok")


def remarks(findings: Sequence[Finding], answers: Sequence[Latest], expected_gpus: int | None) -> tuple[Remark, ...]:
    """Everything, the worst first."""
    told = [*_none_of(expected_gpus, answers), *_of_rules(findings, answers), *_of_sources(answers)]
    return tuple(sorted(told, key=lambda remark: (WORST_FIRST.index(remark.level), remark.rule, remark.subject)))


def _of_rules(findings: Sequence[Finding], answers: Sequence[Latest]) -> list[Remark]:
    absent = any(answer.facts is None for answer in answers)
    told: list[Remark] = []
    facts = next((answer.facts for answer in answers if isinstance(answer.facts, NvmlFacts)), None)
    without = facts is not None and facts.init_error == LIBRARY_NOT_FOUND  # a reboot installs nothing
    for finding in findings:
        subject = f"{finding.subject.kind} {finding.subject.id}"
        if isinstance(finding, Evidence):
            sick = finding.argues_for in SICK and not finding.soft
            told.append(
                Remark(
                    level="critical" if sick else "warning",
                    rule=finding.rule,
                    subject=subject,
                    because=finding.because,
                    action="install_driver" if without and finding.rule == "driver_not_loaded" else finding.action,
                    conclusive=sick and finding.conclusive and not finding.must_last,
                )
            )
        elif not (absent and "Facts from" in finding.because):  # said once, by the source that gave none
            told.append(Remark(level="unknown", rule=finding.rule, subject=subject, because=finding.because))
    return told


def _none_of(expected_gpus: int | None, answers: Sequence[Latest]) -> list[Remark]:
    """Who says how many GPUs must be here is not told "all well" on a node that shows neither GPU nor driver."""
    absent = [answer for answer in answers if answer.collector == "nvml" and answer.status == "unsupported"]
    if not expected_gpus or not absent:
        return []
    because = f"0 of {expected_gpus} GPUs: {absent[0].reason or 'NVML is not there'}"
    return [
        Remark(
            level="critical",
            rule="gpu_missing",
            subject="source nvml",
            because=because,
            action="check_machine",
        )
    ]


def _of_sources(answers: Sequence[Latest]) -> list[Remark]:
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
