"""Who stands out in a gang that stands still."""

from __future__ import annotations

import pytest

from gpuwatch.model.run import RankView
from gpuwatch.runs.standouts import stand_outs
from tests.fakes import rank_view, run_view


def gang(*odd: RankView, size: int = 16) -> list[RankView]:
    by_rank = {rank.rank: rank for rank in odd}
    return [by_rank.get(n, rank_view(n, f"m-gpu{n // 8:02d}")) for n in range(size)]


@pytest.mark.parametrize(
    ("odd", "machines"),
    [
        pytest.param([], (), id="all-alike"),
        pytest.param([rank_view(9, "m-gpu01", alive=False)], ("m-gpu01",), id="a-process-is-gone"),
        pytest.param([rank_view(9, "m-gpu01", step=99)], ("m-gpu01",), id="a-step-behind"),
        pytest.param([rank_view(9, "m-gpu01", phase="data_wait")], ("m-gpu01",), id="waits-for-data"),
        pytest.param([rank_view(9, "m-gpu01", step=None)], ("m-gpu01",), id="before-its-first-step"),
        pytest.param(
            [rank_view(3, "m-gpu00", phase="data_wait"), rank_view(9, "m-gpu01", alive=False)],
            ("m-gpu01",),
            id="gone-says-more-than-waiting",
        ),
        pytest.param(
            [rank_view(n, "m-gpu00", phase="data_wait") for n in range(4)],
            ("m-gpu00",),
            id="a-quarter-still-stands-out",
        ),
        pytest.param([rank_view(n, "m-gpu00", phase="data_wait") for n in range(5)], (), id="more-than-a-quarter"),
        pytest.param([rank_view(9, "m-gpu01", phase="done", step=90)], (), id="who-is-done-does-not-count"),
    ],
)
def test_stand_outs(odd: list[RankView], machines: tuple[str, ...]) -> None:
    assert stand_outs(run_view(*gang(*odd))) == machines


def test_the_only_rank_of_a_run_is_no_stand_out() -> None:
    assert stand_outs(run_view(rank_view(0, "m-gpu00"))) == ()
