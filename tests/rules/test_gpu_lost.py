"""One GPU has left the bus; the other seven are judged by themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from gpuwatch.model.evidence import Evidence, Finding, Unknown
from gpuwatch.model.facts.nvml import Gpu
from gpuwatch.model.states import Health
from gpuwatch.rules.gpu_lost import Settings, examine
from tests.fakes import T0, gpus, node_view, with_nvml, xid_event


def broken(code: int, index: int = 3) -> tuple[Gpu, ...]:
    return tuple(msgspec.structs.replace(g, error=code) if g.index == index else g for g in gpus())


def findings(code: int, events: Iterable[Any] = (), **facts: Any) -> list[Finding]:
    view = replace(with_nvml(node_view(), gpus=broken(code), **facts), events=tuple(events))
    return list(examine(view, T0, Settings()) or ())


def test_code_15_is_conclusive_and_names_the_one_gpu() -> None:
    (found,) = findings(15)
    assert isinstance(found, Evidence)
    assert (found.subject.kind, found.subject.id) == ("gpu", "GPU-3")
    assert (found.argues_for, found.kind, found.action) == (Health.DRIVER_FAILED, "gpu_lost", "drain_replace")
    assert found.must_last == 0


def test_code_999_alone_is_a_suspicion_that_must_last_a_minute() -> None:
    (found,) = findings(999)
    assert isinstance(found, Evidence)
    assert (found.argues_for, found.must_last) == (Health.SUSPECT, 60.0)


def test_code_999_with_a_fatal_word_of_the_kernel_on_that_gpu_is_lost() -> None:
    (found,) = findings(999, [xid_event(119, pci="0000:13:00")])
    assert isinstance(found, Evidence)
    assert found.argues_for is Health.DRIVER_FAILED


def test_a_fatal_word_on_another_gpu_confirms_nothing() -> None:
    (found,) = findings(999, [xid_event(119, pci="0000:14:00")])
    assert isinstance(found, Evidence)
    assert found.argues_for is Health.SUSPECT


def test_code_999_with_a_gpu_less_on_pci_is_lost() -> None:
    (found,) = findings(999, pci_gpu_count=7)
    assert isinstance(found, Evidence)
    assert found.argues_for is Health.DRIVER_FAILED


def test_code_999_in_a_container_is_unknown() -> None:
    (found,) = findings(999, in_container=True)
    assert isinstance(found, Unknown)


def test_healthy_gpus_and_nodes_without_gpus_say_nothing() -> None:
    assert examine(node_view(), T0, Settings()) is None
    assert examine(with_nvml(node_view(expected_gpu_count=0), gpus=broken(15)), T0, Settings()) is None


def test_other_codes_belong_to_another_rule() -> None:
    assert findings(16) == []


def test_an_agent_without_rights_says_nothing_of_the_hardware() -> None:
    (found,) = findings(999, rights_lost=True)
    assert isinstance(found, Unknown)
