"""What the driver itself wants."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatch.model.facts.nvml import Gpu
from gpuwatch.model.states import Health
from gpuwatch.rules.recovery_action import Settings, examine
from tests.fakes import T0, gpus, node_view, with_nvml


def wanting(value: int | None) -> tuple[Gpu, ...]:
    first, *rest = gpus()
    return (msgspec.structs.replace(first, recovery_action=value), *rest)


@pytest.mark.parametrize(
    ("value", "health", "action", "soft"),
    [
        (1, Health.DEGRADED, "reset_gpu", False),
        (2, Health.DEGRADED, "reboot", False),
        (3, Health.DEGRADED, "reset_gpu", True),
        (4, Health.DEGRADED, "reset_gpu", False),
        (5, Health.SUSPECT, "contact_support", False),
        (6, Health.SUSPECT, "contact_support", False),
        (7, Health.SUSPECT, "contact_support", False),
        (99, Health.SUSPECT, "contact_support", False),
    ],
)
def test_each_value(value: int, health: Health, action: str, soft: bool) -> None:
    (found,) = examine(with_nvml(node_view(), gpus=wanting(value)), T0, Settings()) or []
    assert (found.argues_for, found.action, found.soft) == (health, action, soft)
    assert found.subject.id == "GPU-0"


@pytest.mark.parametrize("value", [0, None])
def test_nothing_wanted_and_not_readable_are_no_finding(value: int | None) -> None:
    assert examine(with_nvml(node_view(), gpus=wanting(value)), T0, Settings()) is None
