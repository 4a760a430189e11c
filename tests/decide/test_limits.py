"""How many nodes may be out."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.decide.limits import allowed_out
from gpuwatch.decide.planner import make_plan
from gpuwatch.model.plan import Done, PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.verdict import Judgement, Verdict
from gpuwatch.model.view import GroupView, NodeView, SchedulerSays
from tests.fakes import T0, evidence, fleet_view, node_view


@pytest.mark.parametrize(
    ("slots", "policy", "may"),
    [
        pytest.param(16, {}, 1, id="five-percent-of-sixteen-is-nothing-so-one"),
        pytest.param(20, {}, 1, id="a-small-pool"),
        pytest.param(20, {"max_out_ratio": 0.04}, 1, id="the-largest-small-pool"),
        pytest.param(21, {"max_out_ratio": 0.04}, 0, id="no-small-pool-any-more"),
        pytest.param(40, {}, 2, id="five-percent"),
        pytest.param(39, {}, 1, id="rounded-down"),
        pytest.param(1000, {}, 2, id="never-more-than-the-absolute-number"),
        pytest.param(1000, {"max_nodes_out": 100}, 50, id="never-more-than-the-share"),
        pytest.param(1000, {"max_nodes_out": 0}, 0, id="none"),
        pytest.param(4, {"max_out_ratio": 0.0}, 0, id="a-share-of-zero-means-none-in-a-small-pool-too"),
        pytest.param(10, {"max_nodes_out": 9, "max_out_ratio": 0.3}, 3, id="three-tenths-are-three-not-two"),
    ],
)
def test_allowed_out(slots: int, policy: dict[str, Any], may: int) -> None:
    assert allowed_out(Policy(**policy), slots) == may


def taken(sick: list[NodeView], others: list[NodeView], memory: PlanMemory | None = None, **policy: Any) -> list[str]:
    """Slots that the plan takes out."""
    rules = Policy(**({"mode": Mode.REPLACE} | policy))
    groups = (GroupView(name="h100", owner="gpuwatch", target_count=99),)
    fleet = fleet_view(*sick, *others, groups=groups)
    nodes = [
        Verdict(
            slot=v.slot,
            machine=v.machine,
            health=Health.DRIVER_FAILED if v in sick else Health.HEALTHY,
            because="x",
            kind="driver_failed",
            cause=v.slot,
            action="reboot",
            evidence=(evidence(machine=v.machine),) if v in sick else (),
            since_monotonic_ns=T0.monotonic_ns - n,
        )
        for n, v in enumerate([*sick, *others])
    ]
    plan = make_plan(fleet, Judgement(nodes=tuple(nodes)), (), {"h100": rules}, memory or PlanMemory(), T0)
    held = {hold.slot for hold in plan.holds}
    assert {v.slot for v in sick} == {action.slot for action in plan.actions} | held
    return [action.slot for action in plan.actions if action.takes_out]


def some(prefix: str, count: int, **changes: Any) -> list[NodeView]:
    return [node_view(f"{prefix}{n:02d}", **changes) for n in range(count)]


def test_the_longest_sick_come_first() -> None:
    assert taken(some("s", 5), some("w", 95), max_nodes_out=3) == ["s04", "s03", "s02"]


FOREIGN = SchedulerSays(state="drained", received_monotonic_ns=0, drain_owner="foreign", reason="bob")


@pytest.mark.parametrize(
    ("out", "left"),
    [
        pytest.param(some("o", 2, lifecycle=Lifecycle.DRAINED), 1, id="drained"),
        pytest.param(some("o", 2, lifecycle=Lifecycle.QUARANTINED), 1, id="quarantined"),
        pytest.param(some("o", 2, scheduler=FOREIGN), 1, id="drained-by-another"),
        pytest.param(some("o", 3, lifecycle=Lifecycle.REPLACING), 0, id="budget-used-up"),
        pytest.param(some("o", 2, lifecycle=Lifecycle.PROVISIONING), 3, id="new-ones-are-not-out"),
        pytest.param(some("o", 2, lifecycle=Lifecycle.RETIRED), 3, id="retired-ones-are-gone"),
    ],
)
def test_what_is_out_already_uses_up_the_budget(out: list[NodeView], left: int) -> None:
    assert len(taken(some("s", 5), out + some("w", 95), max_nodes_out=3)) == left


def test_an_action_under_way_counts_before_the_node_is_out() -> None:
    begun = Done(
        action_id="x",
        kind="drain",
        slot="w00",
        machine="m-w00",
        cause="",
        fault="",
        started_unix_ns=0,
        started_monotonic_ns=0,
        ended=False,
    )
    assert len(taken(some("s", 5), some("w", 95), PlanMemory(actions=(begun,)), max_nodes_out=3)) == 2


def test_nodes_without_gpus_make_no_share_larger() -> None:
    """NVIDIA/NVSentinel#1228: login nodes in the denominator."""
    assert len(taken(some("s", 3), some("w", 37), max_nodes_out=9)) == 2
    assert len(taken(some("s", 3), some("login", 60, expected_gpu_count=0) + some("w", 37), max_nodes_out=9)) == 2


def test_a_slot_with_its_new_machine_beside_the_old_one_is_one_slot() -> None:
    old = some("w", 20, lifecycle=Lifecycle.REPLACING)
    new = [node_view(v.slot, machine=f"new-{v.slot}", lifecycle=Lifecycle.PROVISIONING) for v in old]
    assert taken(some("s", 1), [*old, *new, *some("x", 379)], max_nodes_out=21) == []
    assert taken(some("s", 1), [*old, *new, *some("x", 399)], max_nodes_out=21) == ["s00"]


@pytest.mark.parametrize(("limit", "slots"), [(1, ["s02", "s01"]), (2, ["s02", "s01", "s00"])])
def test_no_more_of_one_domain_than_allowed(limit: int, slots: list[str]) -> None:
    sick = [node_view("s00", domain="rack1"), node_view("s01", domain="rack1"), node_view("s02", domain="rack2")]
    assert taken(sick, some("w", 97), max_nodes_out=5, max_out_per_domain=limit) == slots


def test_a_domain_counts_what_is_out_of_it_already() -> None:
    out = [node_view("o", domain="rack1", lifecycle=Lifecycle.DRAINED)]
    sick = [node_view("s00", domain="rack1"), node_view("s01", domain="rack2")]
    assert taken(sick, out + some("w", 97), max_nodes_out=5) == ["s01"]
