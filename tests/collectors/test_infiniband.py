"""RDMA ports out of a made-up sysfs: what they say, what is learned of them, and what must never be read again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpuwatch.collectors import Hung, Unsupported, infiniband
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.infiniband import InfinibandFacts, RdmaPort
from gpuwatch.sdk.file_look import look_together
from gpuwatch.sdk.rdma_files import Complaints, PortSays
from gpuwatch.sdk.rdma_history import History

GOOD = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "lid": "0x1f",
    "counters/link_downed": "0",
    "counters/symbol_error": "0",
    "counters/port_xmit_data": "100",
    "hw_counters/out_of_sequence": "3",
    "hw_counters/roce_slow_restart": "9",  # not on the list: never read
}


class Tree:
    """A sysfs and what becomes of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "class/infiniband").mkdir(parents=True)
        (root / "kmsg").write_text("")

    def device(self, name: str, pci: str, *, virtual: bool = False, guid: str = "0c42:a103:0065:b2c8") -> None:
        card = self.root / "devices" / pci
        (card / "net" / f"net-{name}").mkdir(parents=True)
        if virtual:
            (card / "physfn").symlink_to("../elsewhere")
        folder = self.root / "class/infiniband" / name
        folder.mkdir()
        (folder / "device").symlink_to(card)
        (folder / "node_guid").write_text(f"{guid}\n")
        (folder / "board_id").write_text("MT_0000000838\n")

    def port(self, name: str, port: int = 1, **changes: str | None) -> None:
        base = self.root / "class/infiniband" / name / "ports" / str(port)
        for file, text in (GOOD | {key.replace("__", "/"): value for key, value in changes.items()}).items():
            path = base / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(f"{text}\n")

    def file(self, name: str, file: str, port: int = 1) -> Path:
        return self.root / "class/infiniband" / name / "ports" / str(port) / file

    def remove(self, name: str) -> None:
        (self.root / "class/infiniband" / name).rename(self.root / f"gone-{name}")

    def settings(self, **changes: Any) -> infiniband.Settings:
        usual: dict[str, Any] = {"sys_root": str(self.root), "kernel_log": str(self.root / "kmsg"), "boot_grace_s": 0.0}
        return infiniband.Settings(**usual | changes)

    def reader(self, **changes: Any) -> Any:
        return infiniband.open_reader(self.settings(**changes))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path / "sys")
    made.device("mlx5_0", "0000:1a:00.0")
    made.port("mlx5_0")
    return made


def one(reader: Any) -> RdmaPort:
    (port,) = reader.read().facts.ports
    assert isinstance(port, RdmaPort)
    return port


def test_a_good_port(tree: Tree) -> None:
    reading = tree.reader().read()
    (port,) = reading.facts.ports
    assert port == RdmaPort(
        device="mlx5_0",
        port=1,
        pci="0000:1a:00.0",
        link_layer="infiniband",
        state="active",
        phys_state="linkup",
        rate_gbps=400.0,
        best_rate_gbps=400.0,
        lid=31,
        netdev="net-mlx5_0",
        board="MT_0000000838",
        expected=True,
        counters={"link_downed": 0, "symbol_error": 0, "port_xmit_data": 400, "out_of_sequence": 3},
    )
    assert (reading.gaps, reading.abandoned_count) == ({}, 0)


def test_a_dead_card_whose_counters_are_all_ones_can_be_told(tree: Tree) -> None:
    tree.port("mlx5_0", counters__port_xmit_data=str(2**64 - 1), counters__symbol_error=str(2**62 - 1))
    port = one(tree.reader())
    assert "port_xmit_data" not in port.counters
    msgspec.msgpack.encode(port)


def test_a_node_without_any_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(Unsupported):
        infiniband.open_reader(infiniband.Settings(sys_root=str(tmp_path))).read()


def test_this_machine() -> None:
    reader = infiniband.open_reader(infiniband.Settings())
    if Path("/sys/class/infiniband").exists():
        assert reader.read().facts.ports
    else:
        with pytest.raises(Unsupported, match="no RDMA device on this node"):
            reader.read()


