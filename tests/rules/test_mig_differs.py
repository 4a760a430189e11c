"""MIG: mixed or about to change is told; all alike is nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.states import Health
from gpuwatch.rules.mig_differs import Settings, examine
from tests.fakes import T0, gpus, node_view, with_nvml

NOTHING: tuple[str, Health | None, str, float] = ("nothing", None, "", 0.0)


def found(changes: dict[int, dict[str, Any]]) -> list[Evidence]:
    """What the rule says of eight GPUs of which some are changed."""
    base: dict[str, Any] = {"mig_mode": False, "mig_mode_pending": False}
    eight = tuple(gpus(1, index=n, uuid=f"GPU-{n}", **base | changes.get(n, {}))[0] for n in range(8))
    return list(examine(with_nvml(node_view(), gpus=eight), T0, Settings()))


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        pytest.param({}, NOTHING, id="all-whole"),
        pytest.param({n: {"mig_mode": True, "mig_mode_pending": True} for n in range(8)}, NOTHING, id="all-divided"),
        pytest.param(
            {3: {"mig_mode": True, "mig_mode_pending": True}}, ("none", None, "m-gpu01", 0.0), id="one-divided"
        ),
        pytest.param({3: {"mig_mode_pending": True}}, ("none", None, "m-gpu01", 0.0), id="waits-for-a-reset"),
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
