"""The PCI bus out of a made-up sysfs: links, what is gone, what answers with ones."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpuwatch.collectors import Unsupported, pcie
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.pcie import PciDevice
from gpuwatch.sdk import pci_history

GPU = {
    "vendor": b"0x10de\n",
    "device": b"0x2330\n",
    "class": b"0x030200\n",
    "config": bytes.fromhex("de103023") + bytes(60),
    "current_link_width": b"16\n",
    "max_link_width": b"16\n",
    "current_link_speed": b"32.0 GT/s PCIe\n",
    "max_link_speed": b"32.0 GT/s PCIe\n",
    "aer_dev_correctable": b"RxErr 0\nBadTLP 3\nTOTAL_ERR_COR 3\n",
    "aer_dev_fatal": b"Undefined 0\nTOTAL_ERR_FATAL 0\n",
}
ADDRESS = "0000:1a:00.0"


class Tree:
    """A bus and what becomes of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.devices = root / "bus/pci/devices"
        self.devices.mkdir(parents=True)

    def add(self, pci: str = ADDRESS, /, **changes: bytes | None) -> Path:
        folder = self.devices / pci
        folder.mkdir(exist_ok=True)
        for name, text in (GPU | changes).items():
            (folder / name).unlink(missing_ok=True)
            if text is not None:
                (folder / name).write_bytes(text)
        (folder / "driver").unlink(missing_ok=True)
        (folder / "driver").symlink_to("../drivers/nvidia")
        return folder

    def remove(self, pci: str = ADDRESS) -> None:
        shutil.rmtree(self.devices / pci)

    def reader(self, **changes: Any) -> Any:
        return pcie.open_reader(pcie.Settings(sys_root=str(self.root), **changes))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "sys")


def one(reader: Any) -> PciDevice:
    (device,) = reader.read().facts.devices
    assert isinstance(device, PciDevice)
    return device


def test_a_good_gpu(tree: Tree) -> None:
    tree.add()
    assert one(tree.reader()) == PciDevice(
        pci=ADDRESS,
        kind="gpu",
        model="10de:2330",
        driver="nvidia",
        width=16,
        width_max=16,
        width_best=16,
        speed_gts=32.0,
        speed_max_gts=32.0,
        speed_best_gts=32.0,
        all_ones=False,
        aer={"correctable": 3, "fatal": 0},
    )


@pytest.mark.parametrize(
    ("vendor", "class_", "kind"),
    [
        (b"0x10de", b"0x030000", "gpu"),
        (b"0x1002", b"0x120000", "gpu"),
        (b"0x1a03", b"0x030000", None),  # the console of a server's management controller
        (b"0x10de", b"0x068000", "switch"),
        (b"0x8086", b"0x068000", None),
        (b"0x15b3", b"0x020700", "infiniband"),
        (b"0x1d0f", b"0x020000", "ethernet"),
        (b"0x144d", b"0x010802", "nvme"),
        (b"0x8086", b"0x060400", None),
        (b"garbage", b"0x020000", None),
        (b"0x15b3", b"\xff\xff", None),
    ],
)
def test_which_functions_matter(tree: Tree, vendor: bytes, class_: bytes, kind: str | None) -> None:
    tree.add(**{"vendor": vendor, "class": class_})
    tree.add("0000:99:00.0")
    found = {device.pci: device.kind for device in tree.reader().read().facts.devices}
    assert found.get(ADDRESS) == kind


