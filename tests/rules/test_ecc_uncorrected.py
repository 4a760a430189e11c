"""Uncorrectable errors: only those that grew, and only where no Xid tells of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.states import Health
from gpuwatch.rules.ecc_uncorrected import Settings, examine
from tests.fakes import T0, gpus, node_view, with_nvml, xid_event

NOTHING: tuple[str, Health | None, str, float] = ("nothing", None, "", 0.0)


def found(changes: dict[int, dict[str, Any]]) -> list[Evidence]:
    """What the rule says of eight GPUs of which some are changed."""
    base: dict[str, Any] = {}
    eight = tuple(gpus(1, index=n, uuid=f"GPU-{n}", **base | changes.get(n, {}))[0] for n in range(8))
    return list(examine(with_nvml(node_view(), gpus=eight), T0, Settings()))


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        pytest.param(
            {3: {"ecc_uncorrected_volatile_count": 7, "ecc_uncorrected_total_count": 9}}, NOTHING, id="old-ones"
        ),
        pytest.param({3: {"ecc_uncorrected_hour_count": 0}}, NOTHING, id="none-in-this-hour"),
        pytest.param({3: {"ecc_uncorrected_hour_count": 1}}, ("reset_gpu", Health.DEGRADED, "GPU-3", 60.0), id="one"),
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


def test_an_xid_of_that_gpu_speaks_instead() -> None:
    struck = with_nvml(node_view(), gpus=gpus(1, ecc_uncorrected_hour_count=1))
    assert len(list(examine(struck, T0, Settings()))) == 1
    assert list(examine(replace(struck, events=(xid_event(48),)), T0, Settings())) == []
    assert len(list(examine(replace(struck, events=(xid_event(13),)), T0, Settings()))) == 1  # not about memory
    elsewhere = replace(struck, events=(xid_event(48, pci="0000:99:00"),))
    assert len(list(examine(elsewhere, T0, Settings()))) == 1
