"""A drained node that seems well: it goes back only where what told of its fault now says that it is gone."""

from __future__ import annotations

import pytest

import gpuwatch.rules
from gpuwatch.decide.returning import SEEN_BY, returning
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.facts.infiniband import InfinibandFacts
from gpuwatch.model.facts.pcie import PcieFacts
from gpuwatch.model.facts.services import ServicesFacts
from gpuwatch.model.plan import Action, Done, Hold, PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import SchedulerSays, Source
from gpuwatch.model.wire import Status
from gpuwatch.registry import leaves
from gpuwatch.rules import FleetRule, Rule
from tests.fakes import T0, fleet_view, later, node_view, source

DRAIN = SchedulerSays(state="drained", received_monotonic_ns=0, drain_owner="gpuwatch", reason="gpuwatch: x")


def outcome(cause: str, sources: dict[str, Source]) -> Action | Hold | None:
    heard = {"nvml": source("nvml"), **sources}
    view = node_view("sick", lifecycle=Lifecycle.DRAINED, scheduler=DRAIN, sources=heard)
    past = Done(
        action_id="drain-F1-1",
        kind="drain",
        slot="sick",
        machine=view.machine,
        cause=cause,
        fault="F1",
        started_unix_ns=later(T0, -7_200).unix_ns,
        started_monotonic_ns=later(T0, -7_200).monotonic_ns,
        ended=True,
        outcome="done",
    )
    verdict = Verdict(slot="sick", machine=view.machine, health=Health.HEALTHY, because="well", since_unix_ns=0)
    policy, fleet = Policy(mode=Mode.DRAIN), fleet_view(view)
    return returning(view, verdict, policy, [past], PlanMemory(actions=(past,)), fleet, T0)


@pytest.mark.parametrize("status", ["ok", "failed", "hung", "unsupported", None])
@pytest.mark.parametrize(
    ("cause", "name"),
    [
        ("ib_port_down", "infiniband"),
        ("pcie_device_gone", "pcie"),
        ("service_down_nvidia-fabricmanager", "services"),
        ("mount_hung nfs1:/home", "host"),
        ("disk_full", "host"),
        ("file_system_read_only", "host"),
    ],
)
def test_a_source_that_says_nothing_proves_no_repair(cause: str, name: str, status: Status | None) -> None:
    found = outcome(cause, {} if status is None else {name: source(name, status=status)})
    if status == "ok":
        assert isinstance(found, Action)
        assert found.kind == "resume"
    else:
        assert isinstance(found, Hold)
        assert found.reason == "repair_unproven"
        assert name in found.because


def test_what_only_the_kernel_told_is_not_proven_gone_by_silence() -> None:
    found = outcome("kernel_nvme_failed", {"kernel_log": source("kernel_log")})
    assert isinstance(found, Hold)
    assert found.reason == "repair_unproven"


def test_every_rule_of_a_source_is_proven_gone_by_that_source() -> None:
    names = {HostFacts: "host", InfinibandFacts: "infiniband", PcieFacts: "pcie", ServicesFacts: "services"}
    rules = leaves(gpuwatch.rules, "RULE", Rule, FleetRule)
    for name, rule in rules.items():
        of = {names[kind] for kind in getattr(rule, "watches", ()) if kind in names}
        if of and name != "clock_unsynchronised":  # that is only ever a note
            assert {seen for begin, seen in SEEN_BY.items() if name.startswith(begin)} == of, name
