"""What has left the bus, by kind and since when."""

from __future__ import annotations

import pytest

from gpuwatch.rules.pcie_device_gone import Settings, examine
from tests.fakes import T0, node_view
from tests.fakes_node import pci_device, with_pci


@pytest.mark.parametrize(
    ("kind", "before_boot", "outcome"),
    [
        ("gpu", False, "hard"),
        ("switch", False, "hard"),
        ("infiniband", False, "soft"),
        ("nvme", False, "soft"),
        ("ethernet", False, "note"),
        ("gpu", True, "note"),
        ("nvme", True, "note"),
    ],
)
def test_each_kind(kind: str, before_boot: bool, outcome: str) -> None:
    view = with_pci(pci_device(kind=kind, gone=True, gone_since_boot=before_boot), pci_device("0000:1b:00.0"))
    (one,) = examine(view, T0, Settings())
    assert one.note == (outcome == "note")
    if outcome != "note":
        assert one.soft == (outcome == "soft")
        assert (one.must_last, one.action) == (180.0, "drain_replace")


def test_nothing_is_gone() -> None:
    assert list(examine(with_pci(pci_device()), T0, Settings())) == []
    assert list(examine(node_view(), T0, Settings())) == []
