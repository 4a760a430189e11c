"""A storm in the log: little of it is held at once, and nothing that was read before the log broke off is lost."""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch.collectors import kernel_log
from gpuwatch.errors import ProbeError
from gpuwatch.faults.prefix import Record
from gpuwatch.model.facts.kernel_log import KernelEvent
from gpuwatch.sdk.file_watch import FileWatch
from gpuwatch.sdk.kernel_journal import KernelJournal
from gpuwatch.sdk.kernel_lines import LOT_LINES, MAX_LINES, Line, Source
from gpuwatch.sdk.kernel_lots import MOST_S, Lots
from gpuwatch.sdk.kernel_ring import KernelRing
from tests.fakes import FakeClock

BOOT = "11111111-2222-3333-4444-555555555555"
CRASH = "NVRM: Xid (PCI:0000:05:00): 45, pid=7, name=python3, Ch {:08x}"
LOST = "NVRM: Xid (PCI:0000:06:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
STORM = 11_760
MOST_HELD_BYTES = 600_000  # 290,000 where it was written; 2,350,000 while a whole reading was held


class Says:
    """A log that gives these lots one after the other; an error is raised once."""

    name = "says"

    def __init__(self, *lots: int | OSError) -> None:
        self._lots = list(lots)
        self.behind = False
        self.read_count = 0

    def read(self) -> list[Line]:
        self.read_count += 1
        lot = self._lots.pop(0) if self._lots else 0
        if isinstance(lot, OSError):
            raise lot
        self.behind = bool(self._lots)
        return [Line(record=Record(message=CRASH), boot_id=BOOT, key=str(n), at_unix_ns=n) for n in range(lot)]

    def take_lost(self) -> int:
        return 0

    def position(self) -> str:
        return ""

    def close(self) -> None:
        pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "kern.log"
    made.touch()
    return made


@pytest.fixture
def reader(path: Path) -> Iterator[kernel_log._Reader]:
    settings = kernel_log.Settings(source="file", path=path, fabric_manager_log=None)
    made = kernel_log.open_reader(settings, FakeClock(), BOOT)
    made.read()
    yield made
    made.close()


def xids(events: tuple[KernelEvent, ...]) -> list[int | None]:
    return [event.xid for event in events]


def count(lots: Lots, source: Source) -> int:
    return sum(1 for _ in lots.of(source))


# what is held


def of_file(path: Path) -> kernel_log._Reader:
    settings = kernel_log.Settings(source="file", path=path, fabric_manager_log=None)
    reader = kernel_log.open_reader(settings, FakeClock(), BOOT)
    reader.read()
    with path.open("a") as log:
        log.writelines(f"{CRASH.format(number)}\n" for number in range(STORM))
    return reader


def of_ring(_: Path) -> kernel_log._Reader:
    said = (f"3,{number},{49_000 * 10**6},-;{CRASH.format(number)}\n".encode() for number in range(STORM))

    def read(_file: int, _size: int) -> bytes:
        record = next(said, None)
        if record is None:
            raise BlockingIOError(errno.EAGAIN, "")
        return record

    settings = kernel_log.Settings(source="kmsg", earlier_boot=False, fabric_manager_log=None)
    reader = kernel_log.open_reader(settings, FakeClock(), BOOT)
    reader._source = KernelRing(Path("/dev/null"), boot_id=BOOT, after="", clock=FakeClock(), read=read)
    return reader


@pytest.mark.parametrize("opened", [of_file, of_ring])
def test_a_storm_is_told_and_little_of_it_is_held_at_once(
    path: Path, opened: Callable[[Path], kernel_log._Reader]
) -> None:
    reader = opened(path)
    first = reader.read()  # what a first event brings once is no storm's
    events, readings, most_bytes = list(first.facts.events), 1, 0
    tracemalloc.start()
    try:
        more = first.more
        while more:
            tracemalloc.reset_peak()
            before_bytes = tracemalloc.get_traced_memory()[0]
            reading = reader.read()
            most_bytes = max(most_bytes, tracemalloc.get_traced_memory()[1] - before_bytes)
            events += reading.facts.events
            more, readings = reading.more, readings + 1
    finally:
        tracemalloc.stop()
        reader.close()
    assert [(event.xid, event.drain) for event in events] == [(45, "no")]
    assert 4 <= readings <= 8
    assert most_bytes < MOST_HELD_BYTES


