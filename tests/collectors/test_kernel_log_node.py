"""The kernel log as the agent reads it, beyond GPUs: other faults, floods, overruns, the boot before, daemons."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch.collectors import kernel_log
from gpuwatch.model.facts.kernel_log import KernelEvent
from gpuwatch.sdk.kernel_journal import OTHERS, KernelJournal
from gpuwatch.sdk.kernel_ring import KernelRing
from tests.fakes import FakeClock

BOOT = "11111111-2222-3333-4444-555555555555"
XID = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
CORRECTED = "pcieport 0000:00:1c.0: AER: Corrected error received: 0000:00:1c.0"


class Node:
    """A log file, a fabric manager's log, a clock, a reader of all."""

    def __init__(self, folder: Path) -> None:
        self.path, self.fabric = folder / "kern.log", folder / "fabricmanager.log"
        self.path.touch()
        self.clock = FakeClock()
        self.settings = kernel_log.Settings(source="file", path=self.path, fabric_manager_log=self.fabric)
        self.reader = kernel_log.open_reader(self.settings, self.clock, BOOT)

    def say(self, *lines: str) -> tuple[KernelEvent, ...]:
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
        return self.read()

    def read(self) -> tuple[KernelEvent, ...]:
        facts = self.reader.read().facts
        return tuple(facts.events)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    made.read()
    yield made
    made.reader.close()


def test_a_dead_disk_is_an_event_with_its_name(node: Node) -> None:
    (event,) = node.say("nvme nvme4: Disabling device after reset failure: -19")
    assert (event.kind, event.subject, event.xid, event.pci) == ("nvme_lost", "nvme4", None, None)
    assert (event.severity, event.action, event.drain) == ("fatal", "drain_replace", "yes")


