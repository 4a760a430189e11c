"""Fill of disks: under, at and over each threshold, by what lies there."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.rules.disk_full import Settings, examine
from tests.fakes import T0, node_view
from tests.fakes_node import disk, with_host


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"used_ratio": 0.949}, ""),
        ({"used_ratio": 0.95}, "note"),
        ({"used_ratio": 0.989}, "note"),
        ({"used_ratio": 0.99}, "sick"),
        ({"used_ratio": 1.0, "roles": ()}, "note"),  # a job's scratch disk
        ({"used_ratio": 1.0, "roles": ("state",)}, "sick"),
        ({"inode_used_ratio": 0.99}, "sick"),
        ({"inode_used_ratio": 0.96}, "note"),
        ({"used_ratio": None, "inode_used_ratio": None}, ""),
        ({"used_ratio": 1.0, "read_only": True}, ""),  # an image is full by nature
    ],
)
def test_each(changes: dict[str, Any], outcome: str) -> None:
    found = list(examine(with_host(disks=(disk(**changes),)), T0, Settings()))
    assert [("note" if one.note else "sick") for one in found] == ([outcome] if outcome else [])
    for one in found:
        assert one.soft
        assert one.must_last == (0.0 if one.note else 600.0)


def test_what_it_says_and_a_node_whose_disks_are_not_watched() -> None:
    (one,) = examine(with_host(disks=(disk(used_ratio=0.991),)), T0, Settings())
    assert one.because == "/ has 99.1 % of its space in use, where root lies"
    assert list(examine(node_view(), T0, Settings())) == []
