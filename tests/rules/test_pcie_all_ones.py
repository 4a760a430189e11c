"""Devices that answer with ones."""

from __future__ import annotations

import pytest

from gpuwatch.rules.pcie_all_ones import Settings, examine
from tests.fakes import T0, node_view
from tests.fakes_node import pci_device, with_pci


@pytest.mark.parametrize(
    ("kind", "all_ones", "outcome"),
    [
        ("gpu", True, "hard"),
        ("gpu", False, ""),
        ("gpu", None, ""),  # asleep, or not readable
        ("switch", True, "hard"),
        ("nvme", True, "soft"),
        ("infiniband", True, "soft"),
        ("ethernet", True, "note"),
    ],
)
def test_each_kind(kind: str, all_ones: bool | None, outcome: str) -> None:
    found = list(examine(with_pci(pci_device(kind=kind, all_ones=all_ones)), T0, Settings()))
    assert len(found) == (outcome != "")
    for one in found:
        assert one.note == (outcome == "note")
        assert one.note or one.soft == (outcome == "soft")
        assert one.must_last == (0.0 if one.note else 120.0)


def test_a_node_without_a_bus() -> None:
    assert list(examine(node_view(), T0, Settings())) == []
