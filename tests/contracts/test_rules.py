"""What every rule keeps to, whoever wrote it; and that a new one is one file plus its test."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gpuwatch.rules
from gpuwatch.decide.assess import assess, assess_fleet
from gpuwatch.decide.judge import judge
from gpuwatch.decide.planner import make_plan
from gpuwatch.model.evidence import Evidence, Finding, Unknown
from gpuwatch.model.facts.kernel_log import KernelLogFacts
from gpuwatch.model.facts.maintenance import MaintenanceFacts, Notice
from gpuwatch.model.plan import PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import Health
from gpuwatch.model.view import CloudSays, FleetView, GroupView, NodeView, SchedulerSays
from gpuwatch.registry import leaves
from gpuwatch.rules import FleetRule, Rule
from tests.fakes import T0, fleet_view, gpus, later, node_view, rank_view, run_view, source, with_nvml, xid_event
from tests.fakes_node import troubled_views

ALL: dict[str, Rule[Any] | FleetRule[Any]] = leaves(gpuwatch.rules, "RULE", Rule, FleetRule)
NODE = {name: rule for name, rule in ALL.items() if isinstance(rule, Rule)}
FLEET = {name: rule for name, rule in ALL.items() if isinstance(rule, FleetRule)}


def broken(code: int) -> tuple[Any, ...]:
    first, *rest = gpus()
    return (msgspec.structs.replace(first, error=code), *rest)


def announced() -> dict[str, Any]:
    """The cloud is about to reboot it."""
    notice = Notice("e1", "reboot", ends_work=True, started=False, mine=True, in_s=600.0)
    facts = {MaintenanceFacts: MaintenanceFacts("azure", (notice,))}
    return {"facts": facts, "sources": {"maintenance": source("maintenance")}}


def views() -> list[NodeView]:
    """Nodes of every kind of trouble, between them enough for every rule to speak."""
    plain = node_view()
    stalled = run_view(*[rank_view(n, "m-gpu01", moved_s=5000) for n in range(8)])
    return [
        plain,
        node_view(silent_s=60),
        with_nvml(plain, init_error=9, gpus=()),
        with_nvml(plain, init_error=12, gpus=(), driver_loaded=True),
        with_nvml(plain, init_error=18, gpus=()),
        with_nvml(plain, init_error=999, gpus=()),
        *(with_nvml(plain, gpus=broken(code)) for code in (4, 15, 16, 999)),
        with_nvml(plain, gpus=gpus(7)),
        with_nvml(plain, gpus=gpus(7), in_container=True),
        with_nvml(plain, gpus=gpus(recovery_action=1)),
        node_view(sources={"nvml": source("nvml", status="hung", reason="rm_ioctl")}, facts={}),
        replace(plain, events=(xid_event(79), xid_event(109, pci="0000:11:00"))),
        replace(plain, facts={KernelLogFacts: KernelLogFacts(readable=False)}),
        replace(plain, previous_boot="boot-0", boot_changed_monotonic_ns=later(T0, -5).monotonic_ns),
        replace(plain, cloud=CloudSays(state="failed", received_monotonic_ns=T0.monotonic_ns)),
        replace(plain, scheduler=SchedulerSays(state="down", received_monotonic_ns=T0.monotonic_ns)),
        replace(plain, run=stalled),
        replace(plain, facts={}, sources={}),
        replace(plain, expected_gpu_count=None),
        replace(plain, expected_gpu_count=0, facts={}, sources={}),
        replace(plain, **announced()),
        *troubled_views(),
    ]


def said(name: str, view: NodeView) -> tuple[Finding, ...]:
    return assess(view, T0, {name: (NODE[name], NODE[name].settings())})


@pytest.mark.parametrize("name", sorted(NODE))
def test_evidence_carries_the_files_own_name_and_gives_a_because(name: str) -> None:
    found = [finding for view in views() for finding in said(name, view)]
    assert any(isinstance(finding, Evidence) for finding in found), "no view here makes this rule speak: add one"
    assert {finding.rule for finding in found} == {name}
    assert all(finding.because and finding.subject.id for finding in found)


@pytest.mark.parametrize("name", sorted(NODE))
def test_a_rule_is_repeatable_and_changes_nothing(name: str) -> None:
    for view in views():
        before = pickle.dumps(view)
        first = said(name, view)
        assert first == said(name, view)
        assert first == said(name, copy.deepcopy(view))
        assert pickle.dumps(view) == before


@pytest.mark.parametrize("name", sorted(NODE))
def test_nobody_argues_for_health_and_only_another_path_argues_for_death(name: str) -> None:
    for finding in (finding for view in views() for finding in said(name, view)):
        if isinstance(finding, Evidence):
            assert finding.argues_for not in (Health.HEALTHY, Health.UNKNOWN, Health.JOINING)
            assert finding.argues_for is not Health.DEAD or finding.path != "agent"


@pytest.mark.parametrize("name", sorted(NODE))
def test_a_node_of_which_nothing_is_known_is_never_condemned(name: str) -> None:
    bare = node_view(facts={}, sources={}, expected_gpu_count=None)
    assert [finding for finding in said(name, bare) if isinstance(finding, Evidence)] == []


@pytest.mark.parametrize("name", sorted(ALL))
def test_settings_are_a_frozen_record_beside_the_rule_and_the_file_names_its_source(name: str) -> None:
    settings = ALL[name].settings
    assert issubclass(settings, msgspec.Struct)
    config = settings.__struct_config__
    assert config.frozen
    assert config.forbid_unknown_fields
    assert settings() == settings()  # every field has its usual value
    module = importlib.import_module(f"gpuwatch.rules.{name}")
    assert settings.__module__ == module.__name__
    assert len(module.__doc__ or "") > 80


@pytest.mark.parametrize("name", sorted(FLEET))
def test_a_fleet_rule_is_repeatable_and_silent_about_a_healthy_fleet(name: str) -> None:
    rules = {name: (FLEET[name], FLEET[name].settings())}
    nodes = tuple(node_view(f"gpu{n:02d}") for n in range(20))
    well = FleetView(nodes=nodes, started_monotonic_ns=0)
    verdicts = judge(well, {}, None, {}, T0).nodes
    assert assess_fleet(well, verdicts, T0, rules) == ()
    silent = replace(well, nodes=tuple(replace(node, last_report_monotonic_ns=0) for node in nodes))
    before = pickle.dumps(silent)
    assert assess_fleet(silent, verdicts, T0, rules) == assess_fleet(silent, verdicts, T0, rules)
    assert pickle.dumps(silent) == before


def test_a_rule_that_fails_by_itself_is_unknown_and_a_fleet_rule_that_fails_holds_everybody() -> None:
    def fails(*_: Any) -> Iterable[Any]:
        raise ZeroDivisionError("a bug")

    class Settings(msgspec.Struct, frozen=True):
        pass

    (found,) = assess(node_view(), T0, {"bad": (Rule(settings=Settings, examine=fails), Settings())})
    assert isinstance(found, Unknown)
    assert "ZeroDivisionError" in found.because
    fleet = fleet_view(node_view("a"), node_view("b"))
    (cause,) = assess_fleet(fleet, (), T0, {"bad": (FleetRule(settings=Settings, examine=fails), Settings())})
    assert cause.slots == ("a", "b")


NEW_RULE = '''
"""The node is too hot: an example of a new rule, longer than eighty characters so that its docstring says something."""

from __future__ import annotations

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit_celsius: int = 95


def examine(view: NodeView, now: Moment, settings: Settings) -> Evidence | None:
    hottest = max(gpu.temperature_celsius or 0 for gpu in view.fact(NvmlFacts).gpus)
    if hottest <= settings.limit_celsius:
        return None
    return Evidence(
        rule="too_hot",
        subject=Subject("machine", view.machine),
        argues_for=Health.DEGRADED,
        because=f"{hottest} degrees",
        action="drain_replace",
    )


RULE = Rule(needs=(NvmlFacts,), settings=Settings, examine=examine)
'''


def test_a_new_rule_is_one_file_and_changes_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped into the room it is found, asked, judged and planned with, by its file alone."""
    (tmp_path / "too_hot.py").write_text(NEW_RULE)
    monkeypatch.setattr(gpuwatch.rules, "__path__", [*gpuwatch.rules.__path__, str(tmp_path)])
    try:
        found: dict[str, Rule[Any] | FleetRule[Any]] = leaves(gpuwatch.rules, "RULE", Rule, FleetRule)
        assert found.keys() - ALL.keys() == {"too_hot"}
        rules = {name: (rule, rule.settings()) for name, rule in found.items() if isinstance(rule, Rule)}
        hot = with_nvml(node_view(), gpus=gpus(temperature_celsius=99))
        fleet = fleet_view(hot, groups=(GroupView(name="h100", owner="gpuwatch", target_count=1),))
        policies = {"h100": Policy(mode=Mode.REPLACE)}
        judgement = judge(fleet, {hot.machine: assess(hot, T0, rules)}, None, policies, T0)
        plan = make_plan(fleet, judgement, (), policies, PlanMemory(), T0)
    finally:
        sys.modules.pop("gpuwatch.rules.too_hot", None)
        if hasattr(gpuwatch.rules, "too_hot"):
            del gpuwatch.rules.too_hot
    (verdict,) = judgement.nodes
    assert (verdict.health, verdict.kind, verdict.because) == (Health.DEGRADED, "too_hot", "99 degrees")
    assert [(action.kind, action.cause) for action in plan.actions] == [("replace", "too_hot")]


@pytest.mark.parametrize("name", sorted(NODE))
def test_a_rule_says_why_it_matters_and_by_whom_it_is_known(name: str) -> None:
    rule = NODE[name]
    assert rule.matters, "one sentence for the person who reads the finding"
    assert not rule.matters.endswith(".")
    assert rule.source, "where in public it is known from"
    assert 10 < len(rule.title()) < 120, rule.title()
