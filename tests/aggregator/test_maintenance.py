"""A cloud's announcement through a whole centre: told, acted on where the policy says so, paid for as maintenance."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpuwatch.model.facts.maintenance import MaintenanceFacts, Notice
from gpuwatch.model.wire import Envelope, Report
from tests.fakes_centre import Agent, Centre, _raw


class Announced(Agent):
    """An agent whose cloud announces something."""

    notices: tuple[Notice, ...] = ()
    answers = True

    def report(self, *args: object, **kwargs: object) -> Report:
        made = super().report(*args, **kwargs)  # type: ignore[arg-type]
        facts = _raw(MaintenanceFacts("azure", self.notices))
        envelope = Envelope("maintenance", self.clock.unix_ns(), 0.01, "ok", facts=facts)
        if not self.answers:
            envelope = Envelope("maintenance", self.clock.unix_ns(), 0.01, "failed", reason="no answer")
        return msgspec.structs.replace(made, envelopes=(*made.envelopes, envelope))


def reboot(in_s: float, *, started: bool = False) -> tuple[Notice, ...]:
    return (Notice("e1", "reboot", True, started, True, in_s=in_s),)


def begun(folder: Path, policy: str = "") -> tuple[Centre, Announced]:
    centre = Centre(folder, policy=policy)
    agent = Announced("gpu02", "m-gpu02", centre.clock)
    centre.agents["m-gpu02"] = agent
    centre.settle()
    return centre, agent


def test_it_is_told_and_nothing_is_done(tmp_path: Path) -> None:
    centre, agent = begun(tmp_path)
    agent.notices = reboot(100.0)
    scene = centre.seconds(20)
    assert "azure will reboot this machine" in scene.verdicts["m-gpu02"].because
    assert centre.harm() == []
    assert centre.opened() == []
    assert centre.lines("maintenance") == []


def test_a_node_that_reboots_as_announced_is_not_replaced_and_its_time_is_maintenance(tmp_path: Path) -> None:
    centre, agent = begun(tmp_path)
    agent.notices = reboot(20.0)
    centre.seconds(6)
    agent.notices = reboot(0.0, started=True)
    centre.seconds(6)
    agent.speaks = False
    centre.scheduler.down.add("gpu02")
    centre.seconds(120)
    assert centre.states()["gpu02"].startswith("suspect")
    agent.reboot("boot-2")
    agent.speaks, agent.notices = True, ()
    centre.scheduler.down.discard("gpu02")
    centre.seconds(20)
    assert centre.cloud.calls == []
    assert centre.opened() == []
    (window,) = centre.lines("maintenance")
    assert window.machine == "m-gpu02"
    assert window.end_unix_ns - window.begin_unix_ns == 900 * 10**9
    centre.seconds(1000)
    assert len(centre.lines("maintenance")) == 1


def test_one_that_does_not_come_back_is_dead_in_the_end(tmp_path: Path) -> None:
    centre, agent = begun(tmp_path)
    agent.notices = reboot(0.0, started=True)
    centre.seconds(6)
    agent.speaks = False
    centre.scheduler.down.add("gpu02")
    centre.seconds(400)
    assert [line.kind for line in centre.opened()] == ["node_dead"]
    assert centre.cloud.calls


def test_the_policy_drains_ahead_and_gives_back_afterwards(tmp_path: Path) -> None:
    centre, agent = begun(tmp_path, "drain_before_maintenance_s = 300")
    agent.notices = reboot(1000.0)
    centre.seconds(20)
    assert centre.harm() == []
    agent.notices = reboot(290.0)
    centre.seconds(20)
    assert centre.scheduler.drains["gpu02"].startswith("gpuwatch")
    assert centre.states()["gpu02"] == "degraded drained"
    assert [line.kind for line in centre.opened()] == ["maintenance"]
    agent.notices = reboot(0.0, started=True)
    centre.seconds(6)
    agent.speaks = False
    centre.seconds(60)
    agent.reboot("boot-2")
    agent.speaks, agent.notices = True, ()
    centre.seconds(700)  # a reboot by itself is watched for a while
    assert centre.states()["gpu02"] == "healthy in_service"
    assert centre.scheduler.drains["gpu02"] == ""
    assert centre.cloud.calls == []
    assert centre.book.open == {}


def test_a_node_that_was_drained_ahead_waits_until_the_cloud_says_that_it_is_over(tmp_path: Path) -> None:
    centre, agent = begun(tmp_path, "drain_before_maintenance_s = 300")
    agent.notices = reboot(290.0)
    centre.seconds(20)
    agent.answers = False
    scene = centre.seconds(120)
    assert centre.states()["gpu02"] == "healthy drained"
    assert [hold.reason for hold in scene.plan.holds] == ["maintenance"]
    agent.answers, agent.notices = True, ()
    centre.seconds(20)
    assert centre.states()["gpu02"] == "healthy in_service"
