"""A fresh disk for what a fresh disk can cure, once; another machine for everything else."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

import gpuwatch.rules
from gpuwatch.decide.assess import assess
from gpuwatch.decide.inspector import inspect
from gpuwatch.decide.judge import judge
from gpuwatch.decide.planner import make_plan
from gpuwatch.faults.nvml_codes import DRIVER_NOT_LOADED, UNKNOWN_ERROR, VERSION_MISMATCH
from gpuwatch.model.plan import Action, Done, Plan, PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.verdict import Judgement, Verdict
from gpuwatch.model.view import CloudSays, FleetView, GroupView, NodeView, SchedulerSays
from gpuwatch.registry import leaves
from gpuwatch.rules import FleetRule, Rule
from tests.fakes import T0, evidence, fleet_view, gpus, later, node_view, source, with_nvml, xid_event

GROUP = GroupView(name="h100", owner="gpuwatch", target_count=1, reimages=True)
POLICY = Policy(mode=Mode.REPLACE, software_fault="reimage", driver_grace_s=0.0)
ALL = leaves(gpuwatch.rules, "RULE", Rule, FleetRule)
RULES = {name: (rule, rule.settings()) for name, rule in ALL.items() if isinstance(rule, Rule)}


def sick(view: NodeView, **changes: Any) -> Verdict:
    usual: dict[str, Any] = {
        "slot": view.slot,
        "machine": view.machine,
        "health": Health.DRIVER_FAILED,
        "because": "the driver is not loaded",
        "evidence": (evidence("driver_not_loaded", view.machine, software=True),),
        "kind": "driver_failed",
        "cause": "driver_not_loaded",
        "action": "reboot",
        "software": True,
    }
    return Verdict(**(usual | changes))


def done(kind: str = "reimage", ago_s: float = 7200.0, **changes: Any) -> Done:
    started = later(T0, -ago_s)
    usual: dict[str, Any] = {
        "action_id": "old",
        "kind": kind,
        "slot": "gpu01",
        "machine": "m-gpu01",
        "cause": "driver_not_loaded",
        "fault": "f0",
        "started_unix_ns": started.unix_ns,
        "started_monotonic_ns": started.monotonic_ns,
        "ended": True,
        "outcome": "done",
    }
    return Done(**(usual | changes))


class Case:
    """One node with a software fault in a pool that wants it reimaged, and the rest of twenty."""

    def __init__(self, *past: Done, policy: Policy = POLICY, group: GroupView = GROUP, **verdict: Any) -> None:
        self.view = node_view("gpu01")
        self.policy, self.group, self.past, self.verdict = policy, group, past, verdict

    def inputs(self) -> tuple[FleetView, Judgement, dict[str, Policy], PlanMemory]:
        others = [node_view(f"w{n:02d}") for n in range(19)]
        fleet = fleet_view(self.view, *others, groups=(self.group,))
        well = [Verdict(slot=o.slot, machine=o.machine, health=Health.HEALTHY, because="well") for o in others]
        judgement = Judgement(nodes=(sick(self.view, **self.verdict), *well))
        return fleet, judgement, {"h100": self.policy}, PlanMemory(actions=self.past)

    def action(self) -> Action:
        fleet, judgement, policies, memory = self.inputs()
        plan = make_plan(fleet, judgement, (), policies, memory, T0)
        assert inspect(plan, fleet, judgement, (), policies, memory, T0) == ()
        (found,) = plan.actions
        return found

    def objections(self, action: Action) -> str:
        fleet, judgement, policies, memory = self.inputs()
        plan = Plan(at_unix_ns=T0.unix_ns, actions=(action,))
        return "; ".join(o.because for o in inspect(plan, fleet, judgement, (), policies, memory, T0))


def test_a_fault_of_what_is_installed_is_reimaged_where_the_policy_says_so() -> None:
    action = Case().action()
    assert (action.kind, action.takes_out, action.cause) == ("reimage", True, "driver_not_loaded")
    assert "fresh system disk" in action.because


@pytest.mark.parametrize(
    ("case", "words"),
    [
        pytest.param(Case(policy=Policy(mode=Mode.REPLACE)), "", id="by-default-it-is-replaced"),
        pytest.param(Case(software=False), "", id="not-of-software"),
        pytest.param(Case(group=msgspec.structs.replace(GROUP, reimages=False)), "cloud cannot", id="cloud-cannot"),
        pytest.param(Case(done()), "was reimaged 7200 s ago", id="sick-again-after-a-reimage"),
        pytest.param(Case(done(cause="probe_hung")), "was reimaged", id="another-software-fault-after-a-reimage"),
        pytest.param(Case(done(outcome="failed")), "could not be reimaged", id="the-reimage-failed"),
        pytest.param(Case(done(started_monotonic_ns=None)), "was reimaged", id="before-our-start-it-is-recent"),
    ],
)
def test_else_it_is_replaced(case: Case, words: str) -> None:
    action = case.action()
    assert action.kind == "replace"
    assert words in action.because


@pytest.mark.parametrize(
    "past",
    [
        pytest.param(done(ago_s=604_801.0), id="long-ago"),
        pytest.param(done(outcome="cancelled"), id="it-was-not-needed"),
        pytest.param(done(machine="m-before"), id="another-machine-of-this-slot"),
        pytest.param(done(kind="drain"), id="only-drained"),
    ],
)
def test_what_does_not_count_as_a_reimage_of_it(past: Done) -> None:
    assert Case(past).action().kind == "reimage"


def test_a_person_is_asked_for_the_reimage_itself() -> None:
    action = Case(policy=msgspec.structs.replace(POLICY, mode=Mode.APPROVE)).action()
    assert action.kind == "ask_approval"
    assert action.because.startswith("may we reimage it?")
    assert action.action_id.startswith("ask-reimage-")


def test_a_foreign_group_is_drained_and_not_reimaged() -> None:
    assert Case(group=msgspec.structs.replace(GROUP, owner="aks")).action().kind == "drain"


def test_a_soft_fault_lets_its_jobs_end_first() -> None:
    case = Case(soft=True)
    assert case.action().kind == "drain"
    ours = SchedulerSays(state="drained", received_monotonic_ns=0, drain_owner="gpuwatch")
    case.view = dataclasses.replace(case.view, lifecycle=Lifecycle.DRAINED, scheduler=ours)
    assert case.action().kind == "reimage"


@pytest.mark.parametrize(
    ("case", "why"),
    [
        pytest.param(Case(policy=Policy(mode=Mode.REPLACE)), "reimages nothing", id="policy"),
        pytest.param(Case(group=msgspec.structs.replace(GROUP, reimages=False)), "cloud reimages nothing", id="cloud"),
        pytest.param(Case(done()), "not long ago", id="again"),
        pytest.param(Case(evidence=(evidence(machine="m-gpu01"),)), "not all", id="hardware"),
        pytest.param(Case(evidence=()), "not all", id="no-evidence"),
        pytest.param(Case(health=Health.DEGRADED), "no fresh disk", id="degraded"),
    ],
)
def test_the_inspector_sees_it_by_itself(case: Case, why: str) -> None:
    good = Case().action()
    assert Case().objections(good) == ""
    assert why in case.objections(good)


def test_the_inspector_wants_it_to_speak() -> None:
    case, good = Case(), Case().action()
    case.view = node_view("gpu01", silent_s=60)
    assert "does not speak" in case.objections(good)


def judged(view: NodeView) -> Verdict:
    before = None
    for moment in (T0, later(T0, 0.001)):
        view = dataclasses.replace(view, last_report_monotonic_ns=moment.monotonic_ns)
        before = judge(fleet_view(view), {view.machine: assess(view, moment, RULES)}, before, {"h100": POLICY}, moment)
    assert before is not None
    return before.nodes[0]


def hung(**changes: Any) -> NodeView:
    wedged = source("nvml", status="hung", reason="nvmlInit", **changes)
    return node_view(sources={"nvml": wedged, "kernel_log": source("kernel_log")}, facts={})


@pytest.mark.parametrize(
    ("view", "software"),
    [
        pytest.param(with_nvml(node_view(), init_error=DRIVER_NOT_LOADED, gpus=()), True, id="not-loaded"),
        pytest.param(with_nvml(node_view(), init_error=VERSION_MISMATCH, gpus=()), True, id="mismatch"),
        pytest.param(hung(), True, id="wedged"),
        pytest.param(with_nvml(node_view(), init_error=UNKNOWN_ERROR, gpus=()), False, id="the-driver-cannot-say"),
        pytest.param(dataclasses.replace(hung(), events=(xid_event(79),)), False, id="wedged-and-a-GPU-off-the-bus"),
        pytest.param(
            dataclasses.replace(
                with_nvml(node_view(), init_error=VERSION_MISMATCH, gpus=()),
                events=(xid_event(48, action="reset_gpu"),),
            ),
            False,
            id="mismatch-and-a-memory-error",
        ),
        pytest.param(with_nvml(node_view(), gpus=gpus(recovery_action=2)), False, id="the-driver-wants-a-reboot"),
        pytest.param(
            dataclasses.replace(
                hung(), cloud=CloudSays(state="failed", received_monotonic_ns=T0.monotonic_ns, because="host fault")
            ),
            False,
            id="wedged-and-the-cloud-says-failed",
        ),
        pytest.param(
            dataclasses.replace(
                hung(), scheduler=SchedulerSays(state="down", received_monotonic_ns=later(T0, -3600).monotonic_ns)
            ),
            False,
            id="wedged-and-the-scheduler-said-down-long-ago",
        ),
    ],
)
def test_what_is_of_software(view: NodeView, software: bool) -> None:
    verdict = judged(view)
    assert verdict.health in (Health.DRIVER_FAILED, Health.DEGRADED)
    assert verdict.software is software


def test_silence_during_a_reimage_is_ours() -> None:
    down = SchedulerSays(state="down", received_monotonic_ns=T0.monotonic_ns)
    stopped = CloudSays(state="stopped", received_monotonic_ns=T0.monotonic_ns, absent_because="powered_down")
    for silent_s, health in ((600, Health.SUSPECT), (1000, Health.DEAD)):
        view = node_view(silent_s=silent_s, lifecycle=Lifecycle.REPAIRING, scheduler=down, cloud=stopped)
        found = {view.machine: assess(view, T0, RULES)}
        (verdict,) = judge(fleet_view(view), found, None, {"h100": POLICY}, T0).nodes
        assert (verdict.health, view.silent_s(T0.monotonic_ns)) == (health, silent_s)
