"""A planner with a bug must be caught: every plan here is wrong in one way, and the inspector says in which."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gpuwatch.decide.inspector import inspect
from gpuwatch.decide.planner import make_plan
from gpuwatch.model.evidence import SharedCause, Subject
from gpuwatch.model.plan import Action, Done, Plan, PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.verdict import Judgement, RunVerdict, Verdict
from gpuwatch.model.view import FleetView, GroupView, SchedulerSays
from tests.fakes import T0, S, evidence, fleet_view, later, node_view


def dead_evidence(machine: str) -> tuple[Any, ...]:
    return tuple(
        evidence(rule, machine, argues_for=Health.DEAD, path=path, conclusive=False)
        for rule, path in (("agent_silent", "agent"), ("machine_gone", "cloud"))
    )


@dataclass
class World:
    """Sixty nodes: one dead, one with a failed driver, one well again under our drain; and a stalled run."""

    fleet: FleetView = field(init=False)
    judgement: Judgement = field(init=False)
    shared: tuple[SharedCause, ...] = ()
    policies: dict[str, Policy] = field(init=False)
    memory: PlanMemory = field(init=False)

    def __post_init__(self) -> None:
        ours = SchedulerSays(state="drained", received_monotonic_ns=0, drain_owner="gpuwatch")
        nodes = [node_view("dead", silent_s=600), node_view("hung"), node_view("well")]
        nodes[2] = dataclasses.replace(nodes[2], scheduler=ours, lifecycle=Lifecycle.DRAINED)
        nodes += [node_view(f"w{n:02d}") for n in range(57)]
        group = GroupView(name="h100", owner="gpuwatch", target_count=60)
        self.fleet = fleet_view(*nodes, groups=(group,))
        verdicts = [self._verdict(view.slot) for view in nodes]
        stall = RunVerdict(
            run="opt",
            attempt="opt.1",
            kind="run_stalled",
            because="stands still",
            onset_unix_ns=0,
            since_unix_ns=0,
            since_monotonic_ns=0,
            machines=("m-w01", "m-w02"),
        )
        self.judgement = Judgement(nodes=tuple(verdicts), runs=(stall,))
        self.policies = {"h100": Policy(mode=Mode.REPLACE, max_nodes_out=3, job_action="requeue")}
        self.memory = PlanMemory(actions=(self.past("drain", "well"),))

    def _verdict(self, slot: str) -> Verdict:
        common: dict[str, Any] = {"slot": slot, "machine": f"m-{slot}", "because": "because"}
        if slot == "dead":
            common |= {"health": Health.DEAD, "kind": "node_dead", "cause": "node_dead", "action": "drain_replace"}
            return Verdict(**common, evidence=dead_evidence("m-dead"))
        if slot == "hung":
            common |= {
                "health": Health.DRIVER_FAILED,
                "kind": "driver_failed",
                "cause": "probe_hung",
                "action": "reboot",
            }
            return Verdict(**common, evidence=(evidence(machine="m-hung"),))
        return Verdict(**common, health=Health.HEALTHY)

    @staticmethod
    def past(kind: str, slot: str, ago_s: float = 9000, **changes: Any) -> Done:
        started = later(T0, -ago_s)
        usual: dict[str, Any] = {
            "action_id": f"{kind}-{slot}-{ago_s}",
            "kind": kind,
            "slot": slot,
            "machine": f"m-{slot}",
            "cause": "probe_hung",
            "fault": "old",
            "started_unix_ns": started.unix_ns,
            "started_monotonic_ns": started.monotonic_ns,
            "ended": True,
        }
        return Done(**(usual | changes))

    def plan(self) -> Plan:
        return make_plan(self.fleet, self.judgement, self.shared, self.policies, self.memory, T0)

    def objections(self, plan: Plan) -> list[str]:
        found = inspect(plan, self.fleet, self.judgement, self.shared, self.policies, self.memory, T0)
        return [objection.because for objection in found]


def test_the_right_plan_passes() -> None:
    world = World()
    plan = world.plan()
    assert sorted((action.kind, action.slot) for action in plan.actions) == [
        ("replace", "dead"),
        ("replace", "hung"),
        ("restart_job", "run:opt"),
        ("resume", "well"),
    ]
    assert world.objections(plan) == []


def changed(plan: Plan, where: str, **changes: Any) -> Plan:
    actions = tuple(msgspec.structs.replace(a, **changes) if a.slot == where else a for a in plan.actions)
    return msgspec.structs.replace(plan, actions=actions)


def added(plan: Plan, slot: str, **changes: Any) -> Plan:
    extra = next(a for a in plan.actions if a.slot == slot)
    return msgspec.structs.replace(plan, actions=(*plan.actions, msgspec.structs.replace(extra, **changes)))


def against_healthy(plan: Plan, **changes: Any) -> Plan:
    return changed(plan, "hung", slot="w05", machine="m-w05", **changes)


WRONG_PLANS: list[Any] = [
    pytest.param(lambda p: against_healthy(p), "not sick", id="a-healthy-node"),
    pytest.param(lambda p: changed(p, "hung", slot="w05"), "not as the action says", id="another-slot"),
    pytest.param(lambda p: changed(p, "hung", machine="m-nobody"), "no machine", id="a-machine-nobody-knows"),
    pytest.param(lambda p: changed(p, "hung", pool="a100"), "does not allow", id="another-pool"),
    pytest.param(lambda p: changed(p, "hung", takes_out=False), "counts itself wrongly", id="takes-out-denied"),
    pytest.param(lambda p: changed(p, "hung", because=""), "gives no because", id="no-because"),
    pytest.param(lambda p: changed(p, "well", kind="replace"), "not sick", id="replace-what-is-well"),
    pytest.param(lambda p: changed(p, "hung", kind="resume"), "not healthy", id="resume-what-is-sick"),
    pytest.param(lambda p: changed(p, "well", slot="w01", machine="m-w01"), "not ours", id="resume-no-drain-of-ours"),
    pytest.param(lambda p: changed(p, "run:opt", attempt="opt.0"), "not judged to be stalled", id="an-older-attempt"),
    pytest.param(lambda p: changed(p, "run:opt", takes_out=True), "takes nothing out", id="a-restart-takes-out"),
    pytest.param(lambda p: added(p, "hung"), "stands in the plan twice", id="the-same-action-twice"),
    pytest.param(lambda p: added(p, "hung", action_id="other"), "two actions", id="two-actions-on-one-slot"),
    pytest.param(
        lambda p: msgspec.structs.replace(p, actions=p.actions[2:]), "neither acted on nor held", id="one-forgotten"
    ),
]


@pytest.mark.parametrize(("mutate", "word"), WRONG_PLANS)
def test_a_wrong_plan_is_objected_to(mutate: Callable[[Plan], Plan], word: str) -> None:
    world = World()
    told = world.objections(mutate(world.plan()))
    assert any(word in because for because in told), told


def fleet_with(world: World, slot: str, **changes: Any) -> FleetView:
    nodes = tuple(dataclasses.replace(v, **changes) if v.slot == slot else v for v in world.fleet.nodes)
    return dataclasses.replace(world.fleet, nodes=nodes)


def memory_with(world: World, *actions: Done, **changes: Any) -> PlanMemory:
    return msgspec.structs.replace(world.memory, actions=(*world.memory.actions, *actions), **changes)


def verdict_with(world: World, slot: str, **changes: Any) -> Judgement:
    nodes = tuple(msgspec.structs.replace(v, **changes) if v.slot == slot else v for v in world.judgement.nodes)
    return Judgement(nodes=nodes, runs=world.judgement.runs)


def policy_with(world: World, **changes: Any) -> dict[str, Policy]:
    return {"h100": msgspec.structs.replace(world.policies["h100"], **changes)}


FOREIGN = SchedulerSays(state="drained", received_monotonic_ns=0, drain_owner="foreign")
SHARED = SharedCause(rule="shared_cause", subject=Subject("pool", "h100"), slots=("hung",), because="x")
ONE_WITNESS = dead_evidence("m-dead")[:1]
SAME_WIRE = tuple(msgspec.structs.replace(e, path="agent") for e in dead_evidence("m-dead"))

OTHER_WORLDS: list[Any] = [
    pytest.param("memory", lambda w: memory_with(w, hold_everything="HOLD"), "everything is held", id="hold-file"),
    pytest.param("memory", lambda w: memory_with(w, human_holds={"hung": "ada"}), "a person holds", id="human-hold"),
    pytest.param("memory", lambda w: memory_with(w, human_holds={"w02": "ada"}), "a person holds one", id="member"),
    pytest.param("memory", lambda w: memory_with(w, w.past("drain", "hung", ended=False)), "under way", id="under-way"),
    pytest.param("memory", lambda w: memory_with(w, w.past("drain", "hung", 599)), "cool-down", id="cool-down"),
    pytest.param(
        "memory",
        lambda w: memory_with(w, w.past("replace", "hung"), w.past("replace", "hung", 8000)),
        "tried 2 times",
        id="attempts",
    ),
    pytest.param(
        "memory",
        lambda w: memory_with(w, w.past("replace", "hung", action_id=replace_of(w, "hung").action_id)),
        "ended already",
        id="done-before",
    ),
    pytest.param("fleet", lambda w: dataclasses.replace(w.fleet, blind_because="x"), "doubts itself", id="blind"),
    pytest.param("fleet", lambda w: fleet_with(w, "hung", scheduler=FOREIGN), "another drained it", id="foreign-drain"),
    pytest.param("fleet", lambda w: fleet_with(w, "hung", fills_slot=False), "another fills it", id="claims-a-slot"),
    pytest.param("fleet", lambda w: fleet_with(w, "well", fills_slot=False), "another fills it", id="resume-a-claim"),
    pytest.param(
        "fleet", lambda w: fleet_with(w, "hung", lifecycle=Lifecycle.REPAIRING), "nothing new may begin", id="repairing"
    ),
    pytest.param(
        "fleet", lambda w: fleet_with(w, "hung", lifecycle=Lifecycle.DRAINED), "counts itself wrongly", id="it-is-out"
    ),
    pytest.param("fleet", lambda w: dataclasses.replace(w.fleet, groups=()), "not ours to change", id="group-unknown"),
    pytest.param(
        "fleet",
        lambda w: dataclasses.replace(w.fleet, groups=(GroupView(name="h100", owner="aks", target_count=1),)),
        "not ours to change",
        id="another-controllers-group",
    ),
    pytest.param(
        "fleet",
        lambda w: fleet_with(w, "dead", last_report_monotonic_ns=T0.monotonic_ns - 5 * S),
        "reported a moment ago",
        id="the-dead-speaks",
    ),
    pytest.param("shared", lambda w: (SHARED,), "a shared cause", id="shared-cause"),
    pytest.param("judgement", lambda w: verdict_with(w, "hung", health=Health.SUSPECT), "not sick", id="suspect"),
    pytest.param("judgement", lambda w: verdict_with(w, "hung", health=Health.UNKNOWN), "not sick", id="unknown"),
    pytest.param(
        "judgement", lambda w: verdict_with(w, "dead", evidence=ONE_WITNESS), "fewer than two", id="one-witness"
    ),
    pytest.param(
        "judgement", lambda w: verdict_with(w, "dead", evidence=SAME_WIRE), "fewer than two", id="two-on-one-wire"
    ),
    pytest.param(
        "judgement",
        lambda w: Judgement(nodes=w.judgement.nodes, runs=(explained(w.judgement.runs[0]),)),
        "explained by m-hung",
        id="an-explained-stall",
    ),
    pytest.param("policies", lambda w: policy_with(w, mode=Mode.DRAIN), "does not allow replace", id="mode-drain"),
    pytest.param("policies", lambda w: policy_with(w, mode=Mode.OBSERVE), "does not allow", id="mode-observe"),
    pytest.param("policies", lambda w: policy_with(w, mode=Mode.APPROVE), "no person has approved", id="not-approved"),
    pytest.param("policies", lambda w: policy_with(w, max_nodes_out=2), "would be out", id="absolute-budget"),
    pytest.param("policies", lambda w: policy_with(w, max_out_ratio=0.04), "would be out", id="share"),
    pytest.param("policies", lambda w: policy_with(w, job_action="wait"), "leaves stalled runs", id="job-action-wait"),
]  # fmt: skip


def explained(verdict: RunVerdict) -> RunVerdict:
    return msgspec.structs.replace(verdict, explained_by="m-hung")


def replace_of(world: World, slot: str) -> Action:
    return next(action for action in world.plan().actions if action.slot == slot)


@pytest.mark.parametrize(("part", "change", "word"), OTHER_WORLDS)
def test_a_plan_made_for_another_world_is_objected_to(part: str, change: Callable[[World], Any], word: str) -> None:
    """As if the planner had overlooked this: the plan is right, the world is not the one that it was made for."""
    world = World()
    plan = world.plan()
    setattr(world, part, change(world))
    told = world.objections(plan)
    assert any(word in because for because in told), told


def test_a_domain_that_would_lose_too_many_is_objected_to() -> None:
    world = World()
    plan = world.plan()
    world.fleet = fleet_with(world, "hung", domain="rack1")
    world.fleet = fleet_with(world, "dead", domain="rack1")
    assert any("of domain rack1 would be out" in because for because in world.objections(plan))


def test_it_shares_no_code_with_the_planner() -> None:
    import gpuwatch.decide.inspector as module

    imported = {getattr(value, "__module__", "") for value in vars(module).values()}
    assert not {name for name in imported if name.startswith("gpuwatch.decide") and not name.endswith("inspector")}
