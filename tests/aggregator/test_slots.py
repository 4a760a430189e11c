"""`gpu[01-16]` means sixteen names."""

from __future__ import annotations

import pytest

from gpuwatch.aggregator.slots import expand


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        pytest.param("gpu7", ["gpu7"], id="plain"),
        pytest.param("gpu[01-03]", ["gpu01", "gpu02", "gpu03"], id="padded"),
        pytest.param("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"], id="unpadded-grows"),
        pytest.param("gpu[1,3,5-6]", ["gpu1", "gpu3", "gpu5", "gpu6"], id="list"),
        pytest.param("r[1-2]n[01,03]x", ["r1n01x", "r1n03x", "r2n01x", "r2n03x"], id="two-brackets-and-a-tail"),
    ],
)
def test_names(pattern: str, names: list[str]) -> None:
    assert expand(pattern) == names


@pytest.mark.parametrize("pattern", ["", "gpu[1-", "gpu1]", "gpu[]", "gpu[a-b]", "gpu[5-1]", "gpu[0-999999]"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError):
        expand(pattern)
