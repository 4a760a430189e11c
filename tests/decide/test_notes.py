"""A note is told to people and counts for nothing."""

from __future__ import annotations

from gpuwatch.decide.judge import judge
from gpuwatch.decide.planner import make_plan
from gpuwatch.model.evidence import Subject
from gpuwatch.model.plan import PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import Health
from gpuwatch.model.view import GroupView
from tests.fakes import T0, evidence, fleet_view, node_view


def test_a_node_with_notes_alone_is_healthy_and_says_them() -> None:
    view = node_view()
    note = evidence("disk_full", argues_for=Health.SUSPECT, action="none", note=True, because="/ is 91 % full")
    fleet = fleet_view(view, groups=(GroupView(name="h100", owner="gpuwatch", target_count=1),))
    policies = {"h100": Policy(mode=Mode.REPLACE)}
    judgement = judge(fleet, {view.machine: (note,)}, None, policies, T0)
    (verdict,) = judgement.nodes
    assert verdict.health is Health.HEALTHY
    assert verdict.because.endswith("is clean, but: / is 91 % full")
    assert verdict.evidence == (note,)
    assert make_plan(fleet, judgement, (), policies, PlanMemory(), T0).actions == ()


def test_a_note_lends_no_weight_to_a_fault() -> None:
    view = node_view()
    note = evidence("x", argues_for=Health.SUSPECT, must_last=5.0, note=True, subject=Subject("machine", view.machine))
    (verdict,) = judge(fleet_view(view), {view.machine: (note, evidence())}, None, {}, T0).nodes
    assert (verdict.health, verdict.cause, verdict.pending) == (Health.DRIVER_FAILED, "probe_hung", {})
    assert len(verdict.evidence) == 2
