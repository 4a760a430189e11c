"""A lowered power limit is told; at, under and over."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.states import Health
from gpuwatch.rules.power_capped import Settings, examine
from tests.fakes import T0, gpus, node_view, with_nvml

NOTHING: tuple[str, Health | None, str, float] = ("nothing", None, "", 0.0)


def found(changes: dict[int, dict[str, Any]]) -> list[Evidence]:
    """What the rule says of eight GPUs of which some are changed."""
    base: dict[str, Any] = {"power_limit_default_watts": 700.0, "power_limit_enforced_watts": 700.0}
    eight = tuple(gpus(1, index=n, uuid=f"GPU-{n}", **base | changes.get(n, {}))[0] for n in range(8))
    return list(examine(with_nvml(node_view(), gpus=eight), T0, Settings()))


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        pytest.param({3: {"power_limit_enforced_watts": 665.0}}, NOTHING, id="at-the-share"),
        pytest.param({3: {"power_limit_enforced_watts": 664.0}}, ("none", None, "m-gpu01", 0.0), id="under"),
        pytest.param(
            {3: {"power_limit_enforced_watts": None, "power_limit_watts": 500.0}},
            ("none", None, "m-gpu01", 0.0),
            id="only-what-was-asked-for",
        ),
        pytest.param({3: {"power_limit_watts": 500.0}}, NOTHING, id="what-is-in-force-counts"),
        pytest.param(
            {3: {"power_limit_default_watts": None, "power_limit_enforced_watts": 1.0}}, NOTHING, id="no-default-told"
        ),
    ],
)
def test_what_it_says(changes: dict[int, dict[str, Any]], outcome: tuple[str, Health | None, str, float]) -> None:
    told = found(changes)
    if outcome is NOTHING:
        assert told == []
        return
    (one,) = told
    assert one.because
    assert (one.action, None if one.note else one.argues_for, one.subject.id, one.must_last) == outcome


def test_what_is_not_told_is_nothing() -> None:
    assert list(examine(with_nvml(node_view(), gpus=gpus()), T0, Settings())) == []
    assert list(examine(node_view(facts={}), T0, Settings())) == []
