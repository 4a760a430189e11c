"""An RDMA port that must be active and is not."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.states import Health
from gpuwatch.rules.ib_port_down import Settings, examine
from tests.fakes import T0, node_view
from tests.fakes_node import rdma_port, with_rdma


def found(**port: Any) -> list[Evidence]:
    return list(examine(with_rdma(rdma_port(**port)), T0, Settings()))


def test_a_node_that_does_not_watch_the_network_is_not_judged() -> None:
    assert list(examine(node_view(), T0, Settings())) == []


@pytest.mark.parametrize(
    ("port", "outcome"),
    [
        ({}, "nothing"),
        ({"state": "active_defer"}, "nothing"),
        ({"state": None}, "nothing"),  # not readable: a gap of the source
        ({"state": "down"}, "sick"),
        ({"state": "init"}, "sick"),
        ({"state": "armed"}, "sick"),
        ({"gone": True, "state": None}, "sick"),
        ({"state": "down", "expected": False}, "nothing"),  # never had a cable
        ({"state": "down", "expected": False, "virtual": True}, "note"),  # case: VF down, its link up
        ({"state": "down", "expected": False, "virtual": True, "phys_state": "disabled"}, "nothing"),
        ({"state": "down", "link_layer": "ethernet"}, "sick"),
        ({"gone": True, "state": None, "link_layer": "ethernet"}, "note"),  # a cloud's virtual NIC
        ({"gone": True, "state": None, "link_layer": "ethernet", "configured": True}, "sick"),
        ({"state": "down", "hung": "no answer"}, "nothing"),  # its card is another rule's
    ],
)
def test_each_state(port: dict[str, Any], outcome: str) -> None:
    said = found(**port)
    if outcome == "nothing":
        assert said == []
        return
    (one,) = said
    assert one.soft
    if outcome == "note":
        assert (one.note, one.argues_for, one.action, one.must_last) == (True, Health.SUSPECT, "none", 0.0)
    else:
        assert (one.note, one.argues_for, one.action) == (False, Health.DEGRADED, "drain_replace")
        assert one.must_last == 300.0


def test_what_it_says() -> None:
    (one,) = found(state="down", phys_state="polling", not_active_since_unix_ns=5)
    assert one.because == "RDMA mlx5_0 port 1 is down, its physical link is polling; it was active before"
    assert one.onset_unix_ns == 5
    assert one.subject.id == "m-gpu01/mlx5_0/1"
