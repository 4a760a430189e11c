"""A link slower than it was, or than its siblings."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.rules.ib_rate_low import Settings, examine
from tests.fakes import T0, node_view
from tests.fakes_node import rdma_port, with_rdma

SLOW = {"rate_gbps": 200.0, "best_rate_gbps": 200.0}


@pytest.mark.parametrize(
    ("port", "outcome"),
    [
        ({}, ""),
        ({"rate_gbps": 200.0}, "sick"),
        (SLOW, "note"),
        (SLOW | {"board": "another"}, ""),
        (SLOW | {"board": None}, ""),
        (SLOW | {"link_layer": "ethernet"}, ""),
        (SLOW | {"expected": False}, ""),
        ({"rate_gbps": 10.0, "state": "down"}, ""),
        ({"rate_gbps": None}, ""),
    ],
)
def test_beside_a_sibling_at_400(port: dict[str, Any], outcome: str) -> None:
    found = list(examine(with_rdma(rdma_port("mlx5_9", **port), rdma_port()), T0, Settings()))
    assert [("note" if one.note else "sick") for one in found] == ([outcome] if outcome else [])
    for one in found:
        assert one.soft
        assert one.must_last == (0.0 if one.note else 900.0)
        assert "mlx5_9 port 1 runs at 200 Gb/s" in one.because


def test_a_node_without_any() -> None:
    assert list(examine(node_view(), T0, Settings())) == []
