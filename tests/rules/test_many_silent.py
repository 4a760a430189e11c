"""Many agents silent at once: first suspected to be us."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.policy import Policy
from gpuwatch.model.states import Lifecycle
from gpuwatch.model.view import CloudSays, NodeView
from gpuwatch.model.wire import Goodbye
from gpuwatch.rules.many_silent import Settings, examine
from tests.fakes import T0, fleet_view, later, node_view


def fleet_of(silent: int, speaking: int, **changes: Any) -> list[NodeView]:
    quiet = [node_view(f"q{n:02d}", silent_s=16.0, **changes) for n in range(silent)]
    return quiet + [node_view(f"s{n:02d}") for n in range(speaking)]


@pytest.mark.parametrize(
    ("silent", "speaking", "fires"),
    [
        pytest.param(2, 1, False, id="two-are-never-many"),
        pytest.param(3, 3, True, id="three-of-six"),
        pytest.param(3, 6, False, id="a-third"),
        pytest.param(34, 66, False, id="exactly-the-ratio"),
        pytest.param(35, 65, True, id="one-more"),
        pytest.param(16, 0, True, id="all"),
    ],
)
def test_how_many_are_many(silent: int, speaking: int, fires: bool) -> None:
    found = list(examine(fleet_view(*fleet_of(silent, speaking)), (), T0, Settings()))
    assert [len(cause.slots) for cause in found] == ([silent] if fires else [])


GOODBYE: dict[str, Any] = {"goodbye": Goodbye("upgrade"), "goodbye_monotonic_ns": later(T0, -16).monotonic_ns}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(GOODBYE, id="an-upgrade-wave-says-goodbye"),
        pytest.param({"lifecycle": Lifecycle.RETIRED}, id="retired"),
        pytest.param({"cloud": CloudSays(state="gone", received_monotonic_ns=0)}, id="scaled-in"),
        pytest.param({"last_report_monotonic_ns": None}, id="never-heard-since-our-start"),
    ],
)
def test_who_ought_not_to_speak_does_not_count(changes: dict[str, Any]) -> None:
    assert list(examine(fleet_view(*fleet_of(9, 1, **changes)), (), T0, Settings())) == []


def test_each_pool_has_its_own_limits() -> None:
    nodes = fleet_of(3, 7)
    loose = Policy(many_silent_ratio=0.2)
    assert list(examine(fleet_view(*nodes), (), T0, Settings())) == []
    assert len(list(examine(fleet_view(*nodes, policies={"h100": loose}), (), T0, Settings()))) == 1
