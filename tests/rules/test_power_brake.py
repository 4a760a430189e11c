"""The power brake: of the node, and only when it lasts."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.states import Health
from gpuwatch.rules.power_brake import Settings, examine
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
        pytest.param({3: {"clock_event_mask": 0x4}}, NOTHING, id="power-cap"),
        pytest.param(
            {3: {"clock_event_mask": 0x84}}, ("contact_support", Health.DEGRADED, "m-gpu01", 300.0), id="one-gpu"
        ),
        pytest.param(
            {2: {"clock_event_mask": 0x80}, 3: {"clock_event_mask": 0x80}},
            ("contact_support", Health.DEGRADED, "m-gpu01", 300.0),
            id="two-gpus-one-finding",
        ),
        pytest.param({3: {"clock_event_mask": 0x80, "power_brake_ratio": 0.1}}, NOTHING, id="under-the-share"),
        pytest.param(
            {3: {"power_brake_ratio": 0.2}}, ("contact_support", Health.DEGRADED, "m-gpu01", 300.0), id="at-the-share"
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
