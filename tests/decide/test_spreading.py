"""The same fault on node after node is one of something shared, though the first of them were replaced already."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.decide.spreading import spreading
from gpuwatch.model.plan import Done, PlanMemory
from gpuwatch.model.policy import Policy
from gpuwatch.model.states import Health
from gpuwatch.model.verdict import Judgement, Verdict
from tests.fakes import T0, fleet_view, later, node_view

CAUSE = "ib_link_flaps"


def done(slot: str, ago_s: float = 600.0, **changes: Any) -> Done:
    started = later(T0, -ago_s)
    usual: dict[str, Any] = {
        "action_id": f"replace-{slot}-{ago_s}",
        "kind": "replace",
        "slot": slot,
        "machine": f"old-{slot}",
        "cause": CAUSE,
        "fault": f"f-{slot}",
        "started_unix_ns": started.unix_ns,
        "started_monotonic_ns": started.monotonic_ns,
        "ended": True,
        "outcome": "done",
    }
    return Done(**(usual | changes))


def found(*past: Done, sick: tuple[str, ...] = ("n3",), policy: Policy | None = None, **verdict: Any) -> list[str]:
    """The slots that are held, of eight."""
    views = [node_view(f"n{n}") for n in range(1, 9)]
    usual: dict[str, Any] = {"health": Health.DEGRADED, "cause": CAUSE, "because": "sick"}
    judgement = Judgement(
        nodes=tuple(
            Verdict(slot=view.slot, machine=view.machine, **(usual | verdict))
            if view.slot in sick
            else Verdict(slot=view.slot, machine=view.machine, health=Health.HEALTHY, because="well")
            for view in views
        )
    )
    fleet = fleet_view(*views)
    causes = spreading(fleet, judgement, {"h100": policy or Policy()}, PlanMemory(actions=past), T0)
    assert all(cause.because.endswith("one fault of something they share") for cause in causes)
    return [slot for cause in causes for slot in cause.slots]


TWO = (done("n1"), done("n2", 300.0))


@pytest.mark.parametrize(
    ("past", "changes", "held"),
    [
        pytest.param(TWO, {}, ["n3"], id="the-third-is-held"),
        pytest.param(TWO, {"sick": ("n3", "n4")}, ["n3", "n4"], id="and-the-fourth"),
        pytest.param(TWO, {"health": Health.SUSPECT, "pending": {"x": 1}}, ["n3"], id="before-it-has-lasted"),
        pytest.param(TWO, {"health": Health.SUSPECT}, [], id="a-mere-suspicion"),
        pytest.param(TWO, {"cause": "xid_79"}, [], id="another-cause"),
        pytest.param((done("n1"),), {}, [], id="one-before-it"),
        pytest.param((done("n1"),), {"sick": ("n3", "n4")}, ["n3", "n4"], id="one-before-two"),
        pytest.param((*TWO, done("n3")), {}, [], id="its-own-action-goes-on"),
        pytest.param((done("n1", 3700.0), done("n2")), {}, [], id="long-ago"),
        pytest.param((done("n1"), done("n1", 20.0, kind="drain")), {}, [], id="a-slot-counts-once"),
        pytest.param((done("n1"), done("n2", outcome="cancelled")), {}, [], id="it-was-not-needed"),
        pytest.param((done("n1"), done("n2", kind="resume")), {}, [], id="one-that-came-back"),
        pytest.param((done("n1"), done("elsewhere")), {}, [], id="another-pool"),
        pytest.param(TWO, {"policy": Policy(spreading_window_s=0.0)}, [], id="switched-off"),
        pytest.param((done("n1", started_monotonic_ns=None), TWO[1]), {}, ["n3"], id="before-our-start"),
        pytest.param((done("n1", 90_000.0, started_monotonic_ns=None), TWO[1]), {}, [], id="long-before-our-start"),
    ],
)
def test_who_is_held(past: tuple[Done, ...], changes: dict[str, Any], held: list[str]) -> None:
    assert found(*past, **changes) == held
