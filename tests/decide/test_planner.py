"""What is done with a sick node, and the because of every hold. One row a reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuwatch.decide.inspector import inspect
from gpuwatch.decide.planner import make_plan
from gpuwatch.model.evidence import SharedCause, Subject
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Action, Done, Hold, Plan, PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.verdict import Judgement, RunVerdict, Verdict
from gpuwatch.model.view import FleetView, GroupView, NodeView, SchedulerSays
from tests.fakes import T0, evidence, fleet_view, later, node_view, rank_view, run_view

OURS = GroupView(name="h100", owner="gpuwatch", target_count=20)


def verdict(view: NodeView, health: Health = Health.DRIVER_FAILED, **changes: Any) -> Verdict:
    usual: dict[str, Any] = {
        "slot": view.slot,
        "machine": view.machine,
        "health": health,
        "because": f"it is {health.value}",
        "since_unix_ns": later(T0, -10).unix_ns,
        "since_monotonic_ns": later(T0, -10).monotonic_ns,
        "onset_unix_ns": later(T0, -20).unix_ns,
    }
    if health in (Health.DRIVER_FAILED, Health.DEGRADED, Health.DEAD):
        found = evidence(
            machine=view.machine, argues_for=health, **({"path": "cloud"} if health is Health.DEAD else {})
        )
        usual |= {"evidence": (found,), "kind": "driver_failed", "cause": "probe_hung", "action": "reboot"}
    return Verdict(**(usual | changes))


def done(kind: str = "replace", slot: str = "sick", ago_s: float = 7200, **changes: Any) -> Done:
    moment = later(T0, -ago_s)
    usual: dict[str, Any] = {
        "action_id": f"{kind}-old",
        "kind": kind,
        "slot": slot,
        "machine": f"m-{slot}",
        "cause": "probe_hung",
        "fault": "old",
        "started_unix_ns": moment.unix_ns,
        "started_monotonic_ns": moment.monotonic_ns,
        "ended": True,
        "outcome": "done",
    }
    return Done(**(usual | changes))


class Case:
    """A fleet of twenty with one sick node, whatever else is changed."""

    def __init__(self, **policy: Any) -> None:
        usual: dict[str, Any] = {"mode": Mode.REPLACE, "hold_off_s": 0.0}
        self.policy = Policy(**(usual | policy))
        self.sick: dict[str, Any] = {}
        self.verdict: dict[str, Any] = {}
        self.health = Health.DRIVER_FAILED
        self.fleet: dict[str, Any] = {"groups": (OURS,)}
        self.memory: dict[str, Any] = {}
        self.shared: tuple[SharedCause, ...] = ()
        self.runs: tuple[RunVerdict, ...] = ()
        self.others = [node_view(f"w{n:02d}") for n in range(19)]
        self.now = T0

    def plan(self) -> Plan:
        view = node_view("sick", **self.sick)
        fleet = fleet_view(view, *self.others, **self.fleet)
        well = [verdict(other, Health.HEALTHY) for other in self.others]
        judgement = Judgement(nodes=(verdict(view, self.health, **self.verdict), *well), runs=self.runs)
        return checked(fleet, judgement, self.shared, {"h100": self.policy}, PlanMemory(**self.memory), self.now)

    def action(self) -> Action:
        plan = self.plan()
        assert plan.holds == ()
        (action,) = plan.actions
        return action

    def hold(self) -> Hold:
        plan = self.plan()
        assert plan.actions == ()
        (hold,) = plan.holds
        return hold


def checked(
    fleet: FleetView,
    judgement: Judgement,
    shared: tuple[SharedCause, ...],
    policies: dict[str, Policy],
    memory: PlanMemory,
    now: Moment,
) -> Plan:
    """The plan; the inspector has nothing against it, and it comes out the same again."""
    plan = make_plan(fleet, judgement, shared, policies, memory, now)
    assert plan == make_plan(fleet, judgement, shared, policies, memory, now)
    assert inspect(plan, fleet, judgement, shared, policies, memory, now) == ()
    return plan


def test_a_failed_driver_is_replaced() -> None:
    action = Case().action()
    assert (action.kind, action.slot, action.machine, action.takes_out) == ("replace", "sick", "m-sick", True)
    assert action.because == "it is driver_failed"
    assert action.cause == "probe_hung"


@pytest.mark.parametrize(
    ("mode", "kind"), [(Mode.DRAIN, "drain"), (Mode.REPLACE, "replace"), (Mode.APPROVE, "ask_approval")]
)
def test_how_far_each_mode_goes(mode: Mode, kind: str) -> None:
    assert Case(mode=mode).action().kind == kind


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.RECOMMEND])
def test_modes_that_only_look_hold_and_say_what_they_would_do(mode: Mode) -> None:
    hold = Case(mode=mode).hold()
    assert hold.reason == mode.value
    assert "would replace it" in hold.because


def test_observe_is_the_default_for_a_pool_without_a_policy() -> None:
    view = node_view("sick")
    fleet, judgement = fleet_view(view), Judgement(nodes=(verdict(view),))
    plan = checked(fleet, judgement, (), {}, PlanMemory(), T0)
    assert [hold.reason for hold in plan.holds] == ["observe"]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        pytest.param({"action": "reset_gpu"}, "replace", id="wants-a-reset"),
        pytest.param({"action": "drain_replace"}, "replace", id="wants-a-new-board"),
        pytest.param({"action": "contact_support"}, "drain", id="wants-the-provider"),
        pytest.param({"action": "restart_app"}, "drain", id="may-be-the-applications"),
        pytest.param({"action": "none"}, "drain", id="nobody-knows"),
        pytest.param({"soft": True}, "drain", id="soft-lets-the-jobs-end"),
    ],
)
def test_which_faults_are_only_drained_first(changes: dict[str, Any], kind: str) -> None:
    case = Case()
    case.verdict = changes
    assert case.action().kind == kind


@pytest.mark.parametrize(
    ("lifecycle", "changes", "outcome"),
    [
        pytest.param(Lifecycle.DRAINED, {}, "replace", id="drained-goes-on-to-be-replaced"),
        pytest.param(Lifecycle.DRAINING, {}, "replace", id="draining-too"),
        pytest.param(Lifecycle.DRAINED, {"soft": True}, "replace", id="soft-and-empty"),
        pytest.param(Lifecycle.DRAINING, {"soft": True}, "in_progress", id="soft-and-not-yet-empty"),
        pytest.param(Lifecycle.DRAINED, {"action": "contact_support"}, "person", id="drained-for-the-provider"),
        pytest.param(Lifecycle.QUARANTINED, {}, "quarantined", id="quarantined"),
        pytest.param(Lifecycle.REPAIRING, {}, "in_progress", id="repairing"),
        pytest.param(Lifecycle.REPLACING, {}, "in_progress", id="replacing"),
        pytest.param(Lifecycle.PROVISIONING, {}, "replace", id="a-new-one-that-is-broken"),
    ],
)
def test_where_a_node_stands_decides_the_next_step(lifecycle: Lifecycle, changes: dict[str, Any], outcome: str) -> None:
    case = Case()
    case.sick, case.verdict = {"lifecycle": lifecycle}, changes
    plan = case.plan()
    assert [a.kind for a in plan.actions] + [h.reason for h in plan.holds] == [outcome]
    assert not any(action.takes_out for action in plan.actions)  # it is out, or never was in


def test_mode_drain_goes_no_further_than_drained() -> None:
    case = Case(mode=Mode.DRAIN)
    case.sick = {"lifecycle": Lifecycle.DRAINED}
    assert case.hold().reason == "drained"


def shared_by(*slots: str) -> tuple[SharedCause, ...]:
    return (SharedCause(rule="shared_cause", subject=Subject("pool", "h100"), slots=slots, because="one switch"),)


FOREIGN = SchedulerSays(state="drained", received_monotonic_ns=0, drain_owner="foreign", reason="bob")
JUST_STARTED = {"started_monotonic_ns": later(T0, -60).monotonic_ns}
OLD_EVENT = {
    "since_monotonic_ns": later(T0, -3601).monotonic_ns,
    "evidence": (evidence("fatal_xid", "m-sick", event_id="e1"),),
}
HOLDS: list[Any] = [
    pytest.param({"memory": {"hold_everything": "HOLD by ada"}}, "hold_file", "HOLD by ada", id="hold-file"),
    pytest.param({"fleet": {"blind_because": "disk full"}}, "blind", "disk full", id="blind"),
    pytest.param({"shared": shared_by("sick", "w01")}, "shared_cause", "one switch", id="shared-cause"),
    pytest.param({"memory": {"human_holds": {"sick": "ada: mine"}}}, "human_hold", "ada: mine", id="a-persons-hold"),
    pytest.param({"sick": {"scheduler": FOREIGN}}, "foreign_drain", "bob", id="drained-by-another"),
    pytest.param({"memory": {"actions": (done(ended=False),)}}, "in_progress", "replace-old", id="under-way"),
    pytest.param({"sick": {"fills_slot": False}}, "not_in_slot", "another machine fills it", id="claims-a-slot"),
    pytest.param(
        {"sick": {"fills_slot": False}, "memory": {"actions": (done(ended=False),)}},
        "in_progress",
        "replace-old",
        id="waits-to-take-over",
    ),
    pytest.param({"memory": {"actions": (done(), done())}}, "attempts", "tried 2 times", id="tried-too-often"),
    pytest.param({"memory": {"actions": (done("drain", ago_s=599),)}}, "cool_down", "599 s ago", id="too-soon"),
    pytest.param(
        {"memory": {"actions": (done("drain", started_monotonic_ns=None),)}, "fleet": JUST_STARTED},
        "cool_down",
        "60 s ago",
        id="an-action-of-before-our-start-is-at-least-as-old-as-we",
    ),
    pytest.param({"verdict": OLD_EVENT}, "expired", "3601 s ago", id="an-expired-event"),
]


@pytest.mark.parametrize(("changes", "reason", "word"), HOLDS)
def test_each_reason_to_hold(changes: dict[str, Any], reason: str, word: str) -> None:
    case = Case()
    for name, value in changes.items():
        known = getattr(case, name)
        setattr(case, name, known | value if isinstance(known, dict) else value)
    hold = case.hold()
    assert hold.reason == reason
    assert word in hold.because


def test_an_event_that_has_just_come_is_not_old_for_what_it_was_sick_of_before() -> None:
    case = Case()
    fresh = evidence("fatal_xid", "m-sick", event_id="e1", onset_unix_ns=later(T0, -5).unix_ns)
    case.verdict = {**OLD_EVENT, "evidence": (fresh,)}
    assert case.action().kind == "replace"


@pytest.mark.parametrize(
    "memory",
    [
        pytest.param({"actions": (done("drain", ago_s=600),)}, id="the-cool-down-is-over"),
        pytest.param({"actions": (done(),)}, id="one-try-is-not-too-many"),
        pytest.param({"actions": (done(cause="other"), done(cause="other"))}, id="tries-for-another-cause"),
        pytest.param(
            {"actions": (done(machine="m-before"), done(machine="m-before"))}, id="tries-with-another-machine"
        ),
        pytest.param({"actions": (done(slot="w01", ended=False),)}, id="under-way-elsewhere"),
        pytest.param({"actions": (done("ask_approval", ended=False, ago_s=5),)}, id="a-question-is-no-action"),
        pytest.param({"human_holds": {"w01": "elsewhere"}}, id="a-hold-elsewhere"),
    ],
)
def test_what_is_no_reason_to_hold(memory: dict[str, Any]) -> None:
    case = Case(max_nodes_out=9, max_out_ratio=1.0)
    case.memory = memory
    assert case.action().kind == "replace"


def test_level_evidence_beside_an_old_event_does_not_expire() -> None:
    case = Case()
    found = (evidence("fatal_xid", "m-sick", event_id="e1"), evidence("gpu_lost", "m-sick"))
    case.verdict = {"since_monotonic_ns": later(T0, -9999).monotonic_ns, "evidence": found}
    assert case.action().kind == "replace"


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param((GroupView(name="h100", owner="aks", target_count=20),), id="another-controllers"),
        pytest.param((GroupView(name="h100", owner="", target_count=20),), id="owner-unknown"),
        pytest.param(
            (GroupView(name="h100", owner="gpuwatch", target_count=20, refuses=("repair",)),), id="it-refuses"
        ),
        pytest.param((), id="no-such-group"),
        pytest.param((OURS.__class__(name="x", owner="gpuwatch", target_count=1),) * 2, id="not-among-them"),
    ],
)
def test_a_group_that_is_not_ours_is_drained_and_then_held(groups: tuple[GroupView, ...]) -> None:
    case = Case()
    case.fleet = {"groups": groups}
    action = case.action()
    assert action.kind == "drain"
    assert "not replaced" in action.because
    case.sick = {"lifecycle": Lifecycle.DRAINED}
    assert case.hold().reason == "group_owner"


def test_the_only_group_of_a_cloud_is_the_group_of_nodes_that_name_none() -> None:
    case = Case()
    case.fleet = {"groups": (GroupView(name="local", owner="gpuwatch", target_count=20),)}
    assert case.action().kind == "replace"


@pytest.mark.parametrize("prefix", ["", "ask-"])
def test_an_approval_turns_the_question_into_the_action(prefix: str) -> None:
    case = Case(mode=Mode.APPROVE)
    question = case.action()
    assert question.action_id.startswith("ask-replace-")
    assert not question.takes_out
    case.memory = {"approved": (prefix + question.action_id.removeprefix("ask-"),)}
    action = case.action()
    assert (action.kind, f"ask-{action.action_id}") == ("replace", question.action_id)


def test_the_same_try_has_the_same_id_and_the_next_try_another() -> None:
    case = Case(max_attempts_per_machine=5, cool_down_s=0.0)
    case.memory = {"faults": {"m-sick": "F7"}}
    assert case.action().action_id == "replace-F7-1"
    case.now = later(T0, 60)
    assert case.action().action_id == "replace-F7-1"
    case.memory = {"faults": {"m-sick": "F7"}, "actions": (done(fault="F7", outcome="failed"),)}
    assert case.action().action_id == "replace-F7-2"


def test_without_an_open_incident_the_fault_has_a_name_of_its_own() -> None:
    assert Case().action().fault == f"driver_failed-sick-{later(T0, -20).unix_ns // 10**9}"


@pytest.mark.parametrize(
    ("groups", "present", "outcome"),
    [
        pytest.param((OURS,), 19, "replace", id="the-target-still-counts-it"),
        pytest.param((OURS,), 20, "absent", id="the-group-is-full-without-it"),
        pytest.param((GroupView(name="h100", owner="gpuwatch", target_count=None),), 19, "absent", id="target-unknown"),
        pytest.param((GroupView(name="h100", owner="aks", target_count=20),), 19, "group_owner", id="not-our-group"),
    ],
)
def test_an_unexplained_absence(groups: tuple[GroupView, ...], present: int, outcome: str) -> None:
    case = Case()
    case.health, case.verdict = Health.ABSENT, {"cause": "absent_unexplained", "kind": "node_absent"}
    case.fleet = {"groups": groups}
    case.others = [node_view(f"w{n:02d}") for n in range(present)]
    plan = case.plan()
    assert [a.kind for a in plan.actions] + [h.reason for h in plan.holds] == [outcome]
    assert not any(action.takes_out for action in plan.actions)


@pytest.mark.parametrize("why", ["scaled_in", "evicted", "stopped", "powered_down", "surplus", "retired"])
def test_an_explained_absence_is_nobodys_business(why: str) -> None:
    case = Case()
    case.health, case.verdict = Health.ABSENT, {"cause": f"absent_{why}"}
    plan = case.plan()
    assert (plan.actions, plan.holds) == ((), ())


OUR_DRAIN = SchedulerSays(state="drained", received_monotonic_ns=0, drain_owner="gpuwatch", reason="gpuwatch: x")
WELL_AGAIN: dict[str, Any] = {"lifecycle": Lifecycle.DRAINED, "scheduler": OUR_DRAIN}
BOOTED: dict[str, Any] = {"boot_changed_monotonic_ns": later(T0, -3600).monotonic_ns}


@pytest.mark.parametrize(
    ("sick", "memory", "outcome"),
    [
        pytest.param({}, {"actions": (done("drain"),)}, "resume", id="ours-and-well-again"),
        pytest.param({}, {"actions": ()}, "drain_unknown", id="nobody-remembers-why"),
        pytest.param(
            {}, {"actions": (done("drain", cause="xid_48"),)}, "repair_unproven", id="an-event-that-only-ended"
        ),
        pytest.param(BOOTED, {"actions": (done("drain", cause="xid_48"),)}, "resume", id="a-reboot-since"),
        pytest.param(
            {"boot_changed_monotonic_ns": later(T0, -8000).monotonic_ns},
            {"actions": (done("drain", cause="xid_48"),)},
            "repair_unproven",
            id="a-reboot-before",
        ),
        pytest.param({}, {"actions": (done("drain", ago_s=30),)}, "cool_down", id="not-at-once"),
        pytest.param({}, {"actions": (done("drain"),), "human_holds": {"sick": "ada"}}, "human_hold", id="held"),
        pytest.param({}, {"actions": (done("drain"),), "hold_everything": "HOLD"}, "hold_file", id="hold-file"),
    ],
)
def test_our_own_drain_of_a_node_that_is_well_again(sick: dict[str, Any], memory: dict[str, Any], outcome: str) -> None:
    case = Case()
    case.health, case.sick, case.memory = Health.HEALTHY, WELL_AGAIN | sick, memory
    plan = case.plan()
    assert [a.kind for a in plan.actions] + [h.reason for h in plan.holds] == [outcome]


@pytest.mark.parametrize(
    "says", [None, SchedulerSays(state="drained", received_monotonic_ns=0, drain_owner="foreign", reason="bob")]
)
def test_a_drain_that_is_not_ours_is_never_resumed(says: SchedulerSays | None) -> None:
    case = Case()
    case.health, case.sick = Health.HEALTHY, WELL_AGAIN | {"scheduler": says}
    case.memory = {"actions": (done("drain"),)}
    assert case.plan() == Plan(at_unix_ns=T0.unix_ns)


def test_a_recovery_is_blocked_by_no_shared_cause_and_no_blindness() -> None:
    case = Case()
    case.health, case.sick, case.memory = Health.HEALTHY, WELL_AGAIN, {"actions": (done("drain"),)}
    case.shared, case.fleet = shared_by("sick"), {"blind_because": "disk full"}
    assert case.action().kind == "resume"


STALL = RunVerdict(
    run="opt",
    attempt="opt.1",
    kind="run_stalled",
    because="no rank has moved for 700 s",
    onset_unix_ns=later(T0, -600).unix_ns,
    since_unix_ns=T0.unix_ns,
    since_monotonic_ns=T0.monotonic_ns,
    suspects=("m-w03",),
    machines=("m-w01", "m-w02", "m-w03"),
)


def stalled(**policy: Any) -> Case:
    case = Case(**({"job_action": "requeue"} | policy))
    case.health, case.runs = Health.HEALTHY, (msgspec.structs.replace(STALL),)
    return case


def test_a_stalled_run_is_started_again_and_its_nodes_stay() -> None:
    action = stalled().action()
    assert (action.kind, action.run, action.attempt, action.takes_out) == ("restart_job", "opt", "opt.1", False)
    assert (action.slot, action.machine) == ("w03", "m-w03")
    assert "w03 stands out" in action.because


@pytest.mark.parametrize(
    ("changes", "policy", "reason"),
    [
        pytest.param({}, {"job_action": "wait"}, "job_action", id="policy-waits"),
        pytest.param({}, {"restart_stalled_runs": False}, "job_action", id="policy-leaves-it"),
        pytest.param({}, {"mode": Mode.OBSERVE}, "observe", id="observe"),
        pytest.param({"fleet": {"blind_because": "x"}}, {}, "blind", id="blind"),
        pytest.param({"shared": shared_by("w02")}, {}, "shared_cause", id="shared"),
        pytest.param({"memory": {"hold_everything": "x"}}, {}, "hold_file", id="hold-file"),
        pytest.param({"memory": {"human_holds": {"w01": "x"}}}, {}, "human_hold", id="a-person-holds-a-member"),
        pytest.param(
            {"memory": {"actions": (done(slot="w02", ended=False),)}}, {}, "in_progress", id="a-member-is-busy"
        ),
        pytest.param(
            {"memory": {"actions": (done("restart_job", slot="w09", cause="run_stalled:opt", ago_s=30),)}},
            {},
            "cool_down",
            id="restarted-a-moment-ago",
        ),
        pytest.param(
            {"memory": {"actions": (done("restart_job", slot="w09", cause="run_stalled:opt"),) * 2}},
            {},
            "attempts",
            id="restarting-does-not-help",
        ),
    ],
)
def test_each_reason_to_hold_a_stalled_run(changes: dict[str, Any], policy: dict[str, Any], reason: str) -> None:
    case = stalled(**policy)
    for name, value in changes.items():
        setattr(case, name, value)
    hold = case.hold()
    assert (hold.reason, hold.slot) == (reason, "run:opt")


def test_a_person_is_asked_in_mode_approve() -> None:
    case = stalled(mode=Mode.APPROVE)
    question = case.action()
    assert (question.kind, question.run) == ("ask_approval", "opt")
    case.memory = {"approved": (question.action_id,)}
    assert case.action().kind == "restart_job"


def test_a_stall_that_a_sick_node_explains_is_that_nodes_affair() -> None:
    case = stalled()
    case.health = Health.DRIVER_FAILED
    case.runs = (msgspec.structs.replace(STALL, explained_by="m-sick"),)
    assert case.action().kind == "replace"


@pytest.mark.parametrize(
    ("steps_ago", "verdict_changes", "policy", "outcome"),
    [
        pytest.param(95, {}, {}, "checkpoint", id="nearly-at-the-next-save"),
        pytest.param(5, {}, {}, "replace", id="just-saved"),
        pytest.param(95, {"data_suspect": True}, {}, "replace", id="results-are-suspect-stop-now"),
        pytest.param(95, {}, {"job_action": "wait"}, "replace", id="the-drain-costs-no-work"),
        pytest.param(95, {"soft": True}, {}, "drain", id="soft-costs-no-work"),
    ],
)
def test_now_or_at_the_next_checkpoint(
    steps_ago: int, verdict_changes: dict[str, Any], policy: dict[str, Any], outcome: str
) -> None:
    case = Case(**({"job_action": "requeue"} | policy))
    ranks = [rank_view(n, "m-sick" if n == 0 else f"m-w{n:02d}", step=1000) for n in range(16)]
    run = run_view(*ranks, checkpoint_step=1000 - steps_ago, checkpoint_every_steps=100)
    case.sick, case.health, case.verdict = {"run": run}, Health.DEGRADED, verdict_changes
    plan = case.plan()
    assert [a.kind for a in plan.actions] + [h.reason for h in plan.holds] == [outcome]
    if outcome == "checkpoint":
        assert "node-hours of the gang" in plan.holds[0].because
