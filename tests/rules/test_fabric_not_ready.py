"""The NVLink fabric: states, status and every field of the health mask."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.states import Health
from gpuwatch.rules.fabric_not_ready import Settings, examine
from tests.fakes import T0, gpus, node_view, with_nvml

NOTHING: tuple[str, Health | None, str, float] = ("nothing", None, "", 0.0)


def found(changes: dict[int, dict[str, Any]]) -> list[Evidence]:
    """What the rule says of eight GPUs of which some are changed."""
    base: dict[str, Any] = {
        "fabric_state": 3,
        "fabric_status": 0,
        "fabric_health_mask": 0x1AA,
        "fabric_health_summary": 1,
    }
    eight = tuple(gpus(1, index=n, uuid=f"GPU-{n}", **base | changes.get(n, {}))[0] for n in range(8))
    return list(examine(with_nvml(node_view(), gpus=eight), T0, Settings()))


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        pytest.param({}, NOTHING, id="well"),
        pytest.param({3: {"fabric_state": 0, "fabric_status": 999}}, NOTHING, id="no-fabric"),
        pytest.param({3: {"fabric_state": None}}, NOTHING, id="not-told"),
        pytest.param({3: {"fabric_state": 1}}, ("reboot", Health.DEGRADED, "GPU-3", 600.0), id="not-started"),
        pytest.param(
            {3: {"fabric_state": 2, "fabric_status": 999}},
            ("reboot", Health.DEGRADED, "GPU-3", 600.0),
            id="in-progress-has-no-status",
        ),
        pytest.param({3: {"fabric_status": 999}}, ("reboot", Health.DEGRADED, "GPU-3", 120.0), id="status"),
        pytest.param({3: {"fabric_health_mask": 0}}, NOTHING, id="mask-tells-nothing"),
        pytest.param({3: {"fabric_health_mask": 0x11AA}}, NOTHING, id="partition-assigned"),
        pytest.param({3: {"fabric_health_mask": 0x1A9}}, ("none", None, "GPU-3", 0.0), id="bandwidth"),
        pytest.param({3: {"fabric_health_mask": 0x1A6}}, ("none", None, "GPU-3", 0.0), id="route-recovers"),
        pytest.param(
            {3: {"fabric_health_mask": 0x19A}}, ("reboot", Health.DEGRADED, "GPU-3", 120.0), id="route-unhealthy"
        ),
        pytest.param({3: {"fabric_health_mask": 0x16A}}, ("none", None, "GPU-3", 0.0), id="time-out-recovers"),
        pytest.param(
            {3: {"fabric_health_mask": 0x5AA}}, ("reboot", Health.DEGRADED, "GPU-3", 120.0), id="too-few-links"
        ),
        pytest.param(
            {3: {"fabric_health_mask": 0xFAA}},
            ("reboot", Health.DEGRADED, "GPU-3", 120.0),
            id="a-configuration-of-next-year",
        ),
        pytest.param(
            {3: {"fabric_health_summary": 2}}, ("reboot", Health.DEGRADED, "GPU-3", 120.0), id="unhealthy-in-sum"
        ),
        pytest.param({3: {"fabric_health_summary": 3}}, ("none", None, "GPU-3", 0.0), id="limited-in-sum"),
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
