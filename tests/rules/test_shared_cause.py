"""The same verdict on several nodes close in time is one fault of something shared."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuwatch.model.evidence import SharedCause
from gpuwatch.model.policy import Policy
from gpuwatch.model.states import Health
from gpuwatch.model.verdict import Verdict
from gpuwatch.rules.shared_cause import Settings, examine
from tests.fakes import T0, fleet_view, later, node_view


def shared(
    *sick: tuple[str, str, float],
    health: Health = Health.DRIVER_FAILED,
    domains: Sequence[str] = (),
    policy: Policy | None = None,
) -> list[SharedCause]:
    """Each sick: slot, cause, since how many seconds."""
    places = list(domains) or [""] * len(sick)
    nodes = [node_view(slot, domain=domain) for (slot, _, _), domain in zip(sick, places, strict=True)]
    verdicts = tuple(
        Verdict(
            slot=slot,
            machine=f"m-{slot}",
            health=health,
            because="",
            cause=cause,
            since_monotonic_ns=later(T0, -since).monotonic_ns,
        )
        for slot, cause, since in sick
    )
    policies = {"h100": policy} if policy is not None else {}
    return list(examine(fleet_view(*nodes, policies=policies), verdicts, T0, Settings()))


@pytest.mark.parametrize(
    ("sick", "slots"),
    [
        pytest.param([("a", "x", 0), ("b", "x", 0)], (), id="two-are-not-enough"),
        pytest.param([("a", "x", 0), ("b", "x", 0), ("c", "x", 0)], ("a", "b", "c"), id="three-are"),
        pytest.param(
            [("a", "x", 300), ("b", "x", 100), ("c", "x", 0)], ("a", "b", "c"), id="at-the-edge-of-the-window"
        ),
        pytest.param([("a", "x", 301), ("b", "x", 100), ("c", "x", 0)], (), id="a-second-too-far-apart"),
        pytest.param([("a", "x", 0), ("b", "x", 0), ("c", "y", 0)], (), id="different-causes"),
        pytest.param(
            [("a", "x", 9000), ("b", "x", 9000), ("c", "x", 9000), ("d", "x", 0)],
            ("a", "b", "c"),
            id="held-as-long-as-they-are-sick-but-not-the-one-hours-later",
        ),
        pytest.param(
            [("a", "x", 500), ("b", "x", 400), ("c", "x", 300), ("d", "x", 150), ("e", "x", 0)],
            ("a", "b", "c", "d", "e"),
            id="a-chain-of-windows",
        ),
    ],
)
def test_how_many_within_what_time(sick: list[tuple[str, str, float]], slots: tuple[str, ...]) -> None:
    found = shared(*sick)
    assert [cause.slots for cause in found] == ([slots] if slots else [])


@pytest.mark.parametrize("health", [Health.SUSPECT, Health.UNKNOWN, Health.HEALTHY, Health.ABSENT])
def test_only_sick_nodes_count(health: Health) -> None:
    assert shared(("a", "x", 0), ("b", "x", 0), ("c", "x", 0), health=health) == []


def test_the_pools_policy_says_how_many() -> None:
    pair = [("a", "x", 0.0), ("b", "x", 0.0)]
    assert shared(*pair, policy=Policy(shared_cause_nodes=2)) != []
    assert shared(*pair, policy=Policy(shared_cause_nodes=2, shared_cause_window_s=0.0)) != []


def test_where_all_lie_in_one_domain_the_domain_is_told_and_not_the_pool_around_it() -> None:
    sick = [("a", "x", 0.0), ("b", "x", 0.0), ("c", "x", 0.0)]
    (found,) = shared(*sick, domains=["rack1", "rack1", "rack1"])
    assert (found.subject.kind, found.subject.id) == ("domain", "rack1")
    (found,) = shared(*sick, domains=["rack1", "rack1", "rack2"])
    assert (found.subject.kind, found.subject.id) == ("pool", "h100")


@pytest.mark.parametrize(("pending", "slots"), [({"probe_hung": 1}, ("a", "b", "c")), ({}, ())])
def test_a_suspect_whose_fault_only_has_to_last_counts_too(pending: dict[str, int], slots: tuple[str, ...]) -> None:
    verdicts = tuple(
        Verdict(
            slot=slot,
            machine=f"m-{slot}",
            health=health,
            because="",
            cause="probe_hung",
            since_monotonic_ns=T0.monotonic_ns,
            pending=pending if health is Health.SUSPECT else {},
        )
        for slot, health in (("a", Health.DRIVER_FAILED), ("b", Health.SUSPECT), ("c", Health.SUSPECT))
    )
    found = list(examine(fleet_view(*(node_view(slot) for slot in "abc")), verdicts, T0, Settings()))
    assert tuple(slot for one in found for slot in one.slots) == slots
