"""An order to the node's own hands before it is given up: the mildest rung that is left, then another machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from gpuwatch.decide.inspector import inspect
from gpuwatch.decide.planner import make_plan
from gpuwatch.model.evidence import Evidence
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.plan import Action, Done, Plan, PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.verdict import Judgement, Verdict
from gpuwatch.model.view import FleetView, GroupView, NodeView, SchedulerSays
from tests.fakes import T0, evidence, fleet_view, later, node_view, source

KEY, UNIT = "ab" * 32, "nvidia-fabricmanager.service"
GROUP = GroupView(name="h100", owner="gpuwatch", target_count=1)
POLICY = Policy(mode=Mode.REPLACE, local_repair=("restart_service", "reset_gpu", "reboot"))
HANDS = HandsFacts(
    boot_id="b",
    nonce="n",
    nonce_expires_monotonic_ns=1,
    told_monotonic_ns=0,
    units=(UNIT,),
    may_reset_gpu=True,
    may_reboot=True,
    keys=(KEY,),
)


def gpu(action: str = "reset_gpu", name: str = "GPU-3", **changes: Any) -> Evidence:
    """One GPU asks for something."""
    found = evidence("fatal_xid", "m-gpu01", argues_for=Health.DEGRADED, action=action, **changes)
    return msgspec.structs.replace(found, subject=msgspec.structs.replace(found.subject, kind="gpu", id=name))


def whole(action: str = "reboot", **changes: Any) -> Evidence:
    return evidence("driver_refuses", "m-gpu01", argues_for=Health.DRIVER_FAILED, action=action, **changes)


def done(order: str, ago_s: float = 7200.0, **changes: Any) -> Done:
    started = later(T0, -ago_s)
    usual: dict[str, Any] = {
        "action_id": f"old-{order}",
        "kind": "repair",
        "slot": "gpu01",
        "machine": "m-gpu01",
        "cause": "xid_48",
        "fault": "f0",
        "started_unix_ns": started.unix_ns,
        "started_monotonic_ns": started.monotonic_ns,
        "ended": True,
        "outcome": "failed",
        "order": order,
    }
    return Done(**(usual | changes))


class Case:
    """One sick node with hands, and the rest of twenty."""

    def __init__(
        self,
        *against: Evidence,
        past: tuple[Done, ...] = (),
        policy: Policy = POLICY,
        hands: HandsFacts | None = HANDS,
        heard_s: float = 1.0,
        key: str = KEY,
        group: GroupView = GROUP,
        health: Health = Health.DEGRADED,
        silent_s: float = 1.0,
        approved: tuple[str, ...] = (),
        **view: Any,
    ) -> None:
        self.approved = approved
        self.against = against or (gpu(),)
        self.policy, self.past, self.key, self.group, self.health = policy, past, key, group, health
        base = node_view("gpu01", silent_s=silent_s, **view)
        facts = base.facts if hands is None else {**base.facts, HandsFacts: hands}
        said = source("hands", received_monotonic_ns=later(T0, -heard_s).monotonic_ns)
        self.view: NodeView = dataclasses.replace(base, facts=facts, sources={**base.sources, "hands": said})

    def inputs(self) -> tuple[FleetView, Judgement, dict[str, Policy], PlanMemory]:
        others = [node_view(f"w{n:02d}") for n in range(19)]
        fleet = dataclasses.replace(fleet_view(self.view, *others, groups=(self.group,)), order_key=self.key)
        sick = Verdict(
            slot="gpu01",
            machine="m-gpu01",
            health=self.health,
            because="sick",
            evidence=self.against,
            cause="xid_48",
            action=self.against[0].action,
        )
        well = [Verdict(slot=o.slot, machine=o.machine, health=Health.HEALTHY, because="well") for o in others]
        return (
            fleet,
            Judgement(nodes=(sick, *well)),
            {"h100": self.policy},
            PlanMemory(actions=self.past, approved=self.approved),
        )

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


@pytest.mark.parametrize(
    ("case", "order", "target"),
    [
        pytest.param(Case(), "reset_gpu", "GPU-3", id="one-gpu-wants-a-reset"),
        pytest.param(Case(gpu(name="m-gpu01/0000:9b:00")), "reset_gpu", "0000:9b:00", id="a-gpu-without-a-uuid"),
        pytest.param(Case(gpu(), gpu()), "reset_gpu", "GPU-3", id="twice-the-same-gpu"),
        pytest.param(Case(gpu(), gpu(name="GPU-4")), "reboot", "", id="two-gpus"),
        pytest.param(Case(gpu(name="m-gpu01/7")), "reboot", "", id="a-gpu-that-no-order-can-name"),
        pytest.param(Case(gpu(), whole()), "reboot", "", id="a-gpu-and-the-driver"),
        pytest.param(Case(whole(), health=Health.DRIVER_FAILED), "reboot", "", id="the-driver"),
        pytest.param(Case(whole(service=UNIT)), "restart_service", UNIT, id="a-service"),
        pytest.param(Case(whole(service=UNIT), whole()), "reboot", "", id="a-service-and-more"),
        pytest.param(Case(whole(service="sshd.service")), "reboot", "", id="a-service-that-is-not-allowed"),
        pytest.param(Case(past=(done("reset_gpu"),)), "reboot", "", id="the-reset-did-not-cure-it"),
        pytest.param(Case(past=(done("reset_gpu", outcome="done"),)), "reboot", "", id="sick-again-after-a-reset"),
        pytest.param(Case(past=(done("reset_gpu", outcome="cancelled"),)), "reset_gpu", "GPU-3", id="not-needed-then"),
        pytest.param(Case(past=(done("reset_gpu", 90_000.0),)), "reset_gpu", "GPU-3", id="long-ago"),
        pytest.param(Case(past=(done(""),)), "reset_gpu", "GPU-3", id="nobody-saw-the-order"),
        pytest.param(Case(past=(done("reset_gpu", machine="m-old"),)), "reset_gpu", "GPU-3", id="another-machine"),
        pytest.param(Case(gpu(), evidence(note=True)), "reset_gpu", "GPU-3", id="a-note-beside-it"),
        pytest.param(
            Case(group=msgspec.structs.replace(GROUP, owner="aks")), "reset_gpu", "GPU-3", id="a-group-of-another"
        ),
        pytest.param(
            Case(policy=msgspec.structs.replace(POLICY, local_repair=("reboot",))), "reboot", "", id="only-reboots"
        ),
        pytest.param(
            Case(hands=msgspec.structs.replace(HANDS, may_reset_gpu=False)), "reboot", "", id="its-hands-reset-nothing"
        ),
    ],
)
def test_the_mildest_rung_that_is_left(case: Case, order: str, target: str) -> None:
    action = case.action()
    assert (action.kind, action.order, action.target, action.takes_out) == ("repair", order, target, True)
    assert "its hands may re" in action.because


@pytest.mark.parametrize(
    ("case", "words"),
    [
        pytest.param(Case(policy=Policy(mode=Mode.REPLACE)), "", id="by-default"),
        pytest.param(Case(hands=None), "it has no hands that speak", id="no-hands"),
        pytest.param(Case(heard_s=181.0), "it has no hands that speak", id="hands-that-ended"),
        pytest.param(Case(key=""), "do not know our key", id="no-key"),
        pytest.param(Case(key="cd" * 32), "do not know our key", id="another-key"),
        pytest.param(Case(hands=msgspec.structs.replace(HANDS, refuses="HOLD")), "refuse: HOLD", id="hold"),
        pytest.param(Case(gpu("drain_replace")), "no rung", id="another-board"),
        pytest.param(Case(gpu(), gpu("drain_replace", "GPU-4")), "no rung", id="a-reset-here-another-board-there"),
        pytest.param(Case(gpu(), gpu("contact_support", "GPU-4")), "no rung", id="the-provider"),
        pytest.param(
            Case(hands=msgspec.structs.replace(HANDS, may_reset_gpu=False, may_reboot=False)),
            "no rung",
            id="not-allowed",
        ),
        pytest.param(Case(past=(done("reset_gpu"), done("reboot"))), "2 repairs did not cure it", id="both-tried"),
        pytest.param(Case(past=(done(""), done(""))), "2 repairs did not cure it", id="nobody-saw-two-orders"),
        pytest.param(
            Case(past=(done("reset_gpu", 90_000.0), done("reboot", 90_000.0))), "2 repairs", id="both-tried-long-ago"
        ),
        pytest.param(
            Case(past=(done("reset_gpu", cause="a"), done("reboot", cause="b"))),
            "reboot, reset_gpu did not",
            id="others",
        ),
        pytest.param(Case(whole(), past=(done("reboot"),)), "reboot did not cure it", id="a-reboot-is-the-last-rung"),
    ],
)
def test_else_it_is_another_machine(case: Case, words: str) -> None:
    action = case.action()
    assert action.kind == "replace"
    assert words in action.because


@pytest.mark.parametrize("health", [Health.DEGRADED, Health.DRIVER_FAILED])
@pytest.mark.parametrize("policy", [POLICY, Policy(mode=Mode.REPLACE)], ids=["repairs", "replaces"])
def test_a_hold_on_the_node_is_a_persons(policy: Policy, health: Health) -> None:
    held = msgspec.structs.replace(HANDS, refuses="HOLD is there", held="HOLD is there")
    case = Case(hands=held, policy=policy, health=health)
    fleet, judgement, policies, memory = case.inputs()
    plan = make_plan(fleet, judgement, (), policies, memory, T0)
    assert plan.actions == ()
    assert [(h.reason, h.because) for h in plan.holds] == [("human_hold", "on the node itself: HOLD is there")]
    assert "somebody holds it on the node" in case.objections(Case(policy=policy).action())


def test_a_dead_node_gets_no_order() -> None:
    case = Case(evidence(argues_for=Health.DEAD, path="cloud"), health=Health.DEAD, silent_s=60.0)
    assert case.action().kind == "replace"


def test_a_node_that_fell_silent_gets_no_order() -> None:
    action = Case(silent_s=20.0).action()
    assert (action.kind, "not repaired: it does not speak" in action.because) == ("replace", True)


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.RECOMMEND])
def test_nothing_is_done_where_nothing_may_be_done(mode: Mode) -> None:
    fleet, judgement, policies, memory = Case(policy=msgspec.structs.replace(POLICY, mode=mode)).inputs()
    plan = make_plan(fleet, judgement, (), policies, memory, T0)
    assert plan.actions == ()
    assert "would repair it" in plan.holds[0].because


def test_mode_drain_only_drains() -> None:
    assert Case(policy=msgspec.structs.replace(POLICY, mode=Mode.DRAIN)).action().kind == "drain"


def test_a_person_is_asked_for_the_rung() -> None:
    action = Case(policy=msgspec.structs.replace(POLICY, mode=Mode.APPROVE)).action()
    assert action.kind == "ask_approval"
    assert action.because == "may we repair it? sick; its hands may reset GPU-3"


def test_who_approves_a_reset_has_not_approved_another_or_a_reboot() -> None:
    mode = msgspec.structs.replace(POLICY, mode=Mode.APPROVE)
    asked = Case(policy=mode).action().action_id
    assert asked == "ask-repair-reset_gpu-GPU-3--gpu01-0-1"
    assert Case(policy=mode, approved=(asked,)).action().kind == "repair"
    for case in (
        Case(gpu(name="GPU-4"), policy=mode, approved=(asked,)),
        Case(gpu(), whole(), policy=mode, approved=(asked,)),
    ):
        assert case.action().kind == "ask_approval"


def test_a_node_that_is_drained_already_takes_nothing_more_out() -> None:
    ours = SchedulerSays(state="drained", received_monotonic_ns=0, drain_owner="gpuwatch")
    action = Case(past=(done("reset_gpu"),), lifecycle=Lifecycle.DRAINED, scheduler=ours).action()
    assert (action.order, action.takes_out, action.action_id[-2:]) == ("reboot", False, "-1")


@pytest.mark.parametrize(
    ("case", "why"),
    [
        pytest.param(Case(policy=Policy(mode=Mode.REPLACE)), "the policy orders no reset_gpu", id="policy"),
        pytest.param(Case(silent_s=60.0), "it does not speak", id="silent"),
        pytest.param(Case(hands=None), "takes no orders of ours|take no orders of ours", id="no-hands"),
        pytest.param(Case(key="cd" * 32), "take no orders of ours", id="key"),
        pytest.param(Case(hands=msgspec.structs.replace(HANDS, may_reset_gpu=False)), "do not allow", id="not-allowed"),
        pytest.param(Case(gpu(name="GPU-4")), "not all that is said", id="another-gpu"),
        pytest.param(Case(gpu(), gpu("drain_replace")), "not all that is said", id="another-board"),
        pytest.param(Case(past=(done("reset_gpu"),)), "was tried not long ago", id="again"),
    ],
)
def test_the_inspector_sees_it_by_itself(case: Case, why: str) -> None:
    good = Case().action()
    assert Case().objections(good) == ""
    assert any(word in case.objections(good) for word in why.split("|"))


def test_the_inspector_knows_an_order_without_sense() -> None:
    good = Case().action()
    assert "do not allow reboot GPU-3" in Case().objections(msgspec.structs.replace(good, order="reboot"))
    assert "do not allow reset_gpu" in Case().objections(msgspec.structs.replace(good, target=""))
    assert "orders no repair without a name" in Case().objections(msgspec.structs.replace(good, order=""))
