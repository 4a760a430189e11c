"""Heat: the hardware's slowdown must last; the driver's and a small margin are told only."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.states import Health
from gpuwatch.rules.gpu_too_hot import Settings, examine
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
        pytest.param({3: {"clock_event_mask": 0x1}}, NOTHING, id="idle"),
        pytest.param({3: {"clock_event_mask": 0x4}}, NOTHING, id="power-cap"),
        pytest.param({3: {"clock_event_mask": 0x8}}, NOTHING, id="hw-slowdown-flashes"),
        pytest.param(
            {3: {"clock_event_mask": 0x40, "temperature_celsius": 93}},
            ("contact_support", Health.DEGRADED, "GPU-3", 300.0),
            id="hardware",
        ),
        pytest.param({3: {"clock_event_mask": 0x40, "thermal_slowdown_ratio": 0.19}}, NOTHING, id="under-the-share"),
        pytest.param(
            {3: {"clock_event_mask": 0x0, "thermal_slowdown_ratio": 0.2}},
            ("contact_support", Health.DEGRADED, "GPU-3", 300.0),
            id="at-the-share",
        ),
        pytest.param({3: {"clock_event_mask": 0x20}}, ("contact_support", None, "GPU-3", 0.0), id="by-the-driver"),
        pytest.param({3: {"temperature_margin_celsius": 3}}, NOTHING, id="margin-3"),
        pytest.param({3: {"temperature_margin_celsius": 2}}, ("contact_support", None, "GPU-3", 0.0), id="margin-2"),
        pytest.param({3: {"temperature_margin_celsius": -4}}, ("contact_support", None, "GPU-3", 0.0), id="past-it"),
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
