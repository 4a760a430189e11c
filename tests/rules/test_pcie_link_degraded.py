"""Links against their own best, their siblings and their device."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.model.evidence import Evidence
from gpuwatch.rules.pcie_link_degraded import Settings, examine
from tests.fakes import T0, gpus, node_view, with_nvml
from tests.fakes_node import pci_device, with_pci

NIC: dict[str, Any] = {"kind": "infiniband", "model": "15b3:1021", "driver": "mlx5_core"}


def said(*devices: Any, busy: float = 0.0) -> list[tuple[str, str]]:
    view = with_nvml(node_view(), gpus=gpus(1, pci="0000:1a:00", utilization_ratio=busy))
    found: list[Evidence] = list(examine(with_pci(*devices, view=view), T0, Settings()))
    assert all(one.soft and one.must_last == (0.0 if one.note else 900.0) for one in found)
    return [(one.subject.id.rpartition("/")[2], "note" if one.note else "sick") for one in found]


SICK = [("0000:1a:00.0", "sick")]
NOTE = [("0000:1a:00.0", "note")]


@pytest.mark.parametrize(
    ("device", "busy", "outcome"),
    [
        ({}, 0.0, []),
        ({"width": 8}, 0.0, SICK),
        ({"width": 8, "width_best": 8}, 0.0, NOTE),  # narrower than it can: perhaps its slot
        ({"width": 8, "width_best": 8, "width_max": 8}, 0.0, []),
        ({"width": None}, 0.0, []),
        ({"speed_gts": 2.5}, 0.0, []),  # a GPU at rest
        ({"speed_gts": 2.5}, 0.49, []),
        ({"speed_gts": 2.5}, 0.5, SICK),
        ({"speed_gts": None}, 0.9, []),
        (NIC | {"speed_gts": 16.0}, 0.0, SICK),
        (NIC | {"speed_gts": 16.0, "speed_best_gts": 16.0}, 0.0, []),
        ({"width": 8, "gone": True}, 0.0, []),
    ],
)
def test_one_device(device: dict[str, Any], busy: float, outcome: list[tuple[str, str]]) -> None:
    assert said(pci_device(**device), busy=busy) == outcome


def test_among_siblings_the_most_are_right() -> None:
    narrow: dict[str, Any] = {"width": 8, "width_best": 8}
    three = [pci_device(f"0000:2{number}:00.0") for number in range(3)]
    assert said(pci_device(**narrow), *three) == SICK
    assert said(pci_device(**narrow), three[0]) == NOTE  # one against one proves nothing
    assert said(pci_device(**narrow), *(pci_device(device.pci, model="15b3:1") for device in three)) == NOTE
    slow: dict[str, Any] = NIC | {"speed_gts": 16.0, "speed_best_gts": 16.0}
    assert said(pci_device(**slow), *(pci_device(device.pci, **NIC) for device in three)) == SICK


def test_what_it_says_and_a_node_without_a_bus() -> None:
    (one,) = examine(with_pci(pci_device(width=8)), T0, Settings())
    assert one.because == "the PCIe link of the gpu device 0000:1a:00.0 (nvidia) has 8 lanes, it had 16"
    assert list(examine(node_view(), T0, Settings())) == []
