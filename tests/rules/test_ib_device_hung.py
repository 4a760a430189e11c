"""A card that does not answer, alone or with all others."""

from __future__ import annotations

from dataclasses import replace

from gpuwatch.rules.ib_device_hung import Settings, examine
from tests.fakes import T0, node_view, source
from tests.fakes_node import rdma_port, with_rdma

WHY = "no answer for more than 5 s; state D, wait channel cmd_exec, kernel stack cmd_exec < mlx5_cmd"


def test_one_card_is_told_once_and_one_that_nobody_needs_never() -> None:
    ports = (
        rdma_port(state=None, hung=WHY),
        rdma_port(state=None, hung=WHY, port=2),
        rdma_port("mlx5_1", expected=False, hung=WHY),
        rdma_port("mlx5_2"),
    )
    (one,) = examine(with_rdma(*ports), T0, Settings())
    assert one.because == (
        "RDMA card mlx5_0 does not answer: no answer for more than 5 s; state D, wait channel cmd_exec"
    )
    assert (one.soft, one.must_last, one.action) == (True, 600.0, "reboot")


def test_all_cards() -> None:
    plain = node_view()
    hung = source("infiniband", status="hung", reason=WHY, since_unix_ns=7)
    (one,) = examine(replace(plain, sources=dict(plain.sources) | {"infiniband": hung}), T0, Settings())
    assert one.because.startswith("no RDMA card answers")
    assert one.onset_unix_ns == 7
    assert list(examine(plain, T0, Settings())) == []
