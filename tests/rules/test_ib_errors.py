"""Errors that rise too fast are told and count for nothing."""

from __future__ import annotations

import pytest

from gpuwatch.rules.ib_errors import Settings, examine
from tests.fakes import T0, node_view
from tests.fakes_node import rdma_port, with_rdma


@pytest.mark.parametrize(
    ("rises", "told"),
    [
        ({}, 0),
        ({"symbol_error": 119}, 0),
        ({"symbol_error": 120}, 1),
        ({"port_rcv_errors": 9}, 0),
        ({"port_rcv_errors": 10, "link_error_recovery": 10}, 1),
        ({"some_new_counter": 10**9}, 0),
    ],
)
def test_each_threshold(rises: dict[str, int], told: int) -> None:
    found = list(examine(with_rdma(rdma_port(rises=rises)), T0, Settings()))
    assert len(found) == told
    assert all(one.note and one.soft and one.action == "none" for one in found)


def test_a_port_that_nobody_needs_and_a_node_without_any() -> None:
    assert list(examine(with_rdma(rdma_port(rises={"symbol_error": 10**6}, expected=False)), T0, Settings())) == []
    assert list(examine(node_view(), T0, Settings())) == []
