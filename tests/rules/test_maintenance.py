"""What the cloud plans is told, and is no fault of the node until the policy says to act ahead of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from gpuwatch.decide.assess import assess
from gpuwatch.decide.judge import judge
from gpuwatch.model.facts.maintenance import MaintenanceFacts, Notice
from gpuwatch.model.policy import Policy
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import NodeView, SchedulerSays
from gpuwatch.rules import maintenance, node_down
from tests.fakes import T0, S, fleet_view, later, node_view, source

RULES: dict[str, Any] = {"maintenance": (maintenance.RULE, maintenance.Settings())}
AT_NS = 1_790_000_600 * S


def view(silent_s: float = 1.0, **changes: Any) -> NodeView:
    usual: dict[str, Any] = {"id": "e1", "kind": "reboot", "ends_work": True, "started": False, "mine": True}
    notice = Notice(**(usual | {"not_before_unix_ns": AT_NS, "in_s": 600.0} | changes))
    plain = node_view(silent_s=silent_s)
    facts = dict(plain.facts) | {MaintenanceFacts: MaintenanceFacts("azure", (notice,))}
    sources = dict(plain.sources) | {"maintenance": source("maintenance", later(T0, -silent_s))}
    return dataclasses.replace(plain, facts=facts, sources=sources)


def judged(seen: NodeView, ahead_s: float = 0.0, **policy: Any) -> Verdict:
    found = {seen.machine: assess(seen, T0, RULES)}
    made = Policy(drain_before_maintenance_s=ahead_s, **policy)
    return judge(fleet_view(seen), found, None, {"h100": made}, T0).nodes[0]


def test_it_is_told_and_the_node_stays_healthy() -> None:
    verdict = judged(view(text="Host server is undergoing maintenance."))
    assert verdict.health is Health.HEALTHY
    expected = (
        "azure will reboot this machine, not before 2026-09-21 14:23 UTC (Host server is undergoing maintenance.)"
    )
    assert expected in verdict.because


@pytest.mark.parametrize(
    ("ahead_s", "changes", "health"),
    [
        pytest.param(0.0, {"started": True, "in_s": 0.0}, Health.HEALTHY, id="the-policy-says-nothing"),
        pytest.param(598.0, {}, Health.HEALTHY, id="not-yet"),
        pytest.param(600.0, {}, Health.DEGRADED, id="now"),
        pytest.param(900.0, {"ends_work": False, "kind": "freeze"}, Health.HEALTHY, id="a-freeze"),
        pytest.param(900.0, {"mine": None}, Health.HEALTHY, id="perhaps-another-machine"),
        pytest.param(900.0, {"in_s": None}, Health.HEALTHY, id="no-time-is-given"),
        pytest.param(900.0, {"started": True, "in_s": 0.0}, Health.DEGRADED, id="it-has-begun"),
    ],
)
def test_only_the_policy_makes_it_a_reason_to_take_the_node_out(
    ahead_s: float, changes: dict[str, Any], health: Health
) -> None:
    verdict = judged(view(**changes), ahead_s)
    assert verdict.health is health
    if health is Health.DEGRADED:
        assert (verdict.kind, verdict.cause, verdict.action) == ("maintenance", "maintenance", "contact_support")


def test_what_an_action_of_ours_made_the_cloud_announce_is_no_reason_for_another() -> None:
    ordered = view(in_s=0.0, started=True, by_user=True)
    assert judged(ordered, 900.0).health is Health.DEGRADED
    ours = dataclasses.replace(ordered, lifecycle=Lifecycle.VALIDATING)
    assert judged(ours, 900.0).health is Health.HEALTHY


@pytest.mark.parametrize(
    ("changes", "health"),
    [
        pytest.param({"in_s": 10.0}, Health.SUSPECT, id="announced-for-now"),
        pytest.param({"in_s": 0.0, "started": True}, Health.SUSPECT, id="begun"),
        pytest.param({"in_s": 600.0}, Health.DEAD, id="announced-for-later"),
        pytest.param({"in_s": 10.0, "mine": None}, Health.DEAD, id="perhaps-another-machine"),
        pytest.param({"in_s": 10.0, "ends_work": False}, Health.DEAD, id="a-freeze-makes-nobody-silent-for-so-long"),
    ],
)
def test_silence_at_the_announced_time_is_a_reboot_for_a_while(changes: dict[str, Any], health: Health) -> None:
    down = SchedulerSays(state="down", received_monotonic_ns=T0.monotonic_ns)
    seen = dataclasses.replace(view(silent_s=100.0, **changes), scheduler=down)
    rules = RULES | {"node_down": (node_down.RULE, node_down.Settings())}
    found = {seen.machine: assess(seen, T0, rules)}
    verdict = judge(fleet_view(seen), found, None, {"h100": Policy()}, T0).nodes[0]
    assert verdict.health is health


def test_an_absurd_time_is_said_to_be_none() -> None:
    (found,) = assess(view(not_before_unix_ns=1 << 62), T0, RULES)
    assert "not before" in found.because
    assert msgspec.structs.asdict(found)["note"] is True
