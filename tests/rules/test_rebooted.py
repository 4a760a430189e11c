"""A reboot that nobody ordered."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.states import Health
from gpuwatch.rules.rebooted import Settings, examine
from tests.fakes import T0, later, node_view

CHANGED: dict[str, Any] = {"previous_boot": "boot-0", "boot_changed_monotonic_ns": later(T0, -30).monotonic_ns}


@pytest.mark.parametrize(
    ("changes", "fires"),
    [
        pytest.param({}, False, id="never-rebooted"),
        pytest.param(CHANGED, True, id="by-itself"),
        pytest.param(CHANGED | {"previous_goodbye": True}, False, id="after-a-goodbye-or-by-our-order"),
        pytest.param(CHANGED | {"previous_boot": None}, False, id="first-boot-that-we-know"),
        pytest.param(
            CHANGED | {"boot_changed_monotonic_ns": later(T0, -600).monotonic_ns}, True, id="at-the-end-of-the-watch"
        ),
        pytest.param(
            CHANGED | {"boot_changed_monotonic_ns": later(T0, -601).monotonic_ns}, False, id="one-second-past"
        ),
    ],
)
def test_rebooted(changes: dict[str, Any], fires: bool) -> None:
    found = examine(node_view(**changes), T0, Settings())
    assert (found is not None) is fires
    if found is not None:
        assert found.argues_for is Health.SUSPECT
