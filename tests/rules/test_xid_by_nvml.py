"""Xids through NVML: believed only while the kernel log cannot be read, and only where they need no line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.facts.kernel_log import KernelLogFacts
from gpuwatch.model.facts.nvml import NvmlFacts, Xid
from gpuwatch.model.states import Health
from gpuwatch.rules.xid_by_nvml import Settings, examine
from tests.fakes import T0, node_view, nvml


def found(*numbers: int, readable: bool | None = False) -> list[Evidence]:
    told = tuple(Xid(f"e{n}", T0.unix_ns, "0000:10:00", xid) for n, xid in enumerate(numbers))
    facts: dict[type, object] = {NvmlFacts: nvml(xids=told)}
    if readable is not None:
        facts[KernelLogFacts] = KernelLogFacts(readable=readable)
    return list(examine(replace(node_view(), facts=facts), T0, Settings()))


@pytest.mark.parametrize(
    ("xid", "outcome"),
    [
        pytest.param(48, (Health.DRIVER_FAILED, "reset_gpu"), id="drained-for-at-once"),
        pytest.param(79, (Health.DRIVER_FAILED, "drain_replace"), id="were-it-ever-delivered"),
        pytest.param(13, None, id="the-applications"),
        pytest.param(31, None, id="must-come-often"),
        pytest.param(74, (Health.SUSPECT, "none"), id="needs-its-registers"),
        pytest.param(109, (Health.SUSPECT, "none"), id="may-be-load"),
        pytest.param(149, (Health.SUSPECT, "none"), id="needs-its-decoding"),
        pytest.param(999, None, id="no-such-number"),
    ],
)
def test_each_kind(xid: int, outcome: tuple[Health, str] | None) -> None:
    told = found(xid)
    if outcome is None:
        assert told == []
        return
    (one,) = told
    assert (one.argues_for, one.action) == outcome
    assert (one.event_id, one.cause) == ("e0", f"xid_{xid}")


def test_while_the_log_is_read_its_word_counts() -> None:
    assert found(48, readable=True) == []
    assert len(found(48, readable=None)) == 1


def test_the_same_one_again_is_one() -> None:
    assert len(found(48, 48, 48)) == 1