def test_of_bridges_only_the_upstream_port_of_a_switch_is_watched(tree: Tree) -> None:
    """Root port 00:01.0 - switch 01:00.0 (upstream) - 02:00.0, 02:01.0 (downstream) - GPUs."""
    root = tree.root / "devices/pci0000:00"
    upstream = root / "0000:00:01.0/0000:01:00.0"
    places = [root / "0000:00:01.0", upstream, upstream / "0000:02:00.0", upstream / "0000:02:01.0"]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        for name, text in (GPU | {"class": b"0x060400\n", "vendor": b"0x1000\n"}).items():
            (place / name).write_bytes(text)
    gpu = places[2] / "0000:03:00.0"
    gpu.mkdir()
    for name, text in GPU.items():
        (gpu / name).write_bytes(text)
    for place in [*places, gpu]:
        (tree.devices / place.name).symlink_to(place)
    found = {device.pci: device.kind for device in tree.reader().read().facts.devices}
    assert found == {"0000:01:00.0": "pcie_switch", "0000:03:00.0": "gpu"}


def test_a_virtual_function_is_not_watched_and_one_that_sleeps_is_not_woken(tree: Tree) -> None:
    (tree.add("0000:1a:00.1") / "physfn").symlink_to("../x")
    folder = tree.add()
    (folder / "power").mkdir()
    (folder / "power/runtime_status").write_text("suspended\n")
    device = one(tree.reader())
    assert (device.all_ones, device.width, device.aer) == (None, None, {})


def test_all_ones_and_the_width_of_a_dead_device(tree: Tree) -> None:
    """Case: `rev ff`."""
    tree.add()
    reader = tree.reader()
    assert one(reader).all_ones is False
    tree.add(config=b"\xff" * 64, current_link_width=b"63\n", current_link_speed=b"Unknown\n")
    dead = one(reader)
    assert (dead.all_ones, dead.width, dead.speed_gts) == (True, None, None)
    assert (dead.width_best, dead.speed_best_gts) == (16, 32.0)


def test_the_best_link_is_remembered_over_restarts(tree: Tree, tmp_path: Path) -> None:
    tree.add(current_link_speed=b"2.5 GT/s PCIe\n")
    first = tree.reader()
    first.keep(tmp_path, True)
    one(first)
    tree.add()
    one(first)
    tree.add(current_link_width=b"8\n", current_link_speed=b"2.5 GT/s\n")
    after = tree.reader()
    after.keep(tmp_path, True)
    device = one(after)
    assert (device.width, device.width_best, device.speed_gts, device.speed_best_gts) == (8, 16, 2.5, 32.0)
    scan = tree.reader()
    scan.keep(tmp_path, False)
    assert one(scan).width_best == 16