def test_a_reading_ends_at_its_most_lines_or_its_most_time() -> None:
    clock = FakeClock()
    source, lots = Says(*[LOT_LINES] * 20), Lots(clock)
    assert count(lots, source) == MAX_LINES // LOT_LINES * LOT_LINES + LOT_LINES
    taken = 0
    for _ in lots.of(source):
        clock.pass_s(MOST_S)
        taken += 1
    assert taken == LOT_LINES
    assert not list(lots.of(Says(0, LOT_LINES))), "nothing yet"
    assert not lots.of(Says()), "no lines are an end of what was begun"


def test_a_lot_that_is_not_full_is_the_last_of_its_reading() -> None:
    source = Says(LOT_LINES, LOT_LINES - 1, LOT_LINES)
    assert (count(Lots(FakeClock()), source), source.read_count) == (2 * LOT_LINES - 1, 2)


def test_a_watch_opened_again_and_again_leaves_no_class_behind(path: Path) -> None:
    FileWatch(path).close()
    gc.collect()
    gc.disable()
    try:
        before = len(ctypes._CFuncPtr.__subclasses__())  # type: ignore[attr-defined]
        for _ in range(20):
            FileWatch(path).close()
        assert len(ctypes._CFuncPtr.__subclasses__()) == before  # type: ignore[attr-defined]
    finally:
        gc.enable()


# what broke off


def test_what_was_read_before_the_log_broke_off_is_told_first() -> None:
    lots, source = Lots(FakeClock()), Says(LOT_LINES, OSError(errno.EIO, "gone"), 3)
    assert count(lots, source) == LOT_LINES
    with pytest.raises(OSError, match="gone"):
        lots.of(source)
    assert count(lots, source) == 3, "an error is told once"


def test_lines_before_the_log_became_a_folder_are_not_lost(reader: kernel_log._Reader, path: Path) -> None:
    with path.open("a") as log:
        log.write(LOST + "\n")
    path.rename(path.with_suffix(".1"))
    path.mkdir()
    assert xids(reader.read().facts.events) == [79]
    with pytest.raises(ProbeError):
        reader.read()


def test_records_before_the_ring_broke_off_are_not_lost() -> None:
    said: list[bytes | OSError] = [f"3,1,{10**6},-;{LOST}\n".encode(), *[OSError(errno.ENODEV, "gone")] * 2]

    def read(_file: int, _size: int) -> bytes:
        item = said.pop(0)
        if isinstance(item, OSError):
            raise item
        return item

    source = KernelRing(Path("/dev/null"), boot_id=BOOT, after="", clock=FakeClock(), read=read)
    assert [line.record.message for line in source.read()] == [LOST]
    with pytest.raises(OSError, match="gone"):
        source.read()
    source.close()


def test_entries_of_the_boot_before_are_not_lost_where_the_next_child_cannot_be_started(tmp_path: Path) -> None:
    entry = {"MESSAGE": LOST, "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "_BOOT_ID": "9" * 32, "__CURSOR": "c"}
    (tmp_path / "earlier").write_text(json.dumps(entry) + "\n")
    command = tmp_path / "journalctl"
    command.write_text(f"#!/bin/sh\nexec cat {tmp_path}/earlier\n")
    command.chmod(0o755)
    source = KernelJournal(str(command), boot_id=BOOT, after="", clock=FakeClock())
    source._child.wait(10)
    command.unlink()
    assert [line.record.message for line in source.read()] == [LOST]
    with pytest.raises(FileNotFoundError):
        source.read()
    source.close()
