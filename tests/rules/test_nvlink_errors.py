"""Errors of links: only what grew within the hour, and a note at most."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.states import Health
from gpuwatch.rules.nvlink_errors import Settings, examine
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
        pytest.param(
            {3: {"nvlink_recovery_count": 500, "nvlink_replay_count": 10**9, "nvlink_crc_count": 10**9}},
            NOTHING,
            id="life-long",
        ),
        pytest.param(
            {3: {"nvlink_recovery_hour_count": 1}}, ("contact_support", None, "GPU-3", 0.0), id="one-recovery"
        ),
        pytest.param({3: {"nvlink_replay_hour_count": 1000}}, NOTHING, id="replays-at-the-limit"),
        pytest.param(
            {3: {"nvlink_replay_hour_count": 1001}}, ("contact_support", None, "GPU-3", 0.0), id="replays-over"
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
