"""An NVML call that does not come back is a finding by itself."""

from __future__ import annotations

import pytest

from gpuwatch.model.states import Health
from gpuwatch.rules.probe_hung import Settings, examine
from tests.fakes import T0, later, node_view, source


def test_a_hung_nvml_is_a_failed_driver_with_its_wait_channel() -> None:
    since_ns = later(T0, -40).unix_ns
    hung = source(
        "nvml", status="hung", reason="nvmlInit, waiting in rm_ioctl", since_unix_ns=since_ns, abandoned_count=1
    )
    found = examine(node_view(sources={"nvml": hung}, facts={}), T0, Settings())
    assert found is not None
    assert (found.argues_for, found.conclusive, found.must_last) == (Health.DRIVER_FAILED, True, "driver_grace_s")
    assert found.onset_unix_ns == since_ns
    assert "rm_ioctl" in found.because
    assert "1 child process abandoned" in found.because


@pytest.mark.parametrize("status", ["ok", "failed", "unsupported"])
def test_other_answers_are_no_hang(status: str) -> None:
    assert examine(node_view(sources={"nvml": source("nvml", status=status)}), T0, Settings()) is None


def test_another_source_that_hangs_says_nothing_of_the_driver() -> None:
    view = node_view(sources={"host": source("host", status="hung"), "nvml": source("nvml")})
    assert examine(view, T0, Settings()) is None
    assert examine(node_view(sources={}), T0, Settings()) is None
