"""Library and module of different versions: jobs go on, so the drain is soft."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence, Unknown
from gpuwatch.rules.driver_mismatch import Settings, examine
from tests.fakes import T0, node_view, with_nvml


@pytest.mark.parametrize(
    ("expected", "facts", "kind"),
    [
        pytest.param(8, {"init_error": 18}, Evidence, id="mismatch"),
        pytest.param(8, {"init_error": 18, "in_container": True}, Unknown, id="perhaps-the-containers-alone"),
        pytest.param(8, {"init_error": 9}, None, id="another-rules-code"),
        pytest.param(8, {}, None, id="in-order"),
        pytest.param(0, {"init_error": 18}, None, id="no-gpus"),
    ],
)
def test_each_answer(expected: int, facts: dict[str, Any], kind: type | None) -> None:
    found = examine(with_nvml(node_view(expected_gpu_count=expected), **facts), T0, Settings())
    assert (None if found is None else type(found)) is kind
    if isinstance(found, Evidence):
        assert found.soft
        assert found.must_last == "driver_grace_s"
        assert found.action == "reboot"