def test_a_switchs_event_carries_its_number(node: Node) -> None:
    (event,) = node.say("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    assert (event.kind, event.sxid, event.pci) == ("sxid", 20034, "0000:05:00.0")


def test_a_bus_error_names_the_device_and_not_its_port(node: Node) -> None:
    (event,) = node.say(
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        "nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)",
    )
    assert (event.kind, event.pci, event.subject) == ("aer_fatal", "0000:03:00.0", "0000:00:03.0")


def test_a_new_fatal_fault_of_the_node_is_urgent(node: Node) -> None:
    with node.path.open("a") as file:
        file.write("EXT4-fs (md0): Remounting filesystem read-only\n")
    assert node.reader.read().urgent
    with node.path.open("a") as file:
        file.write("EXT4-fs (md1): Remounting filesystem read-only\n")
    assert node.reader.read().urgent, "another file system"


def test_a_flood_of_what_drains_nobody_is_told_once_a_minute_with_its_count(node: Node) -> None:
    told: list[int] = []
    for _ in range(130):  # each second 100, for a little more than two minutes
        node.clock.pass_s(1)
        told += [event.count for event in node.say(*[CORRECTED] * 100)]
    assert len(told) == 3
    assert told[0] == 100
    assert told[1] == 100 + 59 * 100, "what was held back is in the next"


def test_a_flood_hides_no_fault(node: Node) -> None:
    node.say(*[CORRECTED] * 100)
    events = node.say(*[CORRECTED] * 50, XID, *[CORRECTED] * 50)
    assert [event.xid for event in events] == [79]


def test_a_storm_of_one_crash_is_not_thousands_of_events_and_hides_no_fault(node: Node) -> None:
    xid = "NVRM: Xid (PCI:0000:05:00): {number}, pid={pid}, name=python3, Ch 00000008"
    told = [event for _ in range(20) for event in node.say(*(xid.format(number=45, pid=n) for n in range(588)))]
    assert sum(event.xid == 45 for event in told) <= 2
    told = list(node.say(*(xid.format(number=31, pid=n) for n in range(5000)), XID.replace("0000:05", "0000:06")))
    while (reading := node.reader.read()).more:
        told += list(reading.facts.events)
    told += list(reading.facts.events)
    assert sum(event.xid == 31 for event in told) == 32
    assert sum(event.xid == 79 for event in told) == 1


def test_good_news_is_never_held_back(node: Node) -> None:
    news = "NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x1 (x) to 0x{to} (y)"
    told = [event.clears for n in range(6) for event in node.say(news.format(to=n % 2))]
    assert told == [True, False, True, False, True, False]


# the ring


class Ring:
    """/dev/kmsg, see test_kernel_log.py."""

    def __init__(self) -> None:
        self.queue: list[bytes | int] = []

    def read(self, _file: int, _size: int) -> bytes:
        if not self.queue:
            raise BlockingIOError(errno.EAGAIN, "")
        item = self.queue.pop(0)
        if isinstance(item, int):
            raise OSError(item, os.strerror(item))
        return item

    def say(self, sequence: int, text: str) -> None:
        self.queue.append(f"3,{sequence},{49_000 * 10**6},-;{text}\n".encode())


def test_an_overrun_is_a_gap_and_asks_nvml_at_once_but_not_for_each_lost_message() -> None:
    ring, clock = Ring(), FakeClock()
    settings = kernel_log.Settings(source="kmsg", earlier_boot=False, fabric_manager_log=None)
    reader = kernel_log.open_reader(settings, clock, BOOT)
    reader._source = KernelRing(Path("/dev/null"), boot_id=BOOT, after="", clock=clock, read=ring.read)
    ring.say(1, "usb 1-1: new device")
    assert reader.read().ask == ()
    ring.queue.append(errno.EPIPE)
    ring.say(500, "usb 1-1: new device")
    reading = reader.read()
    assert (reading.facts.lost_count, reading.urgent, reading.ask) == (498, True, ("nvml",))
    assert "498 messages were lost" in reading.gaps["events"]
    ring.queue.append(errno.EPIPE)
    ring.say(900, "usb 1-1: new device")
    reading = reader.read()
    assert (reading.facts.lost_count, reading.urgent, reading.ask) == (399, False, ())
    clock.pass_s(11)
    ring.queue.append(errno.EPIPE)
    ring.say(1000, XID)
    reading = reader.read()
    assert (reading.ask, [event.xid for event in reading.facts.events]) == (("nvml",), [79])
    reader.close()


def test_a_storm_from_the_ring_takes_a_bounded_bite_and_misses_nothing_fatal() -> None:
    ring, clock = Ring(), FakeClock()
    settings = kernel_log.Settings(source="kmsg", earlier_boot=False, fabric_manager_log=None)
    reader = kernel_log.open_reader(settings, clock, BOOT)
    reader._source = KernelRing(
        Path("/dev/null"), boot_id=BOOT, after="", clock=clock, read=lambda *_: _pop(ring.queue)
    )
    for sequence in range(100_000):
        ring.say(sequence, XID if sequence == 77_777 else f"usb 1-1: storm number {sequence} " + "x" * 200)
    ring.queue.reverse()  # taken from the end: a list is slow at its front
    began, found, bites = time.process_time(), [], 0
    while True:
        reading = reader.read()
        found += list(reading.facts.events)
        bites += 1
        if not reading.more:
            break
    assert [event.xid for event in found] == [79]
    assert bites >= 10, "between two bites the agent rests"
    assert time.process_time() - began < 4.0  # 0.5 s where it was written
    reader.close()


def _pop(queue: list[bytes | int]) -> bytes:
    if not queue:
        raise BlockingIOError(errno.EAGAIN, "")
    item = queue.pop()
    assert isinstance(item, bytes)
    return item


# the boot before this one

JOURNALCTL = """\
#!/bin/sh
echo "$@" >> {folder}/calls
cat {folder}/earlier 2>/dev/null || exit 1
"""


@pytest.fixture
def journalctl(tmp_path: Path) -> Callable[[list[str] | None], Path]:
    def make(messages: list[str] | None) -> Path:
        if messages is not None:
            (tmp_path / "earlier").write_text(
                "".join(
                    json.dumps(
                        {
                            "MESSAGE": message,
                            "_TRANSPORT": "kernel",
                            "_BOOT_ID": "9" * 32,
                            "_SOURCE_MONOTONIC_TIMESTAMP": "49000000000",
                            "__REALTIME_TIMESTAMP": "1789999000000000",
                        }
                    )
                    + "\n"
                    for message in messages
                )
            )
        command = tmp_path / "journalctl"
        command.write_text(JOURNALCTL.format(folder=tmp_path))
        command.chmod(0o755)
        return command

    return make


def ring_reader(folder: Path, command: Path, clock: FakeClock) -> kernel_log._Reader:
    (folder / "ring").touch()
    settings = kernel_log.Settings(
        source="kmsg", path=folder / "ring", journalctl=command, cursor=folder / "cursor", fabric_manager_log=None
    )
    return kernel_log.open_reader(settings, clock, BOOT)


def all_of(reader: kernel_log._Reader) -> list[KernelEvent]:
    found: list[KernelEvent] = []
    until = time.monotonic() + 20
    while time.monotonic() < until:
        reading = reader.read()
        found += list(reading.facts.events)
        if not reading.more:
            return found
        time.sleep(0.01)
    raise AssertionError("it goes on for ever")


def test_beside_the_ring_the_boot_before_is_read_once(
    tmp_path: Path, journalctl: Callable[[list[str] | None], Path]
) -> None:
    command, clock = journalctl([XID, "Kernel panic - not syncing: Fatal Machine check"]), FakeClock()
    reader = ring_reader(tmp_path, command, clock)
    assert all_of(reader) == [], "what happens now comes first"
    clock.pass_s(6)
    events = all_of(reader)
    assert [(event.kind, event.xid, event.boot_id) for event in events] == [
        ("xid", 79, "9" * 32),
        ("kernel_panic", None, "9" * 32),
    ]
    assert not any(reader._is_urgent(events, clock.monotonic_ns()) for _ in range(1)), "history is not urgent"
    clock.pass_s(120)
    reader.close()
    again = ring_reader(tmp_path, command, clock)
    clock.pass_s(6)
    assert all_of(again) == [], "another agent in the same boot"
    again.close()
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert "-b -1" in call
    assert "_TRANSPORT=kernel" in call


def test_one_look_beside_an_agent_reads_no_history_and_leaves_no_trace(
    tmp_path: Path, journalctl: Callable[[list[str] | None], Path]
) -> None:
    clock = FakeClock()
    reader = ring_reader(tmp_path, journalctl([XID]), clock)
    reader.keep(tmp_path / "state", ours=False)
    clock.pass_s(6)
    assert all_of(reader) == []
    clock.pass_s(120)
    reader.close()
    assert not (tmp_path / "calls").exists()
    assert not (tmp_path / "cursor").exists()


def test_the_cursor_is_kept_in_the_agents_state_where_the_settings_name_no_other(tmp_path: Path) -> None:
    log, state, clock = tmp_path / "kern.log", tmp_path / "state", FakeClock()
    log.write_text("")
    settings = kernel_log.Settings(source="file", path=log, fabric_manager_log=None)

    def opened() -> kernel_log._Reader:
        reader = kernel_log.open_reader(settings, clock, BOOT)
        reader.keep(state)
        return reader

    reader = opened()
    reader.read()
    with log.open("a") as file:
        file.write("x\n" * 1000 + XID + "\n")
    assert len(reader.read().facts.events) == 1
    clock.pass_s(120)
    reader.close()
    saved = json.loads((state / "kernel_log.json").read_text())
    assert saved["boot_id"] == BOOT
    reader = opened()
    assert reader.read().facts.events == (), "read and settled before the restart"
    with log.open("a") as file:
        file.write("EXT4-fs (md0): Remounting filesystem read-only\n")
    assert [event.kind for event in reader.read().facts.events] == ["fs_read_only"]
    reader.close()


@pytest.mark.parametrize("there", [True, False])
def test_no_boot_before_and_no_journal_are_no_faults(
    tmp_path: Path, journalctl: Callable[[list[str] | None], Path], there: bool
) -> None:
    command = journalctl(None) if there else tmp_path / "nothing"
    clock = FakeClock()
    reader = ring_reader(tmp_path, command, clock)
    clock.pass_s(6)
    assert all_of(reader) == []
    assert reader.read().gaps == {}
    reader.close()


# the fabric manager

ABORT = (
    "[Nov 30 2026 10:00:00] [ERROR] [tid 9] detected number of NVSwitches don't match with any supported system "
    "topology, aborting fabric manager\n"
)


def test_the_fabric_managers_own_log_is_read_where_there_is_one(node: Node) -> None:
    assert node.read() == ()
    node.fabric.write_text(ABORT)
    (event,) = node.read()
    assert (event.kind, event.drain) == ("fm_topology_mismatch", "yes")
    assert node.read() == ()
    with node.fabric.open("a") as file:
        file.write("[Nov 30 2026 10:00:01] [ERROR] [tid 9] EXT4-fs (md0): Remounting filesystem read-only\n")
        file.write("[Nov 30 2026 10:00:01] [ERROR] [tid 9] " + XID + "\n")
    assert node.read() == (), "it speaks of the fabric alone"


def test_the_fabric_managers_words_in_the_kernels_log_are_nobodys(node: Node) -> None:
    assert node.say(ABORT.strip(), "Nov 30 10:00:00 host1 nv-fabricmanager[7]: " + ABORT[39:].strip()) == ()


def test_a_fabric_managers_log_that_cannot_be_read_is_a_gap_and_stops_nothing(node: Node) -> None:
    node.fabric.mkdir()
    (event,) = node.say(XID)
    assert event.xid == 79
    assert "no plain file" in node.reader.read().gaps["fabric_manager"]


def test_the_journal_is_asked_for_the_kernel_and_for_the_few_that_may_speak(tmp_path: Path) -> None:
    command = tmp_path / "journalctl"
    command.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nsleep 60\n')
    command.chmod(0o755)
    source = KernelJournal(str(command), boot_id=BOOT, after="c", clock=FakeClock())
    until = time.monotonic() + 20
    while not (tmp_path / "calls").exists() and time.monotonic() < until:
        time.sleep(0.02)
    source.close()
    call = (tmp_path / "calls").read_text().split()
    assert call[-len(OTHERS) - 1 :] == ["_TRANSPORT=kernel", *OTHERS]
    assert "_SYSTEMD_UNIT=nvidia-fabricmanager.service" in OTHERS