def test_what_was_there_and_is_not(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        tree.add(f"0000:1{number}:00.0")
    reader = tree.reader()
    reader.keep(tmp_path, True)
    assert not any(device.gone for device in reader.read().facts.devices)
    tree.remove("0000:11:00.0")

    def gone(reader: Any) -> list[tuple[str, bool]]:
        return [(device.pci, device.gone_since_boot) for device in reader.read().facts.devices if device.gone]

    assert gone(reader) == [("0000:11:00.0", False)]
    after = tree.reader()
    after.keep(tmp_path, True)
    assert gone(after) == [("0000:11:00.0", False)]
    # Another boot numbers the buses anew: two of three are there.
    monkeypatch.setenv("GPUWATCH_BOOT_ID", "another")
    shutil.rmtree(tree.devices)
    tree.devices.mkdir()
    tree.add("0000:20:00.0")
    tree.add("0000:12:00.0")
    booted = tree.reader()
    booted.keep(tmp_path, True)
    assert gone(booted) == [("0000:10:00.0", True)]
    assert gone(booted) == [("0000:10:00.0", True)]
    tree.remove("0000:12:00.0")
    assert gone(booted) == [("0000:12:00.0", False), ("0000:10:00.0", True)]
    tree.add("0000:12:00.0")
    monkeypatch.setattr(pci_history, "_today", lambda: 10**6)
    gone(booted)
    assert gone(booted) == []  # for a week it was told


def test_it_came_back(tree: Tree) -> None:
    tree.add()
    reader = tree.reader()
    one(reader)
    tree.remove()
    assert one(reader).gone
    tree.add()
    assert not one(reader).gone


def test_where_nobody_could_look_nothing_is_known_of_the_links(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that is missing proves neither that a link is bad nor that it is good again; what is gone is gone."""
    tree.add("0000:10:00.0")
    folder = tree.add()
    reader = tree.reader()
    assert [device.width for device in reader.read().facts.devices] == [16, 16]
    monkeypatch.setattr("gpuwatch.sdk.errand.FOLDERS", ())
    with pytest.raises(ProbeError, match="could be looked at"):
        reader.read()
    shutil.rmtree(folder)
    reading = reader.read()
    assert [(device.pci, device.gone) for device in reading.facts.devices] == [("0000:10:00.0", False), (ADDRESS, True)]
    assert list(reading.gaps) == ["devices.0000:10:00.0"]


def test_a_device_that_keeps_its_reader_waiting_hides_no_other(tree: Tree) -> None:
    tree.add("0000:10:00.0")
    folder = tree.add()
    reader = tree.reader(deadline_s=0.4)
    reader.read()
    (folder / "config").unlink()
    os.mkfifo(folder / "config")
    reading = reader.read()
    good, bad = reading.facts.devices
    assert (good.width, good.hung) == (16, "")
    assert "no answer for more than 0.4 s" in bad.hung
    assert bad.width is None
    assert list(reading.gaps) == [f"devices.{ADDRESS}"]


def test_this_machine_and_one_without_a_bus(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no PCI bus here"):
        pcie.open_reader(pcie.Settings(sys_root=str(tmp_path / "none"))).read()
    reader = pcie.open_reader(pcie.Settings())
    try:
        devices = reader.read().facts.devices
    except Unsupported:
        devices = ()
    assert not any(device.gone or device.all_ones for device in devices)


@pytest.fixture(scope="module")
def shared_tree() -> Iterator[Tree]:
    with tempfile.TemporaryDirectory() as folder:
        made = Tree(Path(folder))
        made.add("0000:99:00.0")
        yield made


@hypothesis_settings(max_examples=40, deadline=None)
@given(file=st.sampled_from(sorted(GPU)), text=st.binary(max_size=400))
def test_any_bytes_in_any_file(shared_tree: Tree, file: str, text: bytes) -> None:
    shared_tree.add(**{file: text})
    reading = shared_tree.reader().read()
    list(pcie.metrics(reading.facts))
    shared_tree.remove()
    assert len(reading.facts.devices) in (1, 2)


def test_files_that_vanish_are_nothing(tree: Tree) -> None:
    tree.add(**dict.fromkeys(("config", "current_link_width", "current_link_speed", "aer_dev_fatal")))
    device = one(tree.reader())
    assert (device.all_ones, device.width, device.width_max, device.aer) == (None, None, 16, {"correctable": 3})


@pytest.mark.parametrize("file", ["vendor", "class", "device"])
def test_a_device_that_does_not_say_what_it_is_for_a_moment_is_not_gone(tree: Tree, tmp_path: Path, file: str) -> None:
    tree.add("0000:10:00.0")
    tree.add()
    first = tree.reader()
    first.keep(tmp_path, True)
    first.read()
    tree.add(**{file: b""})
    after = tree.reader()  # a restart of the agent in the wrong moment
    after.keep(tmp_path, True)
    reading = after.read()
    assert [(device.pci, device.gone) for device in reading.facts.devices] == [("0000:10:00.0", False)]
    assert reading.gaps == {f"devices.{ADDRESS}": "it does not say what it is"}
    tree.add()
    again = after.read()
    assert ([device.gone for device in again.facts.devices], again.gaps) == ([False, False], {})


def test_a_bus_that_cannot_be_listed_has_lost_nothing(tree: Tree) -> None:
    tree.add()
    reader = tree.reader()
    reader.read()
    tree.devices.rename(tree.root / "away")
    with pytest.raises(ProbeError, match="cannot be listed"):
        reader.read()