def test_a_port_that_does_not_say_where_it_sits_for_a_moment_is_the_same_port(tree: Tree, tmp_path: Path) -> None:
    reader = tree.reader()
    reader.keep(tmp_path, True)
    seat = tree.root / "devices/0000:1a:00.0"
    for _ in range(2):
        assert one(reader).pci == "0000:1a:00.0"
        seat.rename(tmp_path / "aside")
        port = one(reader)
        assert (port.pci, port.state, port.gone) == (None, "active", False)
        (tmp_path / "aside").rename(seat)
    assert one(reader).gone is False


def test_a_port_that_says_where_it_sits_only_later_is_not_missed_under_its_name(tree: Tree, tmp_path: Path) -> None:
    reader = tree.reader()
    seat = tree.root / "devices/0000:1a:00.0"
    seat.rename(tmp_path / "aside")
    assert one(reader).expected is True
    (tmp_path / "aside").rename(seat)
    port = one(reader)
    assert (port.pci, port.gone, port.expected) == ("0000:1a:00.0", False, True)


def test_only_a_port_that_was_active_once_is_expected_over_restarts(tree: Tree, tmp_path: Path) -> None:
    tree.port("mlx5_0", state="1: DOWN", phys_state="3: Disabled")
    reader = tree.reader()
    reader.keep(tmp_path, True)
    assert one(reader).expected is False
    tree.port("mlx5_0")
    assert one(reader).expected
    tree.port("mlx5_0", state="1: DOWN")
    first = one(reader)
    assert (first.expected, first.state, first.best_rate_gbps) == (True, "down", 400.0)
    after = tree.reader()
    after.keep(tmp_path, True)
    again = one(after)
    assert again.expected
    assert again.not_active_since_unix_ns == first.not_active_since_unix_ns
    tree.remove("mlx5_0")
    gone = one(after)
    assert (gone.device, gone.gone, gone.expected, gone.pci) == ("mlx5_0", True, True, "0000:1a:00.0")
    assert one(tree.reader(expected=("mlx5_0",))).gone  # a node that never saw it, but is told to have it
    with pytest.raises(Unsupported):
        tree.reader().read()


def test_what_the_settings_name_is_expected_and_nothing_else(tree: Tree) -> None:
    tree.device("mlx5_1", "0000:1b:00.0")
    tree.port("mlx5_1", state="1: DOWN")
    ports = tree.reader(expected=("mlx5_1/1", "mlx5_9")).read().facts.ports
    assert [(port.device, port.expected, port.gone) for port in ports] == [
        ("mlx5_0", False, False),
        ("mlx5_1", True, False),
        ("mlx5_9", True, True),
    ]
    assert not any(port.expected for port in tree.reader(ignored=("mlx5_0",)).read().facts.ports)


def test_virtual_functions_and_ports_without_a_guid_are_nobodys(tree: Tree) -> None:
    tree.device("mlx5_7", "0000:1a:00.1", guid="0000:0000:0000:0000")
    tree.port("mlx5_7")
    tree.device("mlx5_8", "0000:1a:00.2", virtual=True)
    tree.port("mlx5_8")
    tree.device("rdmap16s27", "0000:10:1b.0", guid="0000:0000:0000:0000")  # EFA has no GUID and is real
    tree.port("rdmap16s27", link_layer="Unspecified", rate="100 Gb/sec (4X EDR)")
    ports = {port.device: port for port in tree.reader().read().facts.ports}
    assert {name: (port.virtual, port.expected) for name, port in ports.items()} == {
        "mlx5_0": (False, True),
        "mlx5_7": (True, False),
        "mlx5_8": (True, False),
        "rdmap16s27": (False, True),
    }


