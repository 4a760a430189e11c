"""Rules of slow sources are asked when their facts are told; what they said stands until then."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuwatch.aggregator.examiner import Examiner
from gpuwatch.model.evidence import Evidence, Finding, Subject
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule
from tests.fakes import T0, node_view


class Settings(msgspec.Struct, frozen=True):
    """Nothing to set."""


class Asked:
    """A rule that counts how often it is asked, and says so."""

    def __init__(self, name: str, *watches: type) -> None:
        self.name, self.times = name, 0
        self.rule: Rule[Any] = Rule(examine=self.examine, settings=Settings, watches=watches)

    def examine(self, view: NodeView, now: Moment, settings: Settings) -> Finding:
        self.times += 1
        return Evidence(
            rule=self.name, subject=Subject("machine", "m"), argues_for=Health.SUSPECT, because=f"time {self.times}"
        )


@pytest.mark.parametrize(
    ("told", "times"),
    [((), (1, 0, 0)), (("nvml",), (1, 0, 1)), (("host", "training"), (1, 1, 1)), (("nvml", "host"), (1, 1, 1))],
)
def test_only_rules_of_what_was_told_are_asked(told: tuple[str, ...], times: tuple[int, int, int]) -> None:
    rules = [Asked("all"), Asked("host_alone", HostFacts), Asked("both", HostFacts, NvmlFacts)]
    examiner = Examiner({asked.name: (asked.rule, Settings()) for asked in rules})
    first = examiner.findings(node_view(), T0, told, None)
    assert [(f.rule, f.because) for f in first] == [(asked.name, "time 1") for asked in rules]
    second = examiner.findings(node_view(), T0, told, first)
    assert tuple(asked.times - 1 for asked in rules) == times
    assert {f.rule: f.because for f in second} == {asked.name: f"time {asked.times}" for asked in rules}
    assert len(second) == 3


def test_another_boot_asks_everything() -> None:
    slow = Asked("slow", HostFacts)
    examiner = Examiner({"slow": (slow.rule, Settings())})
    found = examiner.findings(node_view(), T0, (), None)
    for _ in range(5):
        found = examiner.findings(node_view(), T0, ("nvml",), found)
    assert slow.times == 1
    examiner.findings(node_view(), T0, ("nvml",), None)
    assert slow.times == 2


def test_a_set_of_names_that_nobody_knows_costs_bounded_memory() -> None:
    examiner = Examiner({"slow": (Asked("slow", HostFacts).rule, Settings())})
    for number in range(3_000):
        examiner.findings(node_view(), T0, (f"x{number}",), ())
    assert len(examiner._choices) <= 1_000
