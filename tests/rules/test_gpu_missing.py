"""Expected, NVML, PCI: three numbers side by side."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence, Unknown
from gpuwatch.model.states import Health
from gpuwatch.rules.gpu_missing import Settings, examine
from tests.fakes import T0, gpus, node_view, with_nvml


@pytest.mark.parametrize(
    ("expected", "seen", "pci", "outcome"),
    [
        pytest.param(8, 8, 8, None, id="all-there"),
        pytest.param(8, 9, 8, None, id="more-than-expected"),
        pytest.param(8, 7, 8, ("degraded", "reboot"), id="the-driver-cannot-start-one"),
        pytest.param(8, 7, 7, ("degraded", "drain_replace"), id="hardware-is-gone"),
        pytest.param(8, 7, None, ("degraded", "reboot"), id="pci-not-readable"),
        pytest.param(8, 0, 8, ("driver_failed", "reboot"), id="none-though-the-driver-runs"),
        pytest.param(0, 0, 0, None, id="a-node-without-gpus"),
        pytest.param(None, 8, 8, None, id="not-told-and-both-agree"),
        pytest.param(None, 7, 8, "unknown", id="not-told-and-they-differ"),
        pytest.param(None, 7, None, None, id="not-told-and-nothing-to-compare"),
    ],
)
def test_each_situation(expected: int | None, seen: int, pci: int | None, outcome: Any) -> None:
    view = with_nvml(node_view(expected_gpu_count=expected), gpus=gpus(seen), pci_gpu_count=pci)
    found = examine(view, T0, Settings())
    if outcome is None:
        assert found is None
    elif outcome == "unknown":
        assert isinstance(found, Unknown)
    else:
        assert isinstance(found, Evidence)
        assert (found.argues_for.value, found.action) == outcome
        assert found.must_last == "driver_grace_s"


def test_a_container_sees_only_its_own() -> None:
    view = with_nvml(node_view(), gpus=gpus(2), pci_gpu_count=8, in_container=True)
    assert isinstance(examine(view, T0, Settings()), Unknown)


@pytest.mark.parametrize(("error", "fires"), [(9, False), (18, False), (999, False), (28, True), (None, True)])
def test_where_nvml_did_not_start_the_driver_rules_speak(error: int | None, fires: bool) -> None:
    found = examine(with_nvml(node_view(), gpus=(), init_error=error), T0, Settings())
    assert (found is not None) is fires
    if found is not None:
        assert isinstance(found, Evidence)
        assert found.argues_for is Health.DRIVER_FAILED
