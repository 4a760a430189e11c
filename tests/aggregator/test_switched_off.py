"""A source that an agent does not read any more: what it said last does not stand for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.model.facts.services import ServicesFacts, Unit
from gpuwatch.model.states import Health
from gpuwatch.model.wire import Envelope
from tests.fakes_centre import Agent, Centre

_PACK = msgspec.msgpack.encode
DOWN = Unit(
    name="slurmd.service",
    active_state="failed",
    sub_state="failed",
    result="exit-code",
    enabled=True,
    was_active=True,
    since_unix_ns=None,
    restart_count=0,
    recent_restart_count=0,
)


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, nodes=2)
    yield made
    assert made.store is not None
    made.store.close()


def services(centre: Centre, agent: Agent) -> None:
    """Said once, as a slow source is."""
    facts = msgspec.Raw(_PACK(ServicesFacts((DOWN,), 3_600.0)))
    agent.extra = (Envelope("services", centre.clock.unix_ns(), 0.01, "ok", facts=facts),)
    centre.send(agent.report())
    agent.extra = ()


def found(centre: Centre, agent: Agent) -> set[str]:
    record = centre.fleet.get(agent.machine)
    assert record is not None
    return {finding.rule for finding in record.findings}


@pytest.mark.parametrize("restarted", [False, True], ids=["reload", "restart"])
def test_what_a_source_said_goes_some_minutes_after_it_was_switched_off(restarted: bool, centre: Centre) -> None:
    agent = next(iter(centre.agents.values()))
    centre.seconds(20)
    services(centre, agent)
    assert "service_down" in found(centre, agent)
    if restarted:
        agent.agent_id, agent.sequence = "agent-2", 0
    centre.seconds(250)
    assert "service_down" in found(centre, agent)
    centre.seconds(70)
    assert "service_down" not in found(centre, agent)
    view = centre.stage.scene.views[agent.machine]
    assert "services" not in view.sources
    assert ServicesFacts not in view.facts


def test_an_agent_that_was_cut_off_for_long_has_switched_nothing_off(centre: Centre) -> None:
    agent = next(iter(centre.agents.values()))
    centre.seconds(20)
    services(centre, agent)
    agent.speaks = False
    centre.seconds(1_000)
    agent.speaks = True
    centre.seconds(60)
    assert "service_down" in found(centre, agent)


def test_a_clock_that_steps_back_makes_nobody_old(centre: Centre) -> None:
    """A source that is read seldom still has a stamp of before the step, an hour ahead of NVML's."""
    agent = next(iter(centre.agents.values()))
    agent.extra = (Envelope("infiniband", centre.clock.unix_ns(), 0.0, "unsupported", "no RDMA card"),)
    centre.settle()
    agent.extra = (Envelope("infiniband", centre.clock.unix_ns() + 3_600 * 10**9, 0.0, "unsupported", "no RDMA card"),)
    centre.seconds(30)
    assert centre.stage.scene.health(agent.machine) == Health.HEALTHY