def test_flaps_are_losses_of_the_link_each_counted_once(tree: Tree, tmp_path: Path) -> None:
    reader = tree.reader()
    reader.keep(tmp_path, True)
    tree.port("mlx5_0", counters__link_downed="40")  # before we looked: not ours to count
    assert one(reader).flap_count == 0
    tree.port("mlx5_0", counters__link_downed="42")
    assert one(reader).flap_count == 2
    tree.port("mlx5_0", counters__link_downed="42", state="2: INIT")  # the state tells it before the counter
    assert one(reader).flap_count == 3
    tree.port("mlx5_0", counters__link_downed="43")
    assert one(reader).flap_count == 3
    tree.port("mlx5_0", counters__link_downed="0")  # the driver was loaded anew
    assert one(reader).flap_count == 3
    tree.port("mlx5_0", counters__link_downed="N/A (no PMA)", state="1: DOWN")
    assert one(reader).flap_count == 4
    assert one(reader).flap_count == 4
    after = tree.reader()
    after.keep(tmp_path, True)
    assert one(after).flap_count == 4


def test_flaps_leave_the_window_and_coming_up_is_none(tree: Tree) -> None:
    now_s = [100.0]
    history = History(flap_window_s=3600, rise_window_s=600, boot_grace_s=600, since_boot_s=lambda: now_s[0])

    def see(state: str, downed: int) -> int:
        says = PortSays(state, None, 400.0, "infiniband", None, None, False, {"link_downed": downed})
        return len(history.see("k", "mlx5_0", 1, says, 10**18).flaps_s)

    assert [see("init", 0), see("active", 1), see("init", 1), see("active", 2)] == [0, 0, 0, 0]
    now_s[0] = 630
    assert see("active", 3) == 0, "it may have been in the time in which links come up"
    for at_s, downed, flaps in ((690, 4, 1), (4140, 4, 1), (4200, 5, 2), (4400, 5, 1), (7800, 5, 0)):
        now_s[0] = at_s
        assert see("active", downed) == flaps, at_s


def test_rises_of_errors_within_the_window(tree: Tree) -> None:
    now_s = [1000.0]
    history = History(flap_window_s=3600, rise_window_s=600, boot_grace_s=0, since_boot_s=lambda: now_s[0])

    def rises(value: int) -> int | None:
        now_s[0] += 300
        return history.rises("k", {"symbol_error": value}).get("symbol_error")

    assert [rises(value) for value in (50, 60, 60, 60, 61, 5, 9)] == [None, 10, 10, None, 1, None, 4]


def test_a_counter_that_gives_an_error_is_never_read_again(tree: Tree, tmp_path: Path) -> None:
    path = tree.file("mlx5_0", "counters/symbol_error")
    path.unlink()
    path.mkdir()  # reading it is an error that no second try cures
    reader = tree.reader()
    reader.keep(tmp_path, True)
    assert reader.read().gaps == {"ports.mlx5_0.counters": "1 not readable, symbol_error: Is a directory"}
    path.rmdir()
    path.write_text("7\n")
    assert "symbol_error" not in one(reader).counters
    after = tree.reader()
    after.keep(tmp_path, True)
    assert "symbol_error" not in one(after).counters


FLOOD = (
    "3,9,1,-;mlx5_core 0000:1a:00.0: mlx5_cmd_out_err:835:(pid 18360): ACCESS_REG(0x805) op_mod(0x1) failed, "
    "status bad operation(0x2), syndrome (0x9a6171), err(-22)\n"
)


def test_a_card_of_which_the_kernel_complains_loses_its_counters(tree: Tree) -> None:
    """Case: the monitor's own reading floods the kernel log."""
    log = tree.root / "kmsg"
    log.write_text(FLOOD)  # an old line: not of our reading
    reader = tree.reader()
    assert one(reader).counters
    complaints = Complaints(str(log))
    with log.open("a") as file:
        file.write("6,10,1,-;usb 1-1: new device\n" + FLOOD)
    assert complaints.heard() == {"0000:1a:00.0"}
    assert Complaints(str(tree.root / "none")).heard() == set()
    reader._history.refuse([str(path) for path in tree.root.rglob("*counters/*")])
    assert one(reader).counters == {}
    assert one(reader).state == "active"


