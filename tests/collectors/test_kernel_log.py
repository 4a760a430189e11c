"""The kernel log as the agent reads it: from this boot's beginning, each event once, whatever rotates or restarts."""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpuwatch import config
from gpuwatch.clock import SystemClock
from gpuwatch.collectors import kernel_log
from gpuwatch.errors import ConfigError, ProbeError
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.sdk.file_watch import FileWatch
from gpuwatch.sdk.kernel_events import MOST_REMEMBERED
from gpuwatch.sdk.kernel_journal import KernelJournal
from gpuwatch.sdk.kernel_lines import EARLIER_BOOT, wall_unix_ns
from gpuwatch.sdk.kernel_lots import Lots
from gpuwatch.sdk.kernel_ring import KernelRing
from tests.fakes import FakeClock

S = 10**9
BOOT = "11111111-2222-3333-4444-555555555555"
XID = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
LOST = "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus."


def app(pid: int = 7, pci: str = "0000:06:00", number: int = 31) -> str:
    return f"NVRM: Xid (PCI:{pci}): {number}, pid={pid}, name=python3, Ch 00000008"


class Log:
    """A log file, a clock and a reader of both."""

    def __init__(self, folder: Path, *, cursor: bool = False) -> None:
        self.path = folder / "kern.log"
        self.path.touch()
        self.clock = FakeClock()
        self.settings = kernel_log.Settings(
            source="file", path=self.path, cursor=folder / "cursor" / "kernel_log.json" if cursor else None
        )
        self.reader = kernel_log.open_reader(self.settings, self.clock, BOOT)

    def write(self, *lines: str, uptime_s: float | None = None) -> None:
        stamp = "" if uptime_s is None else f"[{uptime_s:.6f}] "
        with self.path.open("a") as file:
            file.writelines(f"{stamp}{line}\n" for line in lines)

    def read(self) -> tuple[KernelEvent, ...]:
        facts: KernelLogFacts = self.reader.read().facts
        assert facts.readable
        return facts.events

    def restart(self) -> None:
        self.reader.close()
        self.reader = kernel_log.open_reader(self.settings, self.clock, BOOT)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.reader.close()


def xids(events: tuple[KernelEvent, ...]) -> list[int | None]:
    return [event.xid for event in events]


# what a reading holds


def test_a_new_line_is_one_event_with_the_catalogues_verdict(log: Log) -> None:
    assert log.read() == ()
    log.write("usb 1-1: new device", XID, uptime_s=50_000.0)
    (event,) = log.read()
    assert (event.kind, event.xid, event.pci, event.pid, event.name) == ("xid", 79, "0000:05:00", None, None)
    assert (event.severity, event.action, event.drain) == ("fatal", "drain_replace", "yes")
    assert (event.boot_id, event.at_unix_ns, event.text) == (BOOT, log.clock.unix_ns(), XID)
    assert log.read() == ()


def test_a_new_fatal_event_is_urgent_but_a_storm_is_not_a_thousand_alarms(log: Log) -> None:
    log.read()
    log.write(app())
    assert not log.reader.read().urgent
    log.write(app(number=119))
    assert log.reader.read().urgent
    for _ in range(10):
        log.clock.pass_s(0.5)
        log.write(app(number=119))
        assert not log.reader.read().urgent
    log.write(app(number=119, pci="0000:07:00"))
    assert log.reader.read().urgent, "another GPU"
    log.clock.pass_s(10)
    log.write(app(number=119))
    assert log.reader.read().urgent


def test_repeats_are_folded_by_gpu_xid_and_process(log: Log) -> None:
    log.read()
    log.write(*[app(7)] * 5, *[app(8)] * 2, *[app(7, pci="0000:07:00")] * 3)
    assert [(event.pid, event.pci, event.count) for event in log.read()] == [
        (7, "0000:06:00", 5),
        (8, "0000:06:00", 2),
        (7, "0000:07:00", 3),
    ]


def test_a_lost_gpu_is_told_once_in_whatever_words(log: Log) -> None:
    log.read()
    log.write(XID, LOST)
    assert [(event.xid, event.inferred, event.count) for event in log.read()] == [(79, False, 1)]
    log.write(LOST)
    assert log.read() == (), "the same loss in words, a reading later"
    log.clock.pass_s(120)
    log.write(LOST)
    assert [(event.xid, event.inferred) for event in log.read()] == [(79, True)]
    log.write(XID)
    assert log.read() == (), "its number, after the words"


