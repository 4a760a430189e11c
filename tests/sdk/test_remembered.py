"""What outlives the agent: written whole, tried again where the disk was full, and of a boot that is known."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpuwatch.sdk import disks, pci_history
from gpuwatch.sdk.mounts import Mount
from gpuwatch.sdk.pci_bus import Function, Says
from gpuwatch.sdk.remembered import LOOKS_A_WINDOW, Remembered, floored


class Learned(msgspec.Struct, kw_only=True):
    count: int = 0


def test_what_the_disk_did_not_take_is_tried_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("gpuwatch.sdk.remembered.time.monotonic", lambda: now_s[0])
    folder, aside = tmp_path / "state", tmp_path / "aside"
    folder.mkdir()
    memory = Remembered("test", Learned)
    memory.keep(folder, True)

    def kept() -> int:
        after = Remembered("test", Learned)
        after.keep(folder, True)
        return after.value.count

    memory.value.count = 1
    memory.save()
    folder.rename(aside)
    for second in range(90):
        now_s[0] = 1000.0 + second
        memory.value.count = 2 + second
        memory.save()
    assert caplog.text.count("cannot be written") == 1
    aside.rename(folder)
    memory.save()
    assert kept() == 1, "a disk that is full is not asked each time"
    now_s[0] += 60
    memory.save()
    assert kept() == 91
    assert sorted(path.name for path in folder.iterdir()) == ["learned-test.json"]


def test_a_look_is_kept_as_not_later_than_it_was_and_seldom_as_another() -> None:
    kept = {floored(10_000.0 + second, 3600.0) for second in range(3600)}
    assert len(kept) <= LOOKS_A_WINDOW + 1
    assert all(0 <= second - floored(second, 3600.0) < 300 for second in range(0, 40_000, 7))


def test_a_boot_that_nobody_knows_proves_nothing_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (disks, pci_history):
        monkeypatch.setattr(module, "this_boot_id", lambda: "")
    card = Function("0000:1a:00.0", "gpu", "10de:2330", "/none")

    def agent() -> tuple[disks.Disks, pci_history.History]:
        seen, bus = disks.Disks("/none"), pci_history.History()
        seen.keep(tmp_path, ours=True)
        bus.keep(tmp_path, True)
        return seen, bus

    def mounted(how: str) -> Mount:
        return Mount("/data", "/dev/sdb", "ext4", "8:16", frozenset({how}), frozenset({"rw"}))

    seen, bus = agent()
    seen.look([mounted("rw")])
    bus.see(card, Says(False, 16, 16, 32.0, 32.0, {}))
    bus.save()
    seen, bus = agent()
    (disk,) = seen.look([mounted("ro")])
    assert disk.read_only_by == "", "it may be meant so in this boot"
    assert [lost[2] for lost in bus.gone([], frozenset())] == [True], "missing since an earlier boot, if at all"
