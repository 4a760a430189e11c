"""Which service's end is what, on which machine."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.model.states import Health
from gpuwatch.rules.service_down import Settings, examine
from tests.fakes import T0, S, gpus, node_view, with_nvml
from tests.fakes_node import pci_device, service_unit, with_pci, with_services

FM = "nvidia-fabricmanager.service"
DEAD: dict[str, Any] = {"active_state": "failed", "sub_state": "failed", "result": "exit-code"}


def found(*, view: Any = None, **unit: Any) -> list[Evidence]:
    return list(examine(with_services(service_unit(**unit), view=view), T0, Settings()))


@pytest.mark.parametrize(
    ("unit", "told"),
    [
        ({}, False),
        (DEAD, True),
        ({"active_state": "inactive", "sub_state": "dead"}, True),
        ({"active_state": "activating", "sub_state": "auto-restart"}, True),
        ({"active_state": "activating", "sub_state": "start"}, False),
        ({"active_state": "reloading"}, False),
        (DEAD | {"since_unix_ns": T0.unix_ns - 119 * S}, False),
        (DEAD | {"since_unix_ns": T0.unix_ns - 120 * S}, True),
        (DEAD | {"since_unix_ns": T0.unix_ns + 3600 * S}, True),  # the node's clock is an hour ahead of ours
        (DEAD | {"since_unix_ns": None}, True),
        (DEAD | {"enabled": False}, True),
        (DEAD | {"enabled": False, "was_active": False}, False),
    ],
)
def test_each_state_of_a_scheduler_daemon_is_a_note(unit: dict[str, Any], told: bool) -> None:
    said = found(**unit)
    assert len(said) == told
    assert all(one.note and one.argues_for is Health.SUSPECT and one.action == "none" for one in said)


@pytest.mark.parametrize("fabric_state", [None, 0, 1, 2, 3])
def test_the_fabric_manager_is_fatal_where_there_is_a_fabric(fabric_state: int | None) -> None:
    view = with_nvml(node_view(), gpus=gpus(2, fabric_state=fabric_state))
    (one,) = found(view=view, name=FM, **DEAD)
    if fabric_state in (None, 0):
        assert one.note
    else:
        assert (one.note, one.argues_for, one.must_last) == (False, Health.DRIVER_FAILED, "driver_grace_s")
        assert (one.kind, one.action, one.conclusive, one.software) == ("fabric_manager_down", "reboot", True, True)


def test_switches_on_the_bus_are_a_fabric_too() -> None:
    (one,) = found(view=with_pci(pci_device(kind="switch")), name=FM, **DEAD)
    assert one.because == (
        "nvidia-fabricmanager.service is failed, result exit-code: without it CUDA does not start on a machine with "
        "NVSwitches"
    )
    assert found(view=with_pci(pci_device(kind="switch")), name=FM) == []


def test_a_node_whose_services_are_not_watched() -> None:
    assert list(examine(node_view(), T0, Settings())) == []
