"""Who made a file system read-only decides."""

from __future__ import annotations

import pytest

from gpuwatch.rules.file_system_read_only import Settings, examine
from tests.fakes import T0, node_view
from tests.fakes_node import disk, with_host


@pytest.mark.parametrize(
    ("read_only", "by", "outcome"),
    [
        (False, "", ""),
        (True, "", ""),  # mounted so from the beginning
        (True, "kernel", "sick"),
        (True, "remounted", "note"),
        (True, "fstab", "note"),
        (True, "a later agent's word", ""),
    ],
)
def test_each(read_only: bool, by: str, outcome: str) -> None:
    found = list(examine(with_host(disks=(disk(read_only=read_only, read_only_by=by),)), T0, Settings()))
    assert [("note" if one.note else "sick") for one in found] == ([outcome] if outcome else [])
    for one in found:
        assert one.must_last == (0.0 if one.note else 120.0)
        assert one.action == ("none" if one.note else "drain_replace")


def test_a_node_whose_disks_are_not_watched() -> None:
    assert list(examine(node_view(), T0, Settings())) == []
