"""Spare rows: all used up, none left in a bank, one replaced just now; at, under and over."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.states import Health
from gpuwatch.rules.row_remaps_exhausted import Settings, examine
from tests.fakes import T0, gpus, node_view, with_nvml

NOTHING: tuple[str, Health | None, str, float] = ("nothing", None, "", 0.0)


def found(changes: dict[int, dict[str, Any]]) -> list[Evidence]:
    """What the rule says of eight GPUs of which some are changed."""
    base: dict[str, Any] = {}
    eight = tuple(gpus(1, index=n, uuid=f"GPU-{n}", **base | changes.get(n, {}))[0] for n in range(8))
    return list(examine(with_nvml(node_view(), gpus=eight), T0, Settings()))


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        pytest.param({}, NOTHING, id="healthy"),
        pytest.param({3: {"rows_remapped_uncorrected_count": 511}}, NOTHING, id="one-under"),
        pytest.param(
            {3: {"rows_remapped_uncorrected_count": 512}},
            ("drain_replace", Health.DEGRADED, "GPU-3", 0.0),
            id="at-the-limit",
        ),
        pytest.param({3: {"row_remap_banks": (600, 30, 8, 2, 0)}}, NOTHING, id="few-left"),
        pytest.param(
            {3: {"row_remap_banks": (639, 0, 0, 0, 1)}}, ("drain_replace", None, "GPU-3", 0.0), id="none-left-in-a-bank"
        ),
        pytest.param(
            {3: {"rows_remapped_hour_count": 0, "rows_remapped_uncorrected_count": 11}}, NOTHING, id="old-ones"
        ),
        pytest.param({3: {"rows_remapped_hour_count": 1}}, ("drain_replace", None, "GPU-3", 0.0), id="one-just-now"),
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
