"""True for every fleet: the safety envelope, the witnesses, and that nothing is forgotten."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuwatch.rules
from gpuwatch.decide.assess import assess, assess_fleet
from gpuwatch.decide.inspector import inspect
from gpuwatch.decide.judge import judge
from gpuwatch.decide.limits import allowed_out
from gpuwatch.decide.planner import make_plan
from gpuwatch.model.evidence import Evidence, Finding, SharedCause, Subject
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Done, Plan, PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.run import RunView
from gpuwatch.model.states import OUT, SICK, Health, Lifecycle
from gpuwatch.model.verdict import Judgement
from gpuwatch.model.view import CloudSays, FleetView, GroupView, NodeView, SchedulerSays
from gpuwatch.registry import leaves
from gpuwatch.rules import FleetRule, Rule
from tests.fakes import T0, S, evidence, fleet_view, later, node_view, rank_view, run_view, source

ALL: dict[str, Rule[Any] | FleetRule[Any]] = leaves(gpuwatch.rules, "RULE", Rule, FleetRule)
RULES = {name: (rule, rule.settings()) for name, rule in ALL.items() if isinstance(rule, Rule)}
FLEET_RULES = {name: (rule, rule.settings()) for name, rule in ALL.items() if isinstance(rule, FleetRule)}

SAID = T0.monotonic_ns
UNIT = "nvidia-fabricmanager.service"
SCHEDULER = [
    None,
    SchedulerSays(state="idle", received_monotonic_ns=SAID),
    SchedulerSays(state="down", received_monotonic_ns=SAID),
    SchedulerSays(state="down", received_monotonic_ns=SAID - 3600 * S),
    SchedulerSays(state="drained", received_monotonic_ns=SAID, drain_owner="foreign", reason="bob"),
    SchedulerSays(state="drained", received_monotonic_ns=SAID, drain_owner="gpuwatch", reason="gpuwatch: x"),
]
CLOUD = [
    None,
    CloudSays(state="running", received_monotonic_ns=SAID),
    CloudSays(state="failed", received_monotonic_ns=SAID),
    CloudSays(state="failed", received_monotonic_ns=SAID - 3600 * S),
    CloudSays(state="gone", received_monotonic_ns=SAID, absent_because="scaled_in"),
    CloudSays(state="gone", received_monotonic_ns=SAID),
]
EVIDENCE: list[dict[str, Any] | None] = [
    None,
    None,
    None,
    {},
    {"software": True},
    {"soft": True, "cause": "driver_mismatch", "software": True},
    {"must_last": 60.0},
    {"conclusive": False},
    {"argues_for": Health.DEGRADED, "action": "contact_support", "cause": "nvml_8"},
    {"event_id": "e1", "cause": "xid_79", "action": "drain_replace", "data_suspect": True},
    {"argues_for": Health.SUSPECT},
    {"argues_for": Health.DEGRADED, "action": "reset_gpu", "subject": Subject("gpu", "GPU-3"), "cause": "xid_48"},
    {"service": UNIT, "software": True},
]
HANDS = HandsFacts("b", "n", 1, 0, units=(UNIT,), may_reset_gpu=True, may_reboot=True, keys=("key",))
HAS_HANDS = [
    None,
    HANDS,
    HANDS,
    msgspec.structs.replace(HANDS, may_reset_gpu=False),
    msgspec.structs.replace(HANDS, keys=()),
    msgspec.structs.replace(HANDS, refuses="HOLD"),
]


@dataclass(frozen=True)
class Case:
    """Everything that a plan is made of."""

    fleet: FleetView
    findings: dict[str, tuple[Finding, ...]]
    policies: dict[str, Policy]
    memory: PlanMemory

    def __repr__(self) -> str:
        """Short enough to read when a property fails."""
        nodes = ", ".join(
            f"{v.slot}[{v.pool} {v.domain} {v.lifecycle.value} {v.silent_s(T0.monotonic_ns)} s "
            f"cloud={v.cloud and v.cloud.state} sched={v.scheduler and (v.scheduler.state, v.scheduler.drain_owner)} "
            f"gpus={v.expected_gpu_count} run={v.run is not None} {self.findings.get(v.machine)}]"
            for v in self.fleet.nodes
        )
        rest = (self.fleet.groups, self.fleet.blind_because, self.fleet.started_monotonic_ns)
        return f"Case({nodes}, {rest}, {self.policies}, {self.memory})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def judged(self, now: Moment = T0, before: Judgement | None = None) -> Judgement:
        found = {
            view.machine: assess(view, now, RULES) + self.findings.get(view.machine, ()) for view in self.fleet.nodes
        }
        return judge(self.fleet, found, before, self.policies, now)

    def shared(self, judgement: Judgement, now: Moment = T0) -> tuple[SharedCause, ...]:
        return assess_fleet(self.fleet, judgement.nodes, now, FLEET_RULES, self.policies)

    def plan(self, judgement: Judgement, now: Moment = T0) -> Plan:
        return make_plan(self.fleet, judgement, self.shared(judgement, now), self.policies, self.memory, now)


@st.composite
def nodes(draw: st.DrawFn, number: int) -> NodeView:
    view = node_view(
        f"gpu{number:02d}",
        silent_s=draw(st.sampled_from([1, 1, 1, 14, 16, 60, 9000])),
        lifecycle=draw(st.sampled_from([Lifecycle.IN_SERVICE] * 6 + list(Lifecycle))),
        scheduler=draw(st.sampled_from(SCHEDULER)),
        cloud=draw(st.sampled_from(CLOUD)),
        pool=draw(st.sampled_from(["h100", "h100", "a100"])),
        domain=draw(st.sampled_from(["", "rack1", "rack2"])),
        expected_gpu_count=draw(st.sampled_from([8, 8, 8, None, 0])),
    )
    hands = draw(st.sampled_from(HAS_HANDS))
    if hands is None:
        return view
    said = source("hands", later(T0, -draw(st.sampled_from([1, 200]))))
    return dataclasses.replace(view, facts={**view.facts, HandsFacts: hands}, sources={**view.sources, "hands": said})


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    return Policy(
        mode=draw(st.sampled_from([Mode.REPLACE, Mode.REPLACE, *Mode])),
        max_nodes_out=draw(st.integers(0, 4)),
        max_out_ratio=draw(st.sampled_from([0.0, 0.05, 0.25, 1.0])),
        max_out_per_domain=draw(st.integers(0, 2)),
        cool_down_s=draw(st.sampled_from([0.0, 600.0])),
        job_action=draw(st.sampled_from(["wait", "requeue"])),
        shared_cause_nodes=draw(st.integers(2, 5)),
        software_fault=draw(st.sampled_from(["replace", "reimage", "reimage"])),
        reimage_again_s=draw(st.sampled_from([600.0, 604_800.0])),
        many_silent_ratio=draw(st.sampled_from([0.34, 1.0])),
        local_repair=draw(st.sampled_from([(), ("reboot",), ("restart_service", "reset_gpu", "reboot")])),
        repair_again_s=draw(st.sampled_from([600.0, 86_400.0])),
    )


@st.composite
def actions(draw: st.DrawFn, slot: str) -> Done:
    started = later(T0, -draw(st.sampled_from([5, 700, 5000])))
    return Done(
        action_id=f"old-{draw(st.integers(0, 99))}-{slot}",
        kind=draw(
            st.sampled_from(
                ["drain", "replace", "reimage", "repair", "repair", "restart_job", "resume", "ask_approval"]
            )
        ),
        slot=slot,
        machine=f"m-{slot}",
        cause=draw(st.sampled_from(["probe_hung", "xid_79", "run_stalled:opt"])),
        fault=draw(st.sampled_from(["F1", f"driver_failed-{slot}-{T0.unix_ns // S}"])),
        started_unix_ns=started.unix_ns,
        started_monotonic_ns=draw(st.sampled_from([started.monotonic_ns, None])),
        ended=draw(st.booleans()),
        order=draw(st.sampled_from(["restart_service", "reset_gpu", "reboot"])),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    views = [draw(nodes(number)) for number in range(draw(st.integers(1, 10)))]
    runs: tuple[RunView, ...] = ()
    if draw(st.booleans()) and len(views) > 2:
        moved_s = draw(st.sampled_from([1, 700, 9000]))
        ranks = [rank_view(n, view.machine, moved_s=moved_s) for n, view in enumerate(views[:3])]
        run = run_view(*ranks, checkpoint_step=draw(st.sampled_from([None, 5, 99])), checkpoint_every_steps=100)
        views[:3] = [dataclasses.replace(view, run=run) for view in views[:3]]
        runs = (run,)
    owner = draw(st.sampled_from(["gpuwatch", "gpuwatch", "aks"]))
    can = draw(st.booleans())
    groups = tuple(GroupView(name=pool, owner=owner, target_count=9, reimages=can) for pool in ("h100", "a100"))
    fleet = fleet_view(
        *views,
        runs=runs,
        groups=groups if draw(st.integers(0, 4)) else (),
        blind_because=draw(st.sampled_from(["", "", "", "", "disk full"])),
        started_monotonic_ns=T0.monotonic_ns - draw(st.sampled_from([10, 3600, 9_999])) * S,
        order_key=draw(st.sampled_from(["key", "key", ""])),
    )
    findings: dict[str, tuple[Finding, ...]] = {}
    for view in views:
        changes = draw(st.sampled_from(EVIDENCE))
        if changes is not None:
            findings[view.machine] = (evidence("probe_hung", view.machine, **changes),)
    memory = PlanMemory(
        actions=tuple(draw(actions(view.slot)) for view in views if draw(st.integers(0, 5)) == 0),
        approved=tuple(
            f"{kind}-F{v.slot}-1" for kind in ("replace", "reimage", "repair") for v in views if draw(st.booleans())
        ),
        faults={view.machine: f"F{view.slot}" for view in views if draw(st.booleans())},
        human_holds={view.slot: "ada" for view in views if draw(st.integers(0, 9)) == 0},
        hold_everything=draw(st.sampled_from(["", "", "", "", "HOLD"])),
    )
    return Case(fleet, findings, {"h100": draw(policies()), "a100": draw(policies())}, memory)


EVERY = settings(max_examples=150, deadline=None)


@EVERY
@given(case=cases())
def test_every_sick_node_is_acted_on_or_held_with_a_because(case: Case) -> None:
    judgement = case.judged()
    plan = case.plan(judgement)
    sick = {verdict.machine for verdict in judgement.nodes if verdict.health in SICK}
    acted = Counter(action.machine for action in plan.actions if action.kind != "restart_job" and not action.run)
    held = Counter(hold.machine for hold in plan.holds if not hold.slot.startswith("run:"))
    for machine in sick:
        assert acted[machine] + held[machine] == 1
    assert all(hold.because and hold.reason for hold in plan.holds)
    assert all(action.because and action.fault for action in plan.actions)


@EVERY
@given(case=cases())
def test_never_more_out_than_policy_allows(case: Case) -> None:
    judgement = case.judged()
    plan = case.plan(judgement)
    absent = {verdict.machine for verdict in judgement.nodes if verdict.health is Health.ABSENT}
    for pool, policy in case.policies.items():
        mine = [v for v in case.fleet.nodes if v.pool == pool]
        counted = [
            v
            for v in mine
            if v.expected_gpu_count != 0 and v.lifecycle is not Lifecycle.RETIRED and v.machine not in absent
        ]
        out_now = {v.slot for v in counted if v.lifecycle in OUT}
        newly_out = {a.slot for a in plan.actions if a.pool == pool and a.takes_out} - out_now
        if newly_out:
            assert len(out_now | newly_out) <= allowed_out(policy, len({v.slot for v in counted}))
            domains = Counter(v.domain for v in mine if v.slot in out_now | newly_out and v.domain)
            touched = {v.domain for v in mine if v.slot in newly_out and v.domain}
            assert all(domains[domain] <= policy.max_out_per_domain for domain in touched)
            assert policy.mode in (Mode.APPROVE, Mode.DRAIN, Mode.REPLACE)


@EVERY
@given(case=cases())
def test_the_inspector_finds_nothing_and_the_same_inputs_give_the_same_plan(case: Case) -> None:
    judgement = case.judged()
    plan = case.plan(judgement)
    assert plan == case.plan(case.judged())
    shared = case.shared(judgement)
    objections = inspect(plan, case.fleet, judgement, shared, case.policies, case.memory, T0)
    assert objections == (), plan.actions


@EVERY
@given(case=cases())
def test_only_a_node_that_speaks_and_has_nothing_but_software_against_it_is_reimaged(case: Case) -> None:
    judgement = case.judged()
    verdicts = {verdict.machine: verdict for verdict in judgement.nodes}
    views = {view.machine: view for view in case.fleet.nodes}
    for action in case.plan(judgement).actions:
        if action.kind == "reimage":
            assert verdicts[action.machine].health is Health.DRIVER_FAILED
            against = [e for e in verdicts[action.machine].evidence if e.argues_for in SICK]
            assert all(e.software for e in against), against
            assert (views[action.machine].silent_s(T0.monotonic_ns) or 0) <= 15
            assert case.policies[action.pool].software_fault == "reimage"


@EVERY
@given(case=cases())
def test_only_hands_that_allow_it_are_told_to_mend_and_no_rung_twice(case: Case) -> None:
    views = {view.machine: view for view in case.fleet.nodes}
    for action in case.plan(case.judged()).actions:
        if action.kind == "repair":
            policy, hands = case.policies[action.pool], views[action.machine].fact(HandsFacts)
            assert action.order in policy.local_repair
            assert case.fleet.order_key in hands.keys
            assert not hands.refuses
            assert hands.may_reset_gpu or action.order != "reset_gpu"
            assert policy.mode in (Mode.APPROVE, Mode.REPLACE)
            tried = [done for done in case.memory.actions if done.slot == action.slot and done.kind == "repair"]
            recent = [done for done in tried if done.started_unix_ns > T0.unix_ns - policy.repair_again_s * S]
            assert action.order not in {done.order for done in recent}


@EVERY
@given(case=cases())
def test_nobody_is_dead_on_silence_alone(case: Case) -> None:
    for verdict in case.judged().nodes:
        if verdict.health is Health.DEAD:
            dead = [e for e in verdict.evidence if e.argues_for is Health.DEAD]
            assert len({e.path for e in dead}) >= 2 or any(e.conclusive for e in dead)
            assert case.fleet.blind_because == ""


@EVERY
@given(case=cases())
def test_healthy_needs_a_fresh_report_and_nothing_against_it(case: Case) -> None:
    views = {view.machine: view for view in case.fleet.nodes}
    for verdict in case.judged().nodes:
        if verdict.health is Health.HEALTHY:
            view = views[verdict.machine]
            assert (view.silent_s(T0.monotonic_ns) or 0) <= 15
            assert not verdict.unknowns
            assert all(not isinstance(f, Evidence) for f in case.findings.get(view.machine, ()))


@EVERY
@given(case=cases(), which=st.integers(0, 9), what=st.sampled_from(["facts", "sources", "reports"]))
def test_missing_never_makes_a_node_healthier(case: Case, which: int, what: str) -> None:
    bare: dict[str, Any] = {
        "facts": {"facts": {}},
        "sources": {"sources": {}},
        "reports": {"last_report_monotonic_ns": None},
    }
    view = case.fleet.nodes[which % len(case.fleet.nodes)]
    stripped = dataclasses.replace(view, **bare[what])
    views = tuple(stripped if other is view else other for other in case.fleet.nodes)
    less = dataclasses.replace(case, fleet=dataclasses.replace(case.fleet, nodes=views))
    verdict = next(v for v in less.judged().nodes if v.machine == view.machine)
    if view.expected_gpu_count != 0 or what == "reports":
        assert verdict.health is not Health.HEALTHY


@EVERY
@given(case=cases(), step_s=st.sampled_from([-3600, 3600]))
def test_a_step_of_the_wall_clock_gives_the_same_plan(case: Case, step_s: int) -> None:
    before = case.judged()
    now = later(T0, 1)
    stepped = Moment(now.unix_ns + step_s * S, now.monotonic_ns)
    usual, other = case.judged(now, before), case.judged(stepped, before)
    assert [(v.health, v.cause) for v in usual.nodes] == [(v.health, v.cause) for v in other.nodes]
    plans = [msgspec.structs.replace(case.plan(j, m), at_unix_ns=0) for j, m in ((usual, now), (other, stepped))]
    assert [(a.action_id, a.kind) for a in plans[0].actions] == [(a.action_id, a.kind) for a in plans[1].actions]
    assert [(h.slot, h.reason) for h in plans[0].holds] == [(h.slot, h.reason) for h in plans[1].holds]


@settings(max_examples=60, deadline=None)
@given(case=cases(), minutes=st.integers(1, 600))
def test_all_agents_cut_off_for_however_long_takes_nobody_out(case: Case, minutes: int) -> None:
    """Cloud and scheduler go on saying that all is well, or say nothing."""
    calm = [
        dataclasses.replace(
            view,
            last_report_monotonic_ns=T0.monotonic_ns - minutes * 60 * S,
            cloud=CLOUD[1] if view.cloud else None,
            scheduler=SCHEDULER[1] if view.scheduler else None,
        )
        for view in case.fleet.nodes
    ]
    cut = dataclasses.replace(case, fleet=dataclasses.replace(case.fleet, nodes=tuple(calm)), findings={})
    judgement = cut.judged()
    assert not {v.health for v in judgement.nodes} & SICK
    assert cut.plan(judgement).actions == ()
