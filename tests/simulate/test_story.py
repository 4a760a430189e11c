"""The story breaks four different nodes of the run, however large the cluster is."""

from __future__ import annotations

import pytest

from gpuwatch.simulate.story import victims


@pytest.mark.parametrize("count", range(5, 65))
def test_four_different_nodes_and_never_the_first_spare(count: int) -> None:
    slots = tuple(f"gpu{n:02d}" for n in range(1, count + 1))
    chosen = victims(slots)
    assert len(set(chosen)) == 4
    assert slots[-1] not in chosen


def test_the_usual_cluster_is_broken_as_the_readme_tells() -> None:
    assert victims(tuple(f"gpu{n:02d}" for n in range(1, 17))) == ("gpu05", "gpu09", "gpu03", "gpu02")
