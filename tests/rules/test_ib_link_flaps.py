"""Losses of a link: under, at and over each threshold."""

from __future__ import annotations

import pytest

from gpuwatch.model.states import Health
from gpuwatch.rules.ib_link_flaps import Settings, examine
from tests.fakes import T0, node_view
from tests.fakes_node import rdma_port, with_rdma


@pytest.mark.parametrize(
    ("flaps", "health"),
    [(0, None), (2, None), (3, Health.SUSPECT), (10, Health.SUSPECT), (11, Health.DEGRADED), (500, Health.DEGRADED)],
)
def test_each_number(flaps: int, health: Health | None) -> None:
    found = list(examine(with_rdma(rdma_port(flap_count=flaps)), T0, Settings()))
    assert [one.argues_for for one in found] == ([] if health is None else [health])
    assert all(one.soft and one.note == (health is Health.SUSPECT) for one in found)


def test_a_port_that_nobody_needs_and_a_node_without_any() -> None:
    assert list(examine(with_rdma(rdma_port(flap_count=99, expected=False)), T0, Settings())) == []
    assert list(examine(node_view(), T0, Settings())) == []
