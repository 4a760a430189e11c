"""No driver on a node that has GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence, Unknown
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.states import Health
from gpuwatch.model.view import MissingFact
from gpuwatch.rules.driver_not_loaded import Settings, examine
from tests.fakes import T0, facts_without, node_view, with_nvml

GONE: dict[str, Any] = {"gpus": (), "driver_version": None, "driver_loaded": False}


@pytest.mark.parametrize(
    ("expected", "facts", "kind"),
    [
        pytest.param(8, {"init_error": 9}, Evidence, id="not-loaded"),
        pytest.param(8, {"init_error": 12}, Evidence, id="no-library-and-no-driver"),
        pytest.param(8, {"init_error": 12, "driver_loaded": True}, Unknown, id="no-library-but-a-driver"),
        pytest.param(
            8, {"init_error": 12, "driver_loaded": None}, Unknown, id="no-library-and-nobody-knows-the-driver"
        ),
        pytest.param(8, {"init_error": 12, "in_container": True}, Unknown, id="no-library-in-a-container"),
        pytest.param(8, {"init_error": 9, "in_container": True}, Evidence, id="not-loaded-seen-from-a-container"),
        pytest.param(
            8, {"init_error": 9, "in_container": True, "driver_loaded": True}, Unknown, id="loaded-but-hidden"
        ),
        pytest.param(8, {"init_error": None}, None, id="it-is-loaded"),
        pytest.param(8, {"init_error": 18}, None, id="another-rules-code"),
        pytest.param(0, {"init_error": 9}, None, id="a-node-without-gpus-needs-no-driver"),
        pytest.param(None, {"init_error": 9}, Evidence, id="not-told-but-pci-shows-gpus"),
        pytest.param(None, {"init_error": 9, "pci_gpu_count": 0}, None, id="nothing-says-that-gpus-are-here"),
        pytest.param(None, {"init_error": 9, "pci_gpu_count": None}, None, id="nothing-is-known"),
    ],
)
def test_each_answer(expected: int | None, facts: dict[str, Any], kind: type | None) -> None:
    view = with_nvml(node_view(expected_gpu_count=expected), **(GONE | facts))
    found = examine(view, T0, Settings())
    assert (None if found is None else type(found)) is kind
    if isinstance(found, Evidence):
        assert found.argues_for is Health.DRIVER_FAILED
        assert found.must_last == "driver_grace_s"
        assert found.conclusive
        assert ("not installed, or removed (NVML code 12)" in found.because) is (facts["init_error"] == 12)


def test_without_nvml_facts_it_cannot_tell() -> None:
    view = node_view()
    with pytest.raises(MissingFact):
        examine(node_view(facts=facts_without(view, NvmlFacts)), T0, Settings())
