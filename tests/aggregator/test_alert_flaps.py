"""What comes and goes is one alert that stays until it has stayed away."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.aggregator.alert_flaps import AGAIN_S, TOLD_EACH, without_flaps
from gpuwatch.aggregator.money import IncidentMoney
from tests.alerting import desk_of
from tests.fakes_centre import Centre

SECOND = 10**9


def incident(number: int, began_s: float, ended_s: float | None, **changes: Any) -> dict[str, Any]:
    price = IncidentMoney(usd=Decimal(number), by_category={}, usd_per_hour_now=Decimal(0 if ended_s else 27))
    return {
        "fault": f"f{number}",
        "kind": "node_dead",
        "slot": "gpu01",
        "machine": "m1",
        "run": None,
        "pool": "p",
        "cause": "node_dead",
        "because": f"because {number}",
        "onset_unix_ns": int(began_s * SECOND),
        "detected_unix_ns": int(began_s * SECOND),
        "closed_unix_ns": None if ended_s is None else int(ended_s * SECOND),
        "now": "over: it is well" if ended_s else "held",
        "price": price,
        "timeline": (),
    } | changes


def told(*incidents: dict[str, Any], now_s: float) -> list[tuple[str, bool]]:
    return [(one["fault"], one["closed_unix_ns"] is None) for one in without_flaps(incidents, int(now_s * SECOND))]


def test_the_third_time_is_the_last_page_until_it_has_stayed_away() -> None:
    times = [incident(number, 100 * number, 100 * number + 50) for number in range(1, 6)]
    assert told(*times[:2], now_s=300) == [("f2", False), ("f1", False)]
    assert told(*times[:3], now_s=360) == [("f3", True), ("f2", False), ("f1", False)]
    assert told(*times, now_s=560) == [("f3", True), ("f2", False), ("f1", False)]
    assert told(*times, now_s=551 + AGAIN_S) == [("f3", False), ("f2", False), ("f1", False)]
    (one, *_) = without_flaps(times, 560 * SECOND)
    assert one["now"].startswith("it came and went 5 times; over: it is well; told as over when")
    assert one["because"] == "because 5"
    assert one["price"].usd == Decimal(3 + 4 + 5)


def test_other_nodes_other_kinds_and_what_comes_back_late_are_told_by_themselves() -> None:
    apart = [incident(number, 1000 * number, 1000 * number + 50) for number in range(1, 5)]
    assert told(*apart, now_s=9000) == [("f4", False), ("f3", False), ("f2", False), ("f1", False)]
    others = [incident(number, 100 * number, 100 * number + 50, slot=f"gpu{number}") for number in range(1, 5)]
    assert len(told(*others, now_s=900)) == 4
    kinds = [incident(number, 100 * number, 100 * number + 50, kind=f"k{number}") for number in range(1, 5)]
    assert len(told(*kinds, now_s=900)) == 4


@given(
    st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 2000)), max_size=12),
    st.booleans(),
    st.integers(0, 5000),
)
def test_what_was_told_keeps_its_name_whatever_follows(gaps: list[tuple[int, int]], open_now: bool, later: int) -> None:
    """Labels come from the fault: one that vanished while it is open would never be resolved."""
    times, at_s = [], 0
    for number, (pause_s, length_s) in enumerate(gaps):
        began_s = at_s + pause_s
        at_s = began_s + length_s
        times.append(incident(number, began_s, at_s))
    known: set[str] = set()
    for count in range(len(times) + 1):
        some = list(times[:count])
        if some and open_now:
            some[-1] = incident(count - 1, some[-1]["detected_unix_ns"] / SECOND, None)
        names = [name for name, _ in told(*some, now_s=at_s + later)]
        assert len(names) == len(set(names))
        assert known <= set(names)
        known = set(names)
    assert len(known) <= len(times)


def test_a_node_that_dies_and_comes_back_twenty_times_pages_three_times(tmp_path: Path) -> None:
    centre = Centre(tmp_path, mode="observe")
    centre.settle()
    desk = desk_of(centre)
    names: set[str] = set()
    for _ in range(8):
        centre.agents["m-gpu04"].speaks = False
        centre.cloud.set_state("m-gpu04", "failed")
        centre.scheduler.down.add("gpu04")
        centre.seconds(45)
        names |= {alert.id for alert in desk.alerts()}
        centre.agents["m-gpu04"].speaks = True
        centre.cloud.set_state("m-gpu04", "running")
        centre.scheduler.down.discard("gpu04")
        centre.seconds(30)
    assert len(centre.opened()) == 8
    assert len(names) == TOLD_EACH + 1
    assert [alert.ended_unix_ns is None for alert in desk.alerts()] == [True, False, False]
    centre.seconds(int(AGAIN_S))
    assert all(alert.ended_unix_ns is not None for alert in desk.alerts())
    assert centre.store is not None
    centre.store.close()