def test_a_message_over_several_lines_and_readings(log: Log) -> None:
    log.read()
    log.write("NVRM: The NVIDIA GPU 0000:05:00.0")
    assert log.read() == ()
    log.write("NVRM: (PCI ID: 10de:2901) installed in this system has")
    assert log.read() == ()
    log.write("NVRM: fallen off the bus and is not responding to commands.")
    assert [(event.xid, event.pci, event.inferred) for event in log.read()] == [(79, "0000:05:00", True)]


def test_a_mismatch_whose_end_never_comes_is_told(log: Log) -> None:
    log.read()
    log.write("NVRM: API mismatch: the client has the version 535.54.03, but")
    assert log.read() == ()
    assert [event.kind for event in log.read()] == ["driver_mismatch"]
    assert log.read() == ()


def test_good_news_is_an_event_that_clears(log: Log) -> None:
    log.read()
    log.write(
        "NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    )
    (event,) = log.read()
    assert (event.clears, event.severity) == (True, "info")


def test_a_lost_gpu_told_slowly_is_not_missed(log: Log) -> None:
    for line in (
        "NVRM: The NVIDIA GPU 0000:05:00.0",
        "NVRM: (PCI ID: 10de:2901) installed in this system has",
    ):
        log.write(line, uptime_s=12.5)
        assert log.read() == ()
        assert log.read() == (), "nothing came for a while"
    log.write("NVRM: fallen off the bus and is not responding to commands.", uptime_s=12.5)
    (event,) = log.read()
    assert (event.xid, event.pci, event.inferred) == (79, "0000:05:00", True)
    assert log.read() == ()


def test_other_programs_lines_are_not_believed(log: Log) -> None:
    log.read()
    log.write(f"Nov 22 18:29:55 host1 gpud[1]: {XID}", f'"{XID}"', f"12,1,1,-;{XID}")
    assert log.read() == ()


def test_long_text_is_cut(log: Log) -> None:
    log.read()
    log.write(app() + "x" * 2000)
    assert len(log.read()[0].text) == 400


# identity


def test_reading_again_gives_the_same_ids(log: Log) -> None:
    log.write(XID, app(), app(8), uptime_s=49_000.0)
    first = log.read()
    log.restart()
    assert log.read() == first
    assert len({event.id for event in first}) == len(first) == 3


def test_ids_do_not_depend_on_how_the_log_was_read(log: Log) -> None:
    log.read()
    seen: set[str] = set()
    for number in range(6):
        log.write(app(number % 2 + 1), uptime_s=49_990.0 + 3 * number)
        seen |= {event.id for event in log.read()}
    log.restart()
    assert {event.id for event in log.read()} <= seen


def test_two_equal_lines_at_one_moment_are_two(log: Log) -> None:
    log.read()
    log.write(app(), uptime_s=49_000.0)
    (first,) = log.read()
    log.write(app(), uptime_s=49_000.0)
    (second,) = log.read()
    assert first.id != second.id


def test_equal_lines_without_a_time_are_told_apart_by_their_place(log: Log) -> None:
    log.read()
    log.write(app())
    (first,) = log.read()
    log.write(app())
    (second,) = log.read()
    assert first.id != second.id


# time: what stood there before the agent came


def test_a_line_from_before_the_agents_start_has_its_own_time(log: Log) -> None:
    log.write(XID, uptime_s=40_000.0)
    (event,) = log.read()
    assert event.at_unix_ns == log.clock.unix_ns() - 10_000 * S
    assert event.boot_id == BOOT


@pytest.mark.parametrize(
    ("before", "age_s", "this_boot"),
    [
        ("{iso} host1 kernel: ", 100, True),
        ("{iso} host1 kernel: ", 49_000, True),
        ("{iso} host1 kernel: ", 51_000, False),
        ("{syslog} host1 kernel: ", 100, True),
        ("{syslog} host1 kernel: ", 90_000, False),
        ("{syslog} host1 kernel: [  400.000000] ", 90_000, False),
        ("{unix} host1 kernel: ", 100, True),
        ("{unix} host1 kernel: ", 90_000, False),
    ],
)
def test_old_lines_are_history(log: Log, before: str, age_s: int, this_boot: bool) -> None:
    at_ns = log.clock.unix_ns() - age_s * S
    moment = datetime.fromtimestamp(at_ns / S).astimezone()
    stamps = {
        "iso": moment.isoformat(timespec="microseconds"),
        "syslog": moment.strftime("%b %e %H:%M:%S"),
        "unix": f"{at_ns / S:.6f}",
    }
    log.write(before.format(**stamps) + XID)
    reading = log.reader.read()
    (event,) = reading.facts.events
    assert event.boot_id == (BOOT if this_boot else EARLIER_BOOT)
    assert abs(event.at_unix_ns - at_ns) < S
    assert reading.urgent is this_boot, "history never hurries"


def test_a_date_that_cannot_be_read_is_history_where_it_may_be_old(log: Log) -> None:
    log.write(f"kwi 15 07:56:59 host1 kernel: {XID}")
    (event,) = log.read()
    assert event.boot_id == EARLIER_BOOT
    log.write(f"kwi 15 07:56:59 host1 kernel: {app()}")
    (event,) = log.read()
    assert event.boot_id == BOOT, "written before our eyes"


def test_longer_up_than_the_machine_is_an_earlier_boot(log: Log) -> None:
    log.write(XID, uptime_s=60_000.0)
    assert [event.boot_id for event in log.read()] == [EARLIER_BOOT]


def test_what_stands_before_the_kernels_banner_is_of_an_earlier_boot(log: Log) -> None:
    log.write(XID, uptime_s=9_000.0)
    log.write("Linux version 6.1.0 (builder@host)", uptime_s=0.0)
    log.write(app(), uptime_s=9_100.0)
    assert [(event.xid, event.boot_id) for event in log.read()] == [(79, EARLIER_BOOT), (31, BOOT)]


def test_a_stepping_clock_moves_no_live_event(log: Log) -> None:
    log.read()
    log.clock.step_wall(-3600)
    log.write(XID, uptime_s=50_000.0)
    (event,) = log.read()
    assert event.at_unix_ns == log.clock.unix_ns()
    assert event.boot_id == BOOT


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("2026-09-14T20:30:27-0400", 1_789_432_227),
        ("2026-09-14T20:30:27+00:00", 1_789_417_827),
        ("2025-01-21T04:41:44,283302+00:00", 1_737_434_504),
        ("2026-04-22T21:27:51.291660856Z", 1_776_893_271),
        ("1790428806.570394", 1_790_428_806),
        ("kwi 15 07:56:59", None),
        ("4月 15 07:56:59", None),
        ("Feb 30 07:56:59", None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_wall_clocks(stamp: str, expected: int | None) -> None:
    got = wall_unix_ns(stamp, 1_790_000_000 * S)
    assert (None if got is None else got // S) == expected


@pytest.mark.parametrize("form", ["%b %e %H:%M:%S", "%a %b %e %H:%M:%S %Y", "%b %d %H:%M:%S.123456"])
def test_english_dates_have_the_latest_year_that_is_not_to_come(form: str) -> None:
    now_ns = 1_790_000_000 * S
    for age_days in (0, 1, 200, 364):
        when = datetime.fromtimestamp(now_ns // S - age_days * 86_400)
        assert wall_unix_ns(when.strftime(form), now_ns) == int(when.timestamp()) * S


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M:%S", "%b %e %H:%M:%S", "%a %b %e %H:%M:%S %Y"])
def test_a_stamp_of_the_hour_that_comes_twice_is_the_latest_that_is_not_to_come(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New York, 1 November 2026: 01:00 to 02:00 at UTC-4, then again at UTC-5."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        first_s, second_s = 1_793_511_000, 1_793_514_600  # 01:30, and 01:30 again
        stamp = datetime.fromtimestamp(first_s).strftime(form)
        assert datetime.fromtimestamp(second_s).strftime(form) == stamp
        for passed_s, expected_s in ((0, first_s), (3_599, first_s), (3_600, second_s), (9_000, second_s)):
            assert wall_unix_ns(stamp, (first_s + passed_s) * S) == expected_s * S
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_clock_that_was_set_back_over_new_year_makes_no_stamp_a_year_old() -> None:
    now = datetime(2026, 12, 31, 23, 30)
    ahead = now + timedelta(seconds=3500)
    now_ns = int(now.timestamp()) * S
    assert wall_unix_ns(f"{ahead:%b %e %H:%M:%S}", now_ns) == now_ns + 3500 * S
    leap = datetime(2028, 2, 29, 12)
    for later in (leap, datetime(2028, 12, 31, 23, 59), datetime(2029, 1, 1), datetime(2029, 2, 28, 23, 59)):
        assert wall_unix_ns("Feb 29 12:00:00", int(later.timestamp()) * S) == int(leap.timestamp()) * S
    assert wall_unix_ns("Feb 29 12:00:00", int(datetime(2027, 3, 1).timestamp()) * S) is None


# following


def test_rotation_by_rename(log: Log) -> None:
    log.read()
    log.write(app(1))
    assert len(log.read()) == 1
    log.write(app(2))
    log.path.rename(log.path.with_suffix(".1"))
    assert [event.pid for event in log.read()] == [2], "written after our last look"
    log.path.touch()
    log.write(app(3))
    assert [event.pid for event in log.read()] == [3]


def test_rotation_between_two_readings_loses_nothing(log: Log) -> None:
    log.read()
    log.write(app(1))
    with log.path.open("a") as file:
        file.write(app(2))  # its end was never written
    log.path.rename(log.path.with_suffix(".1"))
    log.path.touch()
    log.write(app(3))
    assert [event.pid for event in log.read()] == [1, 2, 3]


def test_truncation_in_place(log: Log) -> None:
    log.write("x" * 1000)
    log.read()
    os.truncate(log.path, 0)
    log.write(app(3))
    assert [event.pid for event in log.read()] == [3]


def test_half_a_line_waits_for_its_rest(log: Log) -> None:
    log.read()
    with log.path.open("a") as file:
        file.write(app()[:40])
        file.flush()
        assert log.read() == ()
        file.write(app()[40:] + "\n")
    assert xids(log.read()) == [31]


def test_a_log_that_is_not_there_yet(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.path.unlink()
    reading = log.reader.read()
    assert reading.facts == KernelLogFacts(readable=False)
    assert str(log.path) in reading.gaps["events"]
    assert not reading.urgent
    log.write(XID, uptime_s=49_999.0)
    assert xids(log.read()) == [79]
    log.reader.close()


def test_a_log_that_breaks_off_is_a_failure_and_is_opened_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write(XID, uptime_s=49_999.0)
    with monkeypatch.context() as patch:

        def broken(*_: object) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(os, "pread", broken)
        with pytest.raises(ProbeError, match="broke off"):
            log.reader.read()
    assert xids(log.read()) == [79]


def test_garbage_in_the_log(log: Log) -> None:
    log.read()
    with log.path.open("ab") as file:
        file.write(bytes(range(256)) * 300 + b"\n" + b"\xff" * 200_000 + b"\nNVRM: \xff\n" + XID.encode() + b"\n")
    assert xids(log.read()) == [79]


# the cursor


def test_the_cursor_spares_what_was_read_and_keeps_the_last_minute(tmp_path: Path) -> None:
    log = Log(tmp_path, cursor=True)
    log.read()
    log.write(app(1), uptime_s=50_000.0)
    first = log.read()
    log.clock.pass_s(61)
    log.write(app(2), uptime_s=50_061.0)
    second = log.read()
    log.restart()
    again = log.read()
    assert [event.id for event in again] == [event.id for event in second], "it may not have been sent yet"
    assert first[0].id not in {event.id for event in again}
    log.reader.close()


def test_a_cursor_of_another_file_or_a_spoiled_one_is_not_used(tmp_path: Path) -> None:
    log = Log(tmp_path, cursor=True)
    assert log.settings.cursor is not None
    log.settings.cursor.parent.mkdir()
    log.write(XID, uptime_s=49_999.0)
    for text in ('{"source": "file", "position": "1:99"}', "[]", "{", "", '{"source": "file", "position": "x"}'):
        log.settings.cursor.write_text(text)
        log.restart()
        assert xids(log.read()) == [79]
    log.reader.close()


@pytest.mark.parametrize(("boot_id", "after"), [(BOOT, "500"), ("another", ""), ("", "")])
def test_a_place_in_the_ring_is_of_its_boot(tmp_path: Path, boot_id: str, after: str) -> None:
    cursor = tmp_path / "kernel_log.json"
    cursor.write_text(json.dumps({"source": "kmsg", "boot_id": boot_id and BOOT, "position": "500"}))
    settings = kernel_log.Settings(source="kmsg", cursor=cursor)
    assert kernel_log.open_reader(settings, FakeClock(), boot_id)._after("kmsg") == after


def test_a_cursor_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path, cursor=True)
    (tmp_path / "cursor").write_text("a file where a folder should be")
    log.read()
    for pid in (1, 2):
        log.write(app(pid))
        assert len(log.read()) == 1
        log.clock.pass_s(120)
    log.reader.close()


# the ring


class FakeRing:
    """/dev/kmsg: one record a read; EAGAIN when empty; EPIPE once after an overrun."""

    def __init__(self) -> None:
        self.queue: list[bytes | int] = []

    def read(self, _file: int, _size: int) -> bytes:
        if not self.queue:
            raise BlockingIOError(errno.EAGAIN, "")
        item = self.queue.pop(0)
        if isinstance(item, int):
            raise OSError(item, os.strerror(item))
        return item

    def say(self, sequence: int, text: str, *, uptime_s: float = 49_000.0, priority: int = 3) -> None:
        self.queue.append(f"{priority},{sequence},{int(uptime_s * 1e6)},-;{text}\n SUBSYSTEM=pci\n".encode())


@pytest.fixture
def ring() -> FakeRing:
    return FakeRing()


def open_ring(ring: FakeRing, clock: FakeClock, after: str = "") -> KernelRing:
    return KernelRing(Path("/dev/null"), boot_id=BOOT, after=after, clock=clock, read=ring.read)


def test_the_ring_is_read_from_the_beginning_of_this_boot(ring: FakeRing) -> None:
    clock = FakeClock()
    source = open_ring(ring, clock)
    ring.say(0, "Linux version 6.1", uptime_s=0)
    ring.say(1, "usb 1-1: new device")
    ring.say(2, XID, uptime_s=40_000)
    lines = source.read()
    (line,) = [line for line in lines if line.record.message.startswith("NVRM")]
    assert (line.key, line.at_unix_ns) == ("2", clock.unix_ns() - 10_000 * S)
    assert source.take_lost() == 0
    assert source.read() == []
    source.close()


def test_only_the_kernels_own_records_count(ring: FakeRing) -> None:
    source = open_ring(ring, FakeClock())
    for sequence, priority in enumerate((3, 11, 12, 30, 4)):
        ring.say(sequence, XID, priority=priority)
    assert [line.key for line in source.read()] == ["0", "4"]
    assert source.take_lost() == 0, "another facility's record is not lost"
    source.close()


def test_what_the_ring_dropped_is_counted(ring: FakeRing) -> None:
    source = open_ring(ring, FakeClock())
    ring.say(100, XID)  # what was before is not ours to miss
    ring.queue.append(errno.EPIPE)
    ring.say(400, XID)
    assert len(source.read()) == 2
    assert source.take_lost() == 299
    assert source.take_lost() == 0
    source.close()


def test_a_cursor_goes_on_where_it_was_and_counts_what_is_gone(ring: FakeRing) -> None:
    source = open_ring(ring, FakeClock(), after="150")
    for sequence in (149, 150, 160):
        ring.say(sequence, XID)
    assert [line.key for line in source.read()] == ["160"]
    assert source.take_lost() == 9
    assert source.position() == "160"
    source.close()


def test_a_live_record_is_dated_by_when_it_came(ring: FakeRing) -> None:
    """The kernel's clock drifts from the wall clock by seconds in weeks; the wall clock may be set meanwhile."""
    clock = FakeClock()
    source = open_ring(ring, clock)
    source.read()
    before = clock.unix_ns()
    clock.pass_s(5)
    ring.say(1, XID, uptime_s=49_000)  # by its stamp a quarter of an hour ago
    ring.say(2, XID, uptime_s=60_000)  # by its stamp to come
    first, second = source.read()
    assert first.at_unix_ns == before
    assert second.at_unix_ns == clock.unix_ns()
    source.close()


def test_broken_records_are_passed_over(ring: FakeRing) -> None:
    source = open_ring(ring, FakeClock())
    ring.queue += [b"", b"garbage", b",,,", b"3,x,1,-;NVRM: x", errno.EINVAL, errno.EINTR, b"\xff" * 100]
    ring.queue.pop(0)
    ring.say(1, XID)
    assert [line.key for line in source.read()] == ["1"]
    source.close()


def test_the_ring_can_break(ring: FakeRing) -> None:
    source = open_ring(ring, FakeClock())
    ring.queue.append(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        source.read()
    source.close()


@pytest.mark.needs("root", "kmsg")
def test_the_real_ring_wakes_us_and_a_user_cannot_fake_a_fault() -> None:
    reader = kernel_log.open_reader(kernel_log.Settings(source="kmsg"), SystemClock(), BOOT)
    reading = reader.read()
    assert (reading.facts.readable, reading.facts.source) == (True, "kmsg")
    assert reader.fileno() >= 0
    mark = f"gpuwatch test {time.monotonic_ns()}"
    Path("/dev/kmsg").write_text(f"<3>NVRM: Xid (PCI:0000:05:00): 79, {mark}\n")
    assert select.select([reader], [], [], 5.0)[0], "readable as soon as something is said"
    assert not any(mark in event.text for event in reader.read().facts.events)
    reader.close()


# the journal, through a program that prints what journalctl prints

JOURNALCTL = """\
#!{python}
import json, sys, time
folder = {folder!r}
with open(folder + "/calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
earlier = "-1" in sys.argv
try:
    print(open(folder + ("/earlier" if earlier else "/now")).read(), end="", flush=True)
except FileNotFoundError:
    print("no such boot", file=sys.stderr)
    sys.exit(1)
if not earlier and "-f" in sys.argv:
    time.sleep({lives_s})
"""


@pytest.fixture
def journal(tmp_path: Path) -> Callable[..., Path]:
    def make(earlier: list[str] | None, now: list[str] | None, lives_s: float = 60.0) -> Path:
        for name, entries in (("earlier", earlier), ("now", now)):
            if entries is not None:
                (tmp_path / name).write_text("".join(entry + "\n" for entry in entries))
        command = tmp_path / "journalctl"
        command.write_text(JOURNALCTL.format(python=sys.executable, folder=str(tmp_path), lives_s=lives_s))
        command.chmod(0o755)
        return command

    return make


def entry(
    message: str, *, cursor: str = "c1", boot: str = BOOT, at_s: int = 1_789_999_000, transport: str = "kernel"
) -> str:
    return json.dumps(
        {
            "MESSAGE": message,
            "_TRANSPORT": transport,
            "SYSLOG_FACILITY": "0",
            "SYSLOG_IDENTIFIER": "kernel",
            "_BOOT_ID": boot.replace("-", ""),
            "_SOURCE_MONOTONIC_TIMESTAMP": "49000000000",
            "__REALTIME_TIMESTAMP": str(at_s * 1_000_000),
            "__CURSOR": cursor,
        }
    )


def wait_for(source: KernelJournal, count: int) -> list[tuple[str, str]]:
    got: list[tuple[str, str]] = []
    until = time.monotonic() + 20
    while len(got) < count and time.monotonic() < until:
        select.select([source], [], [], 1.0)
        got += [(line.boot_id, line.record.message) for line in source.read()]
    return got


def test_the_journal_begins_with_the_boot_before_this_one(journal: Callable[..., Path], tmp_path: Path) -> None:
    other = "99999999222233334444555555555555"
    command = journal([entry(XID, boot=other)], [entry(app(), cursor="c9"), entry(LOST, transport="syslog")])
    source = KernelJournal(str(command), boot_id=BOOT, after="", clock=FakeClock())
    assert wait_for(source, 2) == [(other, XID), (BOOT, app())]
    assert source.position() == "c9"
    source.close()
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert [("-1" in call, "-f" in call) for call in calls] == [(True, False), (False, True)]


def test_the_journal_goes_on_after_its_cursor(journal: Callable[..., Path], tmp_path: Path) -> None:
    command = journal(None, [entry(app())])
    source = KernelJournal(str(command), boot_id=BOOT, after="c7", clock=FakeClock())
    assert len(wait_for(source, 1)) == 1
    source.close()
    (call,) = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert call[call.index("--after-cursor") + 1] == "c7"
    assert "-b" not in call, "what came in an earlier boot after the cursor was not read yet"


def test_no_earlier_boot_is_no_fault(journal: Callable[..., Path]) -> None:
    source = KernelJournal(str(journal(None, [entry(app())])), boot_id=BOOT, after="", clock=FakeClock())
    assert wait_for(source, 1) == [(BOOT, app())]
    source.close()


def test_a_journal_that_ends_is_a_failure_and_is_opened_again(journal: Callable[..., Path]) -> None:
    command = journal([], [entry(app())], lives_s=0.0)
    settings = kernel_log.Settings(source="journal", path=command)
    reader = kernel_log.open_reader(settings, FakeClock(), BOOT)
    with pytest.raises(ProbeError, match="broke off"):
        for _ in range(200):
            reader.read()
            select.select([], [], [], 0.05)
    (command.parent / "journalctl").write_text(
        JOURNALCTL.format(python=sys.executable, folder=str(command.parent), lives_s=60.0)
    )
    found: tuple[KernelEvent, ...] = ()
    until = time.monotonic() + 20
    while not found and time.monotonic() < until:
        found = reader.read().facts.events
        select.select([reader], [], [], 1.0)
    assert xids(found) == [31]
    assert found[0].boot_id == BOOT
    reader.close()


def test_a_cursor_that_the_journal_does_not_know_is_let_go(tmp_path: Path) -> None:
    """Else the log would never be read again: journalctl ends each time."""
    command = tmp_path / "journalctl"
    (tmp_path / "now").write_text(entry(app()) + "\n")
    command.write_text(
        '#!/bin/sh\ncase "$*" in *--after-cursor*) echo "Failed to seek to cursor: Invalid argument" >&2; exit 1;;\n'
        f'*"-b -1"*) exit 1;; esac\ncat {tmp_path}/now\nexec sleep 60\n'
    )
    command.chmod(0o755)
    cursor = tmp_path / "kernel_log.json"
    cursor.write_text(json.dumps({"source": "journal", "boot_id": BOOT, "position": "s=spoiled"}))
    settings = kernel_log.Settings(source="journal", path=command, cursor=cursor, fabric_manager_log=None)
    reader = kernel_log.open_reader(settings, FakeClock(), BOOT)
    found, broke_off, until = list[KernelEvent](), 0, time.monotonic() + 20
    while not found and time.monotonic() < until:
        try:
            found += reader.read().facts.events
        except ProbeError:
            broke_off += 1
        select.select([], [], [], 0.05)
    reader.close()
    assert (xids(tuple(found)), broke_off) == ([31], 1)


def test_a_journal_that_is_not_installed(tmp_path: Path) -> None:
    settings = kernel_log.Settings(source="journal", path=tmp_path / "journalctl")
    reading = kernel_log.open_reader(settings, FakeClock(), BOOT).read()
    assert not reading.facts.readable
    assert "journalctl" in reading.gaps["events"]


# settings


def test_settings_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    for text in ('source = "file"', 'source = "dmesg"', "interval_s = 0.0", 'sourec = "file"'):
        file.write_text(text)
        with pytest.raises(ConfigError):
            config.load(file, kernel_log.Settings)
    file.write_text('source = "file"\npath = "/var/log/kern.log"\ncursor = "/var/lib/gpuwatch/kernel_log.json"')
    assert config.load(file, kernel_log.Settings).path == Path("/var/log/kern.log")


def test_auto_takes_the_ring_or_says_what_it_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "USUAL_FILES", (str(tmp_path / "kern.log"), str(tmp_path / "messages")))
    settings = kernel_log.Settings(path=tmp_path / "kmsg")
    reader = kernel_log.open_reader(settings, FakeClock(), BOOT)
    assert reader.fileno() == -1
    gap = reader.read().gaps["events"]
    assert all(name in gap for name in ("kmsg", "kern.log", "messages", "CAP_SYSLOG"))
    (tmp_path / "messages").write_text("")
    assert reader.read().facts.source == "file"
    reader.read()
    assert not select.select([reader], [], [], 0)[0]
    with (tmp_path / "messages").open("a") as file:
        file.write("more\n")
    assert select.select([reader], [], [], 5)[0]
    reader.close()


def test_the_boot_id_may_be_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUWATCH_BOOT_ID", "simulated")
    (tmp_path / "log").write_text("")
    reader = kernel_log.open_reader(kernel_log.Settings(source="file", path=tmp_path / "log"))
    reader.read()
    with (tmp_path / "log").open("a") as file:
        file.write(XID + "\n")
    assert reader.read().facts.events[0].boot_id == "simulated"
    reader.close()


def test_one_number_for_metrics() -> None:
    for readable, value in ((True, 1.0), (False, 0.0)):
        (sample,) = kernel_log.metrics(KernelLogFacts(readable=readable))
        assert (sample.name, sample.value) == ("gpuwatch_kernel_log_readable", value)


# the worst week


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_storm_is_read_in_lumps_and_none_of_it_is_lost(log: Log, end: str) -> None:
    log.read()
    with log.path.open("a") as file:
        file.write("\n".join([app(pid=9)] * 9_000 + [app(pid=10)]) + end)
    if not end:
        log.path.rename(log.path.with_suffix(".1"))  # rotated before all of it was read
        log.write(app(pid=11))
    counts: dict[int | None, int] = {}
    more, readings = True, 0
    while more:
        reading = log.reader.read()
        more, readings = reading.more, readings + 1
        assert len(reading.facts.events) <= 20
        for event in reading.facts.events:
            counts[event.pid] = counts.get(event.pid, 0) + event.count
    assert counts == {9: 9_000, 10: 1} | ({} if end else {11: 1})
    assert readings > 2


def test_forged_addresses_do_not_fill_the_memory(log: Log) -> None:
    log.read()
    for lump in range(5):
        log.write(*(XID.replace("0000:05", f"{lump:04x}:{bus:02x}") for bus in range(256)))
        log.write(*(XID.replace("0000:05:00", f"{lump:04x}:00:{slot:02x}") for slot in range(32)))
        while log.reader.read().more:
            pass
    assert isinstance(log.reader, kernel_log._Reader)
    assert len(log.reader._telling._losses) <= MOST_REMEMBERED + 1
    assert len(log.reader._urgent_ns) <= MOST_REMEMBERED + 1


@pytest.mark.parametrize("what", ["folder", "pipe", "device"])
def test_a_log_whose_place_something_else_takes_is_said_and_comes_back(log: Log, what: str) -> None:
    log.write(app(1))
    assert len(log.read()) == 1
    log.path.unlink()
    if what == "folder":
        log.path.mkdir()
    elif what == "pipe":
        os.mkfifo(log.path)
    else:
        log.path.symlink_to("/dev/zero")
    with pytest.raises(ProbeError, match="broke off"):
        log.reader.read()
    reading = log.reader.read()
    assert not reading.facts.readable
    assert "no plain file" in reading.gaps["events"]
    log.path.rmdir() if what == "folder" else log.path.unlink()
    log.write(app(2))
    assert [event.pid for event in log.read()] == [2]


def test_lines_of_the_last_hour_are_of_this_boot_when_the_clock_was_set_back(log: Log) -> None:
    now_s = log.clock.unix_ns() / S
    log.write(f"{datetime.fromtimestamp(now_s + 3500):%b %e %H:%M:%S} host1 kernel: {app()}")
    (event,) = log.read()
    assert (event.boot_id, event.at_unix_ns) == (BOOT, log.clock.unix_ns())


def test_null_in_the_place_of_the_ring_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "kmsg").symlink_to("/dev/null")
    reading = kernel_log.open_reader(
        kernel_log.Settings(source="kmsg", path=tmp_path / "kmsg"), FakeClock(), BOOT
    ).read()
    assert not reading.facts.readable
    assert "/dev/null" in reading.gaps["events"]


def test_a_ring_read_after_the_clock_was_set_forward_has_todays_time(ring: FakeRing) -> None:
    clock = FakeClock()
    source = open_ring(ring, clock)
    source.read()
    clock.step_wall(3600)
    clock.pass_s(5)
    ring.say(1, XID, uptime_s=clock.monotonic_ns() / S - 1)
    (line,) = source.read()
    assert abs(line.at_unix_ns - clock.unix_ns()) <= 2 * S
    source.close()


def woken(reader: kernel_log._Reader) -> bool:
    return bool(select.select([reader], [], [], 5)[0])


def test_a_file_wakes_us_over_writing_rotation_and_truncation(log: Log) -> None:
    log.read()
    assert not select.select([log.reader], [], [], 0)[0]
    log.write(app(1))
    assert woken(log.reader)
    assert len(log.read()) == 1
    for number in range(2, 5):
        log.path.rename(log.path.with_suffix(f".{number}"))
        assert woken(log.reader)
        log.read()
        log.write(app(number))
        assert woken(log.reader)
        assert [event.pid for event in log.read()] == [number]
        log.write(app(number + 100))
        assert woken(log.reader)
        assert [event.pid for event in log.read()] == [number + 100]
        assert not select.select([log.reader], [], [], 0)[0]
    log.path.write_text("")
    assert woken(log.reader)
    log.read()
    log.write(app(9))
    assert woken(log.reader)
    assert [event.pid for event in log.read()] == [9]


def test_where_no_watch_is_left_the_file_is_looked_at(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileWatch, "_add", lambda *_: -1)
    log.write(app(1))
    assert len(log.read()) == 1
    assert log.reader.fileno() == -1
    log.write(app(2))
    assert len(log.read()) == 1


def test_a_reader_leaves_no_descriptor_behind(log: Log) -> None:
    log.read()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(5):
        log.path.rename(log.path.with_suffix(f".{number}"))
        log.write(app(number))
        log.read()
        log.restart()
        log.read()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_full_ring_is_read_in_lumps(ring: FakeRing) -> None:
    source, lots = open_ring(ring, FakeClock()), Lots(FakeClock())
    for sequence in range(5000):
        ring.say(sequence, XID)
    lumps = [sum(1 for _ in lots.of(source))]
    while source.behind:
        lumps.append(sum(1 for _ in lots.of(source)))
    assert lumps == [2048, 2048, 904]
    source.close()
