"""A person is needed now: one alert, with what waits, since when, at what price, and the command that unblocks it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.aggregator.alerts import Alert
from gpuwatch.aggregator.money import IncidentMoney, Money
from gpuwatch.aggregator.needs import NOT_NEEDED, OF_NODE, OF_POOL, Need
from gpuwatch.aggregator.orders import Order
from gpuwatch.aggregator.standing import Standing
from gpuwatch.aggregator.unblock import unblock
from gpuwatch.errors import CloudError, StoreError
from gpuwatch.model.policy import Policy
from tests.alerting import desk_of, metrics_of, needs_of
from tests.fakes_centre import Agent, Centre

NAME = "GpuwatchPersonNeeded"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Centre]]:
    centres: list[Centre] = []
    yield centres
    for centre in centres:
        assert centre.store is not None
        centre.store.close()


def settled(made: list[Centre], tmp_path: Path, **words: Any) -> Centre:
    made.append(Centre(tmp_path, **words))
    made[0].settle()
    return made[0]


def needed(alerts: tuple[Alert, ...], *, ended: bool = False) -> list[Alert]:
    return [one for one in alerts if one.labels["alertname"] == NAME and (one.ended_unix_ns is not None) == ended]


def priced(centre: Centre) -> Money:
    price = IncidentMoney(usd=Decimal("4.10"), by_category={}, usd_per_hour_now=Decimal("27.20"))
    return Money(as_of_unix_ns=1, incidents={line.fault: price for line in centre.opened()})


def test_a_job_that_forbids_requeue_pages_with_the_command_and_ends_when_it_moves(
    made: list[Centre], tmp_path: Path
) -> None:
    centre = settled(made, tmp_path)
    centre.scheduler.add_job("17.0", ("gpu03",), run="opt", may_requeue=False)
    centre.seconds(5)
    desk = desk_of(centre, lambda: priced(centre))
    centre.agents["m-gpu03"].xid(79)
    centre.seconds(15)
    (alert,) = needed(desk.alerts())
    (incident,) = centre.opened()
    assert alert.labels == {
        "alertname": NAME,
        "severity": "critical",
        "source": "gpuwatch",
        "cluster": "alpha",
        "kind": "person_needed",
        "reason": "job",
        "fault": incident.fault,
        "pool": "p",
        "slot": "gpu03",
        "run": "opt",
    }
    told = alert.annotations
    assert told["summary"] == "gpu03 waits for a job that gpuwatch may not end"
    assert told["description"] == "job 17.0 does not allow requeue"
    assert (told["waits"], told["jobs"]) == ("gpu03", "17.0")
    assert told["price"] == "$27.20 an hour while it waits, $4.10 so far"
    assert told["unblock"] == ("scontrol update jobid=17 requeue=1  # then gpuwatch requeues it; or end it: scancel 17")
    (held,) = [line for line in centre.lines("hold") if line.reason == "job"]
    assert alert.started_unix_ns == held.at_unix_ns
    centre.boot()  # a restart: the same alert, since the same moment, before anything new is known
    desk = desk_of(centre, lambda: priced(centre))
    centre.second()
    (again,) = needed(desk.alerts())
    assert (again.labels, again.started_unix_ns) == (alert.labels, alert.started_unix_ns)
    centre.scheduler.end_job("17.0", "cancelled")
    centre.seconds(10)
    assert needed(desk.alerts()) == []
    (over,) = needed(desk.alerts(), ended=True)
    assert over.labels == alert.labels


def test_a_policy_that_waits_pages_when_the_deadline_is_over(made: list[Centre], tmp_path: Path) -> None:
    centre = Centre(tmp_path)
    made.append(centre)
    pool = centre.settings.pools["p"]
    waits = msgspec.structs.replace(pool, policy=msgspec.structs.replace(pool.policy, job_action="wait"))
    centre.settings = dataclasses.replace(centre.settings, pools={"p": waits})
    centre.boot()
    centre.settle()
    centre.scheduler.add_job("17.0", ("gpu03",), run="opt")
    desk = desk_of(centre)
    centre.agents["m-gpu03"].xid(79)
    centre.seconds(60)
    assert needed(desk.alerts()) == []
    centre.seconds(30)
    (alert,) = needed(desk.alerts())
    assert alert.annotations["unblock"] == "scancel 17  # or wait for the end"
    assert alert.annotations["description"] == "job 17.0 is still there, and gpuwatch may not end it"


def test_an_approval_pages_at_once_and_ends_with_the_word(made: list[Centre], tmp_path: Path) -> None:
    centre = settled(made, tmp_path, mode="approve")
    desk = desk_of(centre)
    centre.agents["m-gpu04"].speaks = False
    centre.cloud.set_state("m-gpu04", "failed")
    centre.scheduler.down.add("gpu04")
    while not centre.opened():
        centre.second()
    centre.second()
    (alert,) = needed(desk.alerts())
    (asked,) = centre.stage.scene.plan.actions
    assert alert.labels["reason"] == "approval"
    assert alert.annotations["unblock"] == f"gpuwatch approve {asked.action_id} --url http://gw"
    centre.people.approve(asked.action_id, Order().who, 3600.0)  # what the command does
    centre.seconds(3)
    assert needed(desk.alerts()) == []
    assert len(needed(desk.alerts(), ended=True)) == 1


def test_a_used_up_budget_is_one_alert_for_all_who_wait_and_not_at_once(made: list[Centre], tmp_path: Path) -> None:
    centre = settled(made, tmp_path, policy="shared_cause_nodes = 8\nmany_silent_nodes = 8")
    for number in (1, 2):  # both places of the budget wait for jobs
        centre.scheduler.add_job(f"{number}.0", (f"gpu0{number}",), may_requeue=False)
    desk = desk_of(centre)
    for number in (1, 2):
        centre.agents[f"m-gpu0{number}"].xid(79)
    centre.seconds(20)
    for number in (3, 4, 5):
        centre.agents[f"m-gpu0{number}"].xid(79)
    centre.seconds(100)
    assert sorted(one.labels["reason"] for one in needed(desk.alerts())) == ["job", "job"]
    for _ in range(301):
        centre.second()
        desk.alerts()
    (alert,) = [one for one in needed(desk.alerts()) if one.labels["reason"] == "budget"]
    assert not {"slot", "fault"} & alert.labels.keys()
    assert alert.annotations["waits"] == "gpu03, gpu04, gpu05"
    assert alert.annotations["summary"].startswith("3 nodes of pool p must wait")
    assert "scontrol update nodename=gpu01,gpu02 state=resume" in alert.annotations["unblock"]
    assert "max_nodes_out" in alert.annotations["unblock"]


def test_a_failed_action_pages_until_the_next_is_begun(made: list[Centre], tmp_path: Path) -> None:
    centre = settled(made, tmp_path)
    desk = desk_of(centre)
    centre.cloud.fails = [CloudError("the quota is used up", why="of 8", next_step="ask for more")]
    centre.agents["m-gpu04"].speaks = False
    centre.cloud.set_state("m-gpu04", "failed")
    centre.scheduler.down.add("gpu04")
    while not any(saga.outcome for saga in centre.executor.sagas()):
        centre.second()
    centre.second()
    (alert,) = needed(desk.alerts())
    assert alert.labels["reason"] == "failed"
    assert alert.annotations["description"].startswith("replace failed: the quota is used up")
    assert alert.annotations["unblock"] == "gpuwatch explain gpu04 --url http://gw"
    centre.seconds(40)  # the cool-down is over: the next try
    assert next(saga.outcome for saga in centre.executor.sagas()) == "failed"
    assert needed(desk.alerts()) == []


@pytest.mark.parametrize("mode", ["observe", "recommend"])
def test_where_a_person_does_everything_the_incident_is_the_page(made: list[Centre], tmp_path: Path, mode: str) -> None:
    centre = settled(made, tmp_path, mode=mode)
    desk = desk_of(centre)
    centre.agents["m-gpu04"].xid(79)
    centre.seconds(30)
    assert [one.labels["alertname"] for one in desk.alerts()] == ["GpuwatchGpuLost"]


def test_while_we_doubt_ourselves_nothing_has_moved(made: list[Centre], tmp_path: Path) -> None:
    centre = settled(made, tmp_path, mode="approve")
    desk = desk_of(centre)
    centre.agents["m-gpu04"].xid(79)
    centre.seconds(10)
    assert len(needed(desk.alerts())) == 1
    centre.clock.step_s(3600)
    centre.seconds(3)
    assert centre.stage.scene.blind_because
    assert len(needed(desk.alerts())) == 1
    centre.seconds(60)
    assert len(needed(desk.alerts())) == 1


def test_a_hold_that_is_gone_for_a_tick_is_no_end_and_one_for_a_tick_no_beginning() -> None:
    standing: Standing[str, str] = Standing(30.0)

    def look(at_s: float, *keys: str) -> tuple[str, ...]:
        found = {key: key for key in keys}
        return standing.look(found, int(at_s * 1e9), after_s=lambda key: 300.0 if key == "slow" else 0.0)

    assert look(0, "quick", "slow") == ("quick",)
    assert look(20) == ("quick",)
    assert look(30, "quick") == ("quick",)
    assert look(61) == ()
    assert [look(at_s, "slow") for at_s in (100, 399)] == [(), ()]
    assert look(400, "slow") == ("slow",)


@pytest.mark.parametrize("slot", ["gpu03", "gpu99"])
def test_a_machine_that_is_paid_for_and_does_nothing_is_told(made: list[Centre], tmp_path: Path, slot: str) -> None:
    """Beside the one that fills its slot, or in a slot that the scheduler does not know."""
    centre = settled(made, tmp_path)
    needs = needs_of(centre)
    centre.cloud.add("m-left", slot)
    centre.agents["m-left"] = Agent(slot, "m-left", centre.clock)
    centre.seconds(5)
    assert needs.now() == ()
    for _ in range(31):
        centre.seconds(60)
        needs.now()
    (need,) = needs.now()
    assert (need.reason, need.slots, need.machine) == ("unused", (slot,), "m-left")
    assert "is paid for, and" in need.because
    centre.seconds(60)
    assert needs.now() == (need,), "it began when it began"
    centre.cloud.set_state("m-left", "gone", "scaled_in")
    centre.agents["m-left"].speaks = False
    centre.seconds(120)
    assert needs.now() == ()
    assert centre.harm() == []


def test_a_new_machine_on_its_way_is_not_called_unused(made: list[Centre], tmp_path: Path) -> None:
    centre = settled(made, tmp_path, policy="join_deadline_s = 100000")
    needs = needs_of(centre)
    centre.new_agents_speak = False
    centre.agents["m-gpu04"].speaks = False
    centre.cloud.set_state("m-gpu04", "failed")
    centre.scheduler.down.add("gpu04")
    for _ in range(40):
        centre.seconds(60)
        assert "unused" not in {need.reason for need in needs.now()}
    assert centre.executor.open()


def test_every_reason_to_hold_is_one_that_needs_a_person_or_one_that_does_not() -> None:
    """A new reason of the planner must be weighed: nobody may wait for a person whom nobody calls."""
    decide = Path(__file__).resolve().parents[2] / "gpuwatch" / "decide"
    text = "".join(path.read_text() for path in decide.glob("*.py") if path.name != "__init__.py")
    found = set(re.findall(r'(?:Wanted\(None, |return |refusal = |reason=|else \(?)"([a-z_]+)",', text))
    assert {"budget", "attempts", "job_action", "group_owner", "checkpoint"} <= found
    assert found - {"none"} <= OF_NODE | OF_POOL | NOT_NEEDED  # `none` is a rung of the ladder
    assert not (OF_NODE | OF_POOL) & NOT_NEEDED


SCHEDULERS = ("slurm", "local")


@pytest.mark.parametrize("reason", sorted({*OF_NODE, *OF_POOL, "job", "approval", "failed", "unused", "something new"}))
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("slot", ["gpu01", "run:opt"])
def test_every_reason_has_a_next_step(reason: str, scheduler: str, slot: str) -> None:
    need = Need(reason=reason, pool="p", because="b", slots=(slot,), jobs=("7.1",), action_id="a", out=("gpu09",))
    said = unblock(need, policy=Policy(), scheduler=scheduler, url="http://127.0.0.1:9190")
    assert said
    assert "\n" not in said
    assert "--url" not in said  # at home the command line knows the address


def test_names_of_others_cannot_leave_the_command() -> None:
    need = Need(reason="failed", pool="p", because="b", slots=("gpu01; rm -rf /",))
    said = unblock(need, policy=Policy(), scheduler="slurm", url="http://127.0.0.1:9190")
    assert said == "gpuwatch explain 'gpu01; rm -rf /'"
    job = Need(reason="job", pool="p", because="b", slots=("a",), jobs=("$(reboot).1",))
    assert "scancel '$(reboot)'" in unblock(job, policy=Policy(), scheduler="slurm", url="")


def test_a_ledger_that_cannot_be_read_silences_neither_page_nor_metrics(made: list[Centre], tmp_path: Path) -> None:
    centre = settled(made, tmp_path, mode="approve")
    needs, metrics = needs_of(centre), metrics_of(centre)
    centre.agents["m-gpu04"].xid(79)
    centre.seconds(10)
    assert [need.reason for need in needs.now()] == ["approval"]

    class Broken:
        def lines_after(self, row_id: int) -> Any:
            raise StoreError("the disk is gone")

    needs._ledger = Broken()  # type: ignore[assignment]
    centre.seconds(5)
    assert [need.reason for need in needs.now()] == ["approval"]
    assert b"gpuwatch_ledger_failing" in metrics.render()[0]


def test_needs_cost_nothing_while_all_is_well(made: list[Centre], tmp_path: Path) -> None:
    centre = settled(made, tmp_path)
    assert needs_of(centre).now() == ()