def test_our_own_reading_makes_the_kernel_complain(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.device("mlx5_1", "0000:1b:00.0")
    tree.port("mlx5_1")

    def reading(*args: Any, **named: Any) -> Any:
        with (tree.root / "kmsg").open("a") as log:
            log.write(FLOOD)
        return look_together(*args, **named)

    monkeypatch.setattr("gpuwatch.collectors.infiniband.look_together", reading)
    reader = tree.reader()
    reader.keep(tmp_path, True)
    assert all(port.counters for port in reader.read().facts.ports)
    monkeypatch.undo()
    after = tree.reader()
    after.keep(tmp_path, True)
    flooded, other = after.read().facts.ports
    assert (flooded.state, flooded.counters) == ("active", {})
    assert other.counters


def test_where_nobody_could_look_nothing_is_known_of_the_ports(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that is missing proves neither that a port is down nor that it is up again."""
    reader = tree.reader()
    assert reader.read().facts.ports[0].state == "active"
    monkeypatch.setattr("gpuwatch.sdk.errand.FOLDERS", ())
    with pytest.raises(ProbeError, match="could be looked at"):
        reader.read()
    monkeypatch.undo()
    assert reader.read().facts.ports[0].state == "active"


def test_a_device_that_does_not_answer_hides_no_other(tree: Tree) -> None:
    tree.device("mlx5_1", "0000:1b:00.0")
    tree.port("mlx5_1")
    reader = tree.reader(deadline_s=0.4)
    assert all(port.expected for port in reader.read().facts.ports)
    state = tree.file("mlx5_1", "state")
    state.unlink()
    os.mkfifo(state)  # a reader of it waits for ever
    reading = reader.read()
    good, bad = reading.facts.ports
    assert (good.state, good.hung) == ("active", "")
    assert (bad.state, bad.expected, bad.link_layer) == (None, True, "infiniband")
    assert "no answer for more than 0.4 s; state S, wait channel" in bad.hung
    assert "ports.mlx5_1" in reading.gaps
    tree.remove("mlx5_0")
    with pytest.raises(Hung, match="no RDMA device answers"):
        reader.read()


@pytest.mark.parametrize(
    ("file", "text", "field"),
    [
        ("state", "", "state"),
        ("state", "ACTIVE", "state"),
        ("rate", "fast", "rate_gbps"),
        ("phys_state", "5 LinkUp", "phys_state"),
        ("lid", "65535", "lid"),
        ("link_layer", "\x00", "link_layer"),
    ],
)
def test_a_file_that_says_nothing_sensible_is_none(tree: Tree, file: str, text: str, field: str) -> None:
    tree.file("mlx5_0", file).write_text(text)
    assert getattr(one(tree.reader()), field) is None


@pytest.fixture(scope="module")
def shared_tree() -> Iterator[Tree]:
    with tempfile.TemporaryDirectory() as folder:
        made = Tree(Path(folder))
        made.device("mlx5_0", "0000:1a:00.0")
        made.port("mlx5_0")
        yield made


FILES = ("node_guid", "board_id", *(f"ports/1/{name}" for name in GOOD))


@hypothesis_settings(max_examples=40, deadline=None)
@given(file=st.sampled_from(FILES), text=st.binary(max_size=400))
def test_any_bytes_in_any_file(shared_tree: Tree, file: str, text: bytes) -> None:
    path = shared_tree.root / "class/infiniband/mlx5_0" / file
    before = path.read_bytes()
    path.write_bytes(text)
    reading = shared_tree.reader().read()
    list(infiniband.metrics(reading.facts))
    path.write_bytes(before)
    assert len(reading.facts.ports) == 1


def test_the_page(tree: Tree) -> None:
    samples = {sample.name: sample for sample in infiniband.metrics(tree.reader().read().facts)}
    assert samples["gpuwatch_rdma_port_active"].value == 1
    assert samples["gpuwatch_rdma_port_rate_bytes_per_second"].value == 50e9
    assert samples["gpuwatch_rdma_port_sent_bytes_total"].value == 400
    nothing = [sample.name for sample in infiniband.metrics(InfinibandFacts((RdmaPort("mlx5_0", 1),)))]
    assert nothing == ["gpuwatch_rdma_port_expected", "gpuwatch_rdma_port_recent_flaps"]
