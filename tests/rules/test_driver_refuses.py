"""NVML does not start for another reason."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence, Unknown
from gpuwatch.rules.driver_refuses import Settings, examine
from tests.fakes import T0, node_view, with_nvml


@pytest.mark.parametrize(
    ("code", "facts", "kind"),
    [
        pytest.param(999, {}, Evidence, id="999-on-a-host"),
        pytest.param(999, {"in_container": True}, Unknown, id="999-in-a-container-is-usually-the-container"),
        pytest.param(15, {}, Evidence, id="gpu-is-lost"),
        pytest.param(16, {}, Evidence, id="reset-required"),
        pytest.param(4, {}, Unknown, id="no-permission"),
        pytest.param(17, {}, Unknown, id="blocked-by-the-system"),
        pytest.param(20, {}, Unknown, id="host-out-of-memory"),
        pytest.param(12345, {}, Unknown, id="a-code-that-nobody-published"),
        *(pytest.param(code, {}, None, id=f"{code}-is-another-rules") for code in (9, 12, 18, 28)),
        pytest.param(None, {}, None, id="it-starts"),
    ],
)
def test_each_code(code: int | None, facts: dict[str, Any], kind: type | None) -> None:
    found = examine(with_nvml(node_view(), init_error=code, gpus=(), **facts), T0, Settings())
    assert (None if found is None else type(found)) is kind
    if isinstance(found, Evidence):
        assert found.cause == f"nvml_init_{code}"
        assert found.must_last == "driver_grace_s"


def test_a_node_where_nothing_says_gpus_is_not_judged() -> None:
    for view in (node_view(expected_gpu_count=0), node_view(expected_gpu_count=None)):
        assert examine(with_nvml(view, init_error=999, pci_gpu_count=0), T0, Settings()) is None


def test_an_agent_without_rights_says_nothing_of_the_driver() -> None:
    found = examine(with_nvml(node_view(), init_error=999, gpus=(), rights_lost=True), T0, Settings())
    assert isinstance(found, Unknown)
    assert "restart the agent" in found.because
