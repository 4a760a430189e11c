"""Links down: against siblings, against the model, and where a model has them down by design."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.states import Health
from gpuwatch.rules.nvlink_down import Settings, examine
from tests.fakes import T0, gpus, node_view, with_nvml

NOTHING: tuple[str, Health | None, str, float] = ("nothing", None, "", 0.0)


def found(changes: dict[int, dict[str, Any]]) -> list[Evidence]:
    """What the rule says of eight GPUs of which some are changed."""
    base: dict[str, Any] = {"name": "NVIDIA H100 80GB HBM3", "nvlink_count": 18, "nvlink_inactive": ()}
    eight = tuple(gpus(1, index=n, uuid=f"GPU-{n}", **base | changes.get(n, {}))[0] for n in range(8))
    return list(examine(with_nvml(node_view(), gpus=eight), T0, Settings()))


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        pytest.param({}, NOTHING, id="all-up"),
        pytest.param(
            {3: {"nvlink_inactive": (5,)}}, ("reboot", Health.DEGRADED, "GPU-3", 120.0), id="one-less-than-its-siblings"
        ),
        pytest.param(
            {3: {"nvlink_inactive": tuple(range(18))}}, ("reboot", Health.DEGRADED, "GPU-3", 120.0), id="none-up"
        ),
        pytest.param({3: {"nvlink_inactive": None}}, NOTHING, id="not-told"),
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


@pytest.mark.parametrize(
    ("name", "count", "down", "sick"),
    [
        pytest.param("NVIDIA H100 80GB HBM3", 18, 18, 8, id="sxm-all-down-everywhere"),
        pytest.param("NVIDIA H100 80GB HBM3", 18, 0, 0, id="sxm-all-up"),
        pytest.param("NVIDIA H100 NVL", 18, 6, 0, id="nvl-has-12-of-18-by-design"),
        pytest.param("NVIDIA H100 NVL", 18, 7, 8, id="nvl-one-less"),
        pytest.param("NVIDIA A100 80GB PCIe", 12, 12, 0, id="pcie-card-without-a-bridge"),
        pytest.param("NVIDIA A100-SXM4-80GB", 12, 1, 8, id="a100-one-less"),
        pytest.param("Tesla V100-SXM2-32GB", 6, 2, 8, id="v100"),
        pytest.param("NVIDIA H100 PCIe", 18, 18, 0, id="h100-pcie"),
        pytest.param("A model of next year", 36, 36, 0, id="unknown-model-all-alike"),
        pytest.param("NVIDIA GeForce RTX 4090", 0, 0, 0, id="none-at-all"),
    ],
)
def test_by_model(name: str, count: int, down: int, sick: int) -> None:
    alike = gpus(8, name=name, nvlink_count=count, nvlink_inactive=tuple(range(down)))
    assert len(list(examine(with_nvml(node_view(), gpus=alike), T0, Settings()))) == sick


@pytest.mark.parametrize(
    ("count", "changes", "sick"),
    [
        pytest.param(1, {}, 0, id="a-virtual-machine-with-one-of-eight"),
        pytest.param(4, {}, 0, id="half-a-board"),
        pytest.param(8, {}, 8, id="a-whole-board"),
        pytest.param(8, {"mig_mode": True}, 0, id="divided"),
    ],
)
def test_a_slice_has_no_use_for_links(count: int, changes: dict[str, Any], sick: int) -> None:
    down = tuple(range(18))
    some = gpus(count, name="NVIDIA H100 80GB HBM3", nvlink_count=18, nvlink_inactive=down, **changes)
    assert len(list(examine(with_nvml(node_view(), gpus=some), T0, Settings()))) == sick
