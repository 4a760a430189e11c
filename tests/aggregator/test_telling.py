"""What people are told, and what they may order."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.aggregator.cost_words import cost_words
from gpuwatch.aggregator.explain import explain
from gpuwatch.aggregator.headline import headline
from gpuwatch.aggregator.lastseen import LastSeenKeeper
from gpuwatch.aggregator.money import CategoryMoney, Money, MoneyDesk
from gpuwatch.aggregator.orders import Order, OrderError, Orders
from gpuwatch.aggregator.overview import Teller
from gpuwatch.aggregator.saga import Saga, begin
from gpuwatch.aggregator.scene import Scene
from gpuwatch.aggregator.webapp import _ENCODE
from gpuwatch.model.money import Category, group_of
from gpuwatch.model.plan import Action, Hold, Plan
from gpuwatch.prices.book import PriceBook
from gpuwatch.prices.overrides import PriceOverride, PriceSettings
from tests.fakes_centre import Centre
from tests.fakes_hands import FakeClock


def node(slot: str, health: str = "healthy") -> dict[str, Any]:
    return {"slot": slot, "health": health, "sick": health in ("dead", "driver_failed", "degraded")}


def saga(slot: str, kind: Any = "replace") -> Saga:
    action = Action(
        action_id=f"a-{slot}", kind=kind, slot=slot, machine="m", pool="p", because="b", fault="f", takes_out=True
    )
    return begin(action, order="grow_first", now_unix_ns=1)


def hold(slot: str, reason: str = "budget") -> Hold:
    return Hold(slot=slot, machine="m", pool="p", reason=reason, because="b")


MONEY = Money(
    as_of_unix_ns=1,
    total_usd=Decimal("2000.00"),
    waste_usd_per_hour_now=Decimal("1474.80"),
    incidents_usd=Decimal("1241.09"),
)
COST = "Burning $1,474.80/h of waste; $1,241.09 lost to incidents so far."


@pytest.mark.parametrize(
    ("nodes", "sagas", "holds", "state", "doing", "tone"),
    [
        pytest.param([], [], [], "No node is known yet.", "", "warn", id="nobody"),
        pytest.param([node("a"), node("b")], [], [], "All 2 nodes are well.", "", "good", id="all-well"),
        pytest.param([node("a")], [], [], "The one node is well.", "", "good", id="one-well"),
        pytest.param([node("a"), node("b", "joining")], [], [], "None of 2 nodes is sick.", "", "good", id="joining"),
        *(
            pytest.param(
                [node("a"), node("b", health)],
                [],
                [],
                "None of 2 nodes is sick; 1 not known to be well.",
                "",
                "warn",  # never green: nobody knows
                id=f"one-{health}",
            )
            for health in ("unknown", "suspect", "unseen")
        ),
        pytest.param(
            [node("a", "dead")], [saga("a")], [], "1 of 1 node is sick.", "1 being replaced.", "bad", id="one"
        ),
        pytest.param(
            [node("a", "dead"), node("b", "driver_failed"), node("c", "degraded"), node("d")],
            [saga("a"), saga("b", "drain")],
            [hold("c"), hold("a", "in_progress")],
            "3 of 4 nodes are sick.",
            "1 being replaced, 1 being drained, 1 held.",
            "bad",
            id="three",
        ),
    ],
)
def test_the_headline(
    nodes: list[dict[str, Any]], sagas: list[Saga], holds: list[Hold], state: str, doing: str, tone: str
) -> None:
    scene = Scene(now=FakeClock().now(), plan=Plan(at_unix_ns=1, holds=tuple(holds)))
    said = headline(nodes, scene, sagas, MONEY)
    assert {key: said[key] for key in ("state", "doing", "cost", "tone")} == {
        "state": state,
        "doing": doing,
        "cost": COST,
        "tone": tone,
    }
    assert said["money"]["tone"] == "plain"


def category(name: str, usd_per_hour: str) -> CategoryMoney:
    none = Decimal(0)
    return CategoryMoney(
        category=name,
        group=group_of(Category(name)),
        usd=none,
        node_hours=none,
        unpriced_node_hours=none,
        usd_per_hour_now=Decimal(usd_per_hour),
    )


IDLE = msgspec.structs.replace(
    MONEY,
    usd_per_hour_now=Decimal("1573.12"),
    categories=tuple(map(category, ("productive", "idle", "spare", "dead"), ("0", "1376.48", "98.32", "98.32"))),
)


def test_a_fleet_that_stands_idle_is_well_and_not_all_is_well() -> None:
    said = headline([node("a"), node("b")], Scene(now=FakeClock().now()), [], IDLE)
    assert (said["state"], said["tone"]) == ("All 2 nodes are well.", "good")
    assert said["doing"] == "Nothing is being done, and $1,474.80/h buy nothing: idle $1,376.48, dead $98.32."
    assert said["money"]["tone"] == "warn"
    acted = headline([node("a", "dead")], Scene(now=FakeClock().now()), [saga("a")], IDLE)
    assert acted["doing"] == "1 being replaced."


def test_what_is_newer_than_the_sums_is_not_called_zero_dollars() -> None:
    none_yet = msgspec.structs.replace(MONEY, incidents_usd=Decimal("0.00"))
    assert cost_words(none_yet, uncounted=1)["big"] == "What it costs is being worked out."
    assert cost_words(none_yet)["big"] == "$0.00 lost to incidents"
    said = cost_words(MONEY, uncounted=2)
    assert said["big"] == "$1,241.09 lost to incidents; the 2 newest are being worked out"
    assert said["sentence"].endswith("$1,241.09 lost to incidents so far; the 2 newest are being worked out.")


def test_the_waste_and_what_incidents_cost_now_are_two_things_and_it_says_which() -> None:
    money = msgspec.structs.replace(
        IDLE, incidents_usd_per_hour_now=Decimal("196.64"), incidents_waste_usd_per_hour_now=Decimal("98.32")
    )
    assert cost_words(money)["lines"] == [
        ("$1,474.80/h", "of waste is burning now: idle $1,376.48, dead $98.32"),
        (
            "$196.64/h",
            "is what open incidents cost now, $98.32 of it machines that are made ready, which is no waste; "
            "$1,376.48/h of the waste is no incident's",
        ),
        ("$1,573.12/h", "is the whole bill now"),
        ("$2,000.00", "spent since the ledger began"),
    ]


def test_the_first_seconds_of_an_incident_say_that_its_price_is_being_worked_out(centre: Centre) -> None:
    money = desk(centre)
    money.refresh()  # before
    kill(centre, "gpu04")
    while not centre.opened():
        centre.second()
    old = msgspec.structs.replace(money.latest(), as_of_unix_ns=centre.clock.unix_ns() - 10**9)
    tell = teller(centre, lambda: old)
    assert tell.incidents()[0]["price_pending"]
    assert tell.fleet()["headline"]["money"]["big"] == "What it costs is being worked out."
    centre.seconds(3)
    money.refresh()
    tell = teller(centre, money.latest)
    (incident,) = tell.incidents()
    assert not incident["price_pending"]
    assert incident["price_usd"] > 0
    sums = money.latest()
    assert sums.incidents_usd_per_hour_now == sums.incidents_waste_usd_per_hour_now == Decimal("27.20")
    by_category: dict[str, Decimal] = {}
    for row in sums.pools:
        by_category[row.category] = by_category.get(row.category, Decimal(0)) + row.usd
    assert by_category == {row.category: row.usd for row in sums.categories}


def test_what_has_no_price_is_not_called_zero_dollars() -> None:
    money = Money(as_of_unix_ns=1, unpriced_node_hours=Decimal(7))
    said = headline([node("a")], Scene(now=FakeClock().now()), [], money)
    assert said["cost"] == "No price is known: set `usd_per_hour` of the pool."


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, mode="approve")
    made.settle()
    yield made
    assert made.store is not None
    made.store.close()


def desk(centre: Centre) -> MoneyDesk:
    assert centre.store is not None
    prices = PriceBook.bundled(PriceSettings(pools={"p": PriceOverride(usd_per_hour=Decimal("27.197"))}))
    return MoneyDesk(
        centre.store,
        prices,
        centre.clock,
        alive=lambda: {record.machine for record in centre.fleet.machines()},
        evidence_age_s=lambda: 20.0,
    )


def teller(centre: Centre, money: Any) -> Teller:
    return Teller(
        settings=centre.settings,
        clock=centre.clock,
        stage=centre.stage,
        fleet=centre.fleet,
        book=centre.book,
        executor=centre.executor,
        people=centre.people,
        guard=centre.guard,
        money=money,
        witnesses=(centre.scheduler_witness, centre.cloud_witness),
    )


def orders(centre: Centre) -> Orders:
    assert centre.store is not None
    return Orders(
        token=b"operator",
        settings=centre.settings,
        store=centre.store,
        people=centre.people,
        fleet=centre.fleet,
        stage=centre.stage,
        clock=centre.clock,
    )


def kill(centre: Centre, slot: str) -> None:
    centre.agents[f"m-{slot}"].speaks = False
    centre.cloud.set_state(f"m-{slot}", "failed")
    centre.scheduler.down.add(slot)


def test_a_person_approves_what_the_plan_asks_with_its_price_on_the_tag(centre: Centre) -> None:
    kill(centre, "gpu04")
    centre.seconds(90)
    money = desk(centre)
    money.refresh()
    (ask,) = teller(centre, lambda: money.latest()).holds()["asks"]
    assert (ask["slot"], ask["usd_per_hour_now"]) == ("gpu04", Decimal("27.20"))
    assert ask["usd_so_far"] > 0
    answer = orders(centre).approve(ask["action_id"], Order(who="kim", because="go"))
    assert answer["ok"]
    centre.seconds(10)
    assert [s.action.kind for s in centre.executor.open()] == ["replace"]
    (incident,) = teller(centre, lambda: money.latest()).incidents()
    assert "kim approved it: go" in [entry.text for entry in incident["timeline"]]
    assert "step " in incident["now"]
    with pytest.raises(OrderError) as refusal:
        orders(centre).approve(ask["action_id"], Order())
    assert refusal.value.code == 404


def test_everything_that_is_told_can_be_sent_as_json(centre: Centre) -> None:
    kill(centre, "gpu04")
    centre.people.hold("gpu05", "kim", "mine")
    centre.seconds(60)
    money = desk(centre)
    money.refresh()
    tell = teller(centre, lambda: money.latest())
    overview = msgspec.json.decode(_ENCODE(tell.overview()))
    assert overview["headline"]["state"] == "1 of 8 nodes is sick."
    assert "1 waiting for your approval" in overview["headline"]["doing"]
    dead = next(n for n in overview["nodes"] if n["slot"] == "gpu04")
    assert (dead["health"], dead["sick"], dead["fault"] in dead["fault"]) == ("dead", True, True)
    assert overview["human_holds"] == [{"slot": "gpu05", "because": "kim: mine"}]
    assert msgspec.json.decode(_ENCODE(tell.plan()))["actions"][0]["kind"] == "ask_approval"
    told = explain(
        "gpu04",
        clock=centre.clock,
        stage=centre.stage,
        fleet=centre.fleet,
        book=centre.book,
        executor=centre.executor,
        people=centre.people,
    )
    assert told is not None
    sentence = msgspec.json.decode(_ENCODE(told))["sentence"]
    assert sentence.startswith("gpu04 (m-gpu04) is in service and dead: its agent has been silent for")


def test_the_money_of_a_fault_and_of_everything_add_up(centre: Centre) -> None:
    kill(centre, "gpu04")
    centre.seconds(300)
    money = desk(centre).refresh()
    assert sum((row.usd for row in money.categories), Decimal(0)) == money.total_usd
    (fault,) = money.incidents.values()
    assert fault.usd == sum(fault.by_category.values(), Decimal(0)) == money.incidents_usd
    assert money.usd_per_hour_now == Decimal("217.58")  # eight nodes at 27.197
    assert fault.usd_per_hour_now == Decimal("27.20")
    assert money.sum_line.startswith("The categories sum to")


def test_orders_are_for_operators() -> None:
    closed = Orders(
        token=None,
        settings=None,  # type: ignore[arg-type]
        store=None,  # type: ignore[arg-type]
        people=None,  # type: ignore[arg-type]
        fleet=None,  # type: ignore[arg-type]
        stage=None,  # type: ignore[arg-type]
        clock=FakeClock(),
    )
    with pytest.raises(OrderError) as refusal:
        closed.check("Bearer anything")
    assert refusal.value.code == 403


def test_clearing_counts_what_was_seen_so_far_as_history(centre: Centre) -> None:
    agent = centre.agents["m-gpu03"]
    agent.xid(79)
    centre.seconds(10)
    assert centre.stage.scene.health("m-gpu03") == "driver_failed"
    orders(centre).clear("gpu03", Order(who="kim"))
    centre.seconds(20)
    assert centre.stage.scene.health("m-gpu03") == "healthy"
    centre.boot()
    centre.seconds(90)
    assert centre.stage.scene.health("m-gpu03") == "healthy"


def test_what_the_inspector_refuses_becomes_a_hold(centre: Centre) -> None:
    action = saga("gpu01").action
    plan = Plan(at_unix_ns=1, actions=(action,))
    kept = centre.brain._without_refused(plan, {action.action_id: "it is not sick"})
    assert kept.actions == ()
    assert [(h.reason, h.fault) for h in kept.holds] == [("inspector", "f")]
    assert "it is not sick" in kept.holds[0].because


def test_last_seen_is_written_in_turns(centre: Centre) -> None:
    assert centre.store is not None
    keeper = LastSeenKeeper(centre.store, centre.fleet)
    keeper.flush()
    assert len(centre.store.last_seen()) == 8
    centre.seconds(5)
    for _ in range(10):
        keeper.flush()
    newest = {row.machine: row.sequence for row in centre.store.last_seen()}
    assert newest == {m: record.heard.sequence for m in newest if (record := centre.fleet.get(m)) and record.heard}
