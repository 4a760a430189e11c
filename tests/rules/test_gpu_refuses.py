"""What each return code of one GPU comes to. One row a code of `nvml.h` that a GPU can answer with."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuwatch.faults.nvml_codes import CODES
from gpuwatch.model.evidence import Evidence, Finding, Unknown
from gpuwatch.model.states import Health
from gpuwatch.rules.gpu_refuses import Settings, examine
from tests.fakes import T0, gpus, node_view, with_nvml

NOTHING: tuple[str, str, float] = ("nothing", "", 0.0)
UNKNOWN: tuple[str, str, float] = ("unknown", "", 0.0)


def findings(code: int | None, **facts: Any) -> list[Finding]:
    first, *rest = gpus()
    view = with_nvml(node_view(), gpus=(msgspec.structs.replace(first, error=code), *rest), **facts)
    return list(examine(view, T0, Settings()) or ())


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (None, NOTHING),
        (1, UNKNOWN),
        (2, UNKNOWN),
        (3, NOTHING),
        (4, UNKNOWN),
        (6, NOTHING),
        (7, NOTHING),
        (8, ("contact_support", "degraded", 0.0)),
        (10, ("reset_gpu", "degraded", 10.0)),
        (11, ("reboot", "degraded", 5.0)),
        (13, NOTHING),
        (14, ("contact_support", "degraded", 0.0)),
        (15, NOTHING),
        (16, ("reset_gpu", "degraded", 0.0)),
        (17, UNKNOWN),
        (19, NOTHING),
        (20, UNKNOWN),
        (21, NOTHING),
        (23, UNKNOWN),
        (25, NOTHING),
        (26, NOTHING),
        (27, ("reboot", "degraded", 600.0)),
        (999, NOTHING),
        (4711, UNKNOWN),
    ],
)
def test_each_code(code: int | None, outcome: tuple[str, str, float]) -> None:
    found = findings(code)
    if outcome is NOTHING:
        assert found == []
        return
    (one,) = found
    if outcome is UNKNOWN:
        assert isinstance(one, Unknown)
        return
    assert isinstance(one, Evidence)
    assert (one.action, one.argues_for.value, one.must_last) == outcome
    assert one.cause == f"nvml_{code}"


def test_every_code_of_the_table_is_in_this_test() -> None:
    rows = test_each_code.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert CODES.keys() - {0} <= {code for code, _ in rows}


def test_in_a_container_no_gpu_is_condemned() -> None:
    (found,) = findings(16, in_container=True)
    assert isinstance(found, Unknown)


def test_a_slower_agent_needs_longer_for_three_in_a_row() -> None:
    first, *rest = gpus()
    broken = (msgspec.structs.replace(first, error=10), *rest)
    (found,) = examine(with_nvml(node_view(interval_s=60.0), gpus=broken), T0, Settings()) or []
    assert isinstance(found, Evidence)
    assert found.must_last == 120.0
    assert found.argues_for is Health.DEGRADED


def test_an_agent_without_rights_says_nothing_of_the_hardware() -> None:
    (found,) = findings(16, rights_lost=True)
    assert isinstance(found, Unknown)
