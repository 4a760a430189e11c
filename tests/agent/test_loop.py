"""When a report is made: first, on the interval, with a probe's frame, at once; and what the service manager hears."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from gpuwatch.agent import crew
from gpuwatch.agent.answers import Latest
from gpuwatch.agent.identity import Identity
from gpuwatch.agent.inline import Inline
from gpuwatch.agent.loop import Loop
from gpuwatch.agent.report import Reporter
from gpuwatch.agent.sender import Parcel
from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector, Reading
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.wire import MAX_REPORT_BYTES, NO_FACTS, Envelope, Report
from gpuwatch.notify import ServiceManager

NS = 10**9
WHO = Identity(slot="gpu-001", machine="m-1", boot_id="b", agent_id="a")


class Clock:
    def __init__(self) -> None:
        self.ns = 50 * NS

    def unix_ns(self) -> int:
        return 1_800_000_000 * NS + self.ns

    def monotonic_ns(self) -> int:
        return self.ns

    def now(self) -> Moment:
        return Moment(self.unix_ns(), self.ns)


class FakeSource:
    """A source that the test moves."""

    own_clock = True

    def __init__(self, name: str, *, answered: bool = True) -> None:
        self.name = name
        self.is_answered = answered
        self.is_busy = self.is_urgent = False
        self.fresh_at_ns: int | None = None
        self.every_ns = 5 * NS
        self.more = 0
        self.due_ns: int | None = None
        self.asked = 0
        self.closed = False

    def tick(self, now: Moment) -> None:
        pass

    def fileno(self) -> int:
        return -1

    def readable(self, now: Moment) -> None:
        pass

    def ask(self, now: Moment) -> None:
        self.asked += 1

    def busy(self) -> bool:
        return self.is_busy

    def fresh_ns(self) -> int | None:
        return self.fresh_at_ns

    def expected_ns(self, after_ns: int) -> int | None:
        if self.due_ns is None:
            return None
        return self.due_ns + max(0, -(-(after_ns - self.due_ns) // self.every_ns)) * self.every_ns

    def wake_ns(self) -> int:
        return 1 << 62

    def latest(self) -> Latest | None:
        return Latest(collector=self.name, status="ok", at_unix_ns=1) if self.is_answered else None

    def take(self) -> tuple[Envelope, bool] | None:
        self.fresh_at_ns = None
        self.more = max(0, self.more - 1)
        return (Envelope(self.name, 1, 0.0, "ok", facts=NO_FACTS), False) if self.is_answered else None

    def has_more(self) -> bool:
        return self.more > 0

    def urgent(self) -> bool:
        was, self.is_urgent = self.is_urgent, False
        return was

    def readings(self) -> dict[str, int]:
        return {}

    def change(self, settings: object) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Bench:
    def __init__(self, *sources: FakeSource, watchdog_us: str = "", address: str = "") -> None:
        self.clock = Clock()
        self.begun_ns = self.clock.ns
        self.sent: list[tuple[float, Parcel]] = []
        self.sources = list[FakeSource](sources)
        self.loop = Loop(
            self.sources,
            Reporter(WHO, 5.0, self.clock),
            lambda parcel: self.sent.append((self.at_s(), parcel)),
            interval_s=5.0,
            clock=self.clock,
            manager=ServiceManager(address, watchdog_us),
            status=lambda: "fine",
            chance=random.Random(1),
        )

    def at_s(self) -> float:
        return (self.clock.ns - self.begun_ns) / NS

    def to(self, seconds: float) -> list[float]:
        """Turn whenever the loop would, and tell when reports were made."""
        before = len(self.sent)
        while True:
            self.loop.turn(self.clock.now())
            wait_ns = max(int(self.loop.wait_s(self.clock.now()) * NS), NS // 1000)
            if self.at_s() + wait_ns / NS > seconds:
                break
            self.clock.ns += wait_ns
        self.clock.ns = self.begun_ns + int(seconds * NS)
        self.loop.turn(self.clock.now())
        return [at for at, _ in self.sent[before:]]


def test_the_first_report_goes_as_soon_as_all_have_answered() -> None:
    source = FakeSource("host", answered=False)
    bench = Bench(source)
    assert bench.to(0.5) == []
    assert source.asked == 1
    source.is_answered = True
    assert bench.to(0.6) == [0.5]


def test_the_first_report_does_not_wait_for_one_that_is_slow() -> None:
    bench = Bench(FakeSource("host"), FakeSource("nvml", answered=False))
    assert bench.to(1.4) == []
    assert len(bench.to(1.6)) == 1
    report = msgspec.msgpack.decode(bench.sent[0][1].data, type=Report)
    assert [envelope.collector for envelope in report.envelopes] == ["host"]


def test_reports_keep_the_interval_and_a_fleet_does_not_march() -> None:
    bench = Bench(FakeSource("host"))
    times = bench.to(60.0)
    assert len(times) in (12, 13, 14)
    assert times[0] == 0
    assert 1.5 <= times[1] - times[0] <= 5.0
    gaps = [after - before for before, after in pairwise(times[1:])]
    assert all(4.8 <= gap <= 5.2 for gap in gaps)
    assert len({round(gap, 4) for gap in gaps}) > 3


def test_a_frame_near_the_end_of_the_interval_makes_the_report() -> None:
    probe = FakeSource("nvml")
    bench = Bench(probe)
    bench.to(6.0)
    last_s = bench.sent[-1][0]
    probe.due_ns = bench.begun_ns + int((last_s + 5.2) * NS)
    assert bench.to(last_s + 5.15) == []  # it waits for the frame that is due a little late
    probe.fresh_at_ns, probe.due_ns = bench.clock.ns, None
    assert len(bench.to(last_s + 5.16)) == 1
    last_s = bench.sent[-1][0]
    assert bench.to(last_s + 3.6) == []
    probe.fresh_at_ns = bench.clock.ns
    assert bench.to(last_s + 3.9) == []  # it came too early in the interval
    probe.fresh_at_ns = bench.clock.ns
    assert len(bench.to(last_s + 3.9)) == 1


class ProbeSource(FakeSource):
    """A source that reads on its own clock, each `every_s` from `first_s` on."""

    def __init__(self, bench_clock: Clock, first_s: float, every_s: float) -> None:
        super().__init__("nvml")
        self.clock = bench_clock
        self.due_ns, self.every_ns = bench_clock.ns + int(first_s * NS), int(every_s * NS)

    def tick(self, now: Moment) -> None:
        while self.due_ns is not None and self.due_ns <= now.monotonic_ns:
            self.fresh_at_ns, self.due_ns = self.due_ns, self.due_ns + self.every_ns

    def wake_ns(self) -> int:
        return self.due_ns or 1 << 62  # as if its pipe were selected on


@pytest.mark.parametrize("first_s", [0.05, 0.4, 1.2, 1.6, 2.9, 3.7, 4.4, 4.99])
def test_wherever_a_probe_reads_its_frames_make_the_reports(first_s: float) -> None:
    """From the second or third report on: else each report told what the GPUs were almost an interval ago, and every
    frame woke the loop for nothing."""
    bench = Bench(FakeSource("host"))
    probe = ProbeSource(bench.clock, first_s, 5.0)
    bench.sources.append(probe)
    times = bench.to(60.0)
    gaps = [after - before for before, after in pairwise(times)]
    assert all(1.5 <= gap <= 7.5 for gap in gaps[:2])
    assert all(gap == pytest.approx(5.0, abs=0.01) for gap in gaps[2:])
    assert (times[-1] - first_s) % 5.0 == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(
    ("every_s", "least_s", "most_s"), [(0.1, 3.6, 4.0), (1.0, 3.6, 4.1), (3.0, 3.6, 5.1), (15.0, 3.6, 5.2)]
)
def test_a_probe_with_an_interval_of_its_own_does_not_change_how_often_we_report(
    every_s: float, least_s: float, most_s: float
) -> None:
    bench = Bench(FakeSource("host"))
    bench.sources.append(ProbeSource(bench.clock, 0.7, every_s))
    times = bench.to(90.0)
    assert all(least_s <= after - before <= most_s for before, after in pairwise(times[2:])), times


def test_a_probe_that_reads_at_another_time_than_before_is_joined_again() -> None:
    bench = Bench(FakeSource("host"))
    probe = ProbeSource(bench.clock, 1.0, 5.0)
    bench.sources.append(probe)
    bench.to(30.0)
    assert probe.due_ns is not None
    probe.due_ns += 2 * NS  # it was started anew
    gaps = [after - before for before, after in pairwise(bench.to(70.0))]
    assert all(1.5 <= gap <= 7.5 for gap in gaps[:2])
    assert all(gap == pytest.approx(5.0, abs=0.01) for gap in gaps[2:])


def test_a_frame_that_does_not_come_is_waited_for_only_a_little() -> None:
    probe = FakeSource("nvml")
    bench = Bench(probe)
    bench.to(6.0)
    last_s = bench.sent[-1][0]
    probe.due_ns = bench.begun_ns + int((last_s + 5.0) * NS)
    times = bench.to(last_s + 5.7)
    assert len(times) == 1
    assert 5.4 <= times[0] - last_s <= 5.7


def test_a_report_waits_a_moment_for_the_sources_that_it_asked() -> None:
    source = FakeSource("host")
    bench = Bench(source)
    bench.to(0.1)
    source.is_busy = True
    times = bench.to(5.6)
    assert times  # it did not wait for ever
    assert source.asked >= 2


def test_something_urgent_goes_at_once_but_a_storm_is_tamed() -> None:
    source = FakeSource("kernel_log")
    bench = Bench(source)
    bench.to(1.0)
    source.is_urgent = True
    assert len(bench.to(1.01)) == 1
    source.is_urgent = True
    assert len(bench.to(1.02)) == 1  # what came just before it does not hold it up
    times: list[float] = []
    for step in range(500):
        source.is_urgent = True
        times += bench.to(1.03 + step / 100)
    assert 22 <= len(times) <= 27  # in five seconds


def test_events_that_do_not_fit_go_in_the_next_report_at_once() -> None:
    source = FakeSource("kernel_log")
    bench = Bench(source)
    source.more = 3
    assert len(bench.to(0.0)) == 3


def test_sequence_numbers_and_identity() -> None:
    bench = Bench(FakeSource("host"))
    bench.to(20.0)
    reports = [msgspec.msgpack.decode(parcel.data, type=Report) for _, parcel in bench.sent]
    assert [report.sequence for report in reports] == list(range(1, len(reports) + 1))
    assert {(report.slot, report.machine, report.boot_id, report.agent_id) for report in reports} == {
        ("gpu-001", "m-1", "b", "a")
    }
    assert {report.interval_s for report in reports} == {5.0}


def test_a_round_of_many_sources_is_two_wakings(monkeypatch: pytest.MonkeyPatch) -> None:
    """One when they are asked and one when they have answered, however many they are."""
    monkeypatch.setattr(crew, "PATIENCE_NS", 60 * NS)
    sources, sent, clock = list[Inline](), list[Parcel](), Clock()

    class Reader:
        def read(self) -> Reading:
            return Reading(HostFacts(load1=1.0))

        def close(self) -> None:
            pass

    class Settings(msgspec.Struct, frozen=True):
        interval_s: float = 5.0

    loop = Loop(
        sources,
        Reporter(WHO, 5.0, clock),
        sent.append,
        interval_s=5.0,
        clock=clock,
        manager=ServiceManager("", ""),
        status=lambda: "",
    )
    leaf = Collector(facts=HostFacts, settings=Settings, open=lambda _: Reader())
    sources += [
        Inline(f"source-{number}", leaf, Settings(), clock=clock, wake=loop.wake, crew=loop.crew) for number in range(9)
    ]
    for number in range(1, 4):
        loop.turn(loop._now())
        assert len(sent) == number - 1  # they are being asked
        loop._wait()
        loop.turn(loop._now())
        assert len(sent) == number
        clock.ns += 6 * NS
    assert [source.readings() for source in sources] == [{"ok": 3}] * 9


def heard(sock: socket.socket) -> list[str]:
    found: list[str] = []
    sock.setblocking(False)
    while True:
        try:
            found.append(sock.recv(4096).decode())
        except BlockingIOError:
            return found


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_service_manager_hears_ready_watchdog_and_stopping(tmp_path: Path, kind: str) -> None:
    address = str(tmp_path / "notify") if kind == "path" else f"@gpuwatch-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address if kind == "path" else "\0" + address[1:])
        bench = Bench(FakeSource("host"), watchdog_us="30000000", address=address)
        bench.to(60.0)
        ServiceManager(address, "").stopping("stopped by SIGTERM")
        said = heard(sock)
    assert said[0] == f"READY=1\nSTATUS=fine\nMAINPID={os.getpid()}"
    assert said[-1] == "STOPPING=1\nSTATUS=stopped by SIGTERM"
    assert 6 <= said.count("WATCHDOG=1\nSTATUS=fine") <= 9


def test_without_a_service_manager_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    manager = ServiceManager()
    assert manager.watchdog_s is None
    manager.ready("x")
    ServiceManager("/nowhere/at/all", "").ready("x")


def test_a_watchdog_never_waits_for_a_source_that_sleeps() -> None:
    bench = Bench(FakeSource("host"), watchdog_us="3000000")
    bench.to(1.0)
    assert bench.loop.wait_s(bench.clock.now()) <= 1.0


def test_a_signal_ends_the_loop_with_its_reason() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    loop = Loop(
        [FakeSource("host")],
        Reporter(WHO, 5.0, SystemClock()),
        lambda parcel: None,
        interval_s=60.0,
        clock=SystemClock(),
        manager=ServiceManager("", ""),
        status=lambda: "",
    )
    try:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        assert loop.run().reason == "stopped by SIGTERM"
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def test_a_hang_up_reads_the_settings_again_and_ends_nothing(tmp_path: Path) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    address, reloads = str(tmp_path / "notify"), []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)

        def reload() -> None:
            reloads.append(1)
            loop.change(30.0)
            loop.stop("seen")

        loop = Loop(
            [FakeSource("host")],
            Reporter(WHO, 5.0, SystemClock()),
            lambda parcel: None,
            interval_s=60.0,
            clock=SystemClock(),
            manager=ServiceManager(address, ""),
            status=lambda: "fine",
            reload=reload,
        )
        try:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGHUP)).start()
            assert loop.run().reason == "seen"
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
        said = [words.split("\n")[0] for words in heard(sock)]
    assert reloads == [1]
    assert said == ["READY=1", "RELOADING=1", "READY=1"]


@pytest.mark.parametrize("status", ["x" * 1_000_000, "a name \udcff that is no text", "two\nlines"])
def test_no_status_keeps_the_watchdogs_word_back(tmp_path: Path, status: str) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        ServiceManager(address, "").alive(status)
        (said,) = heard(sock)
    assert said.startswith("WATCHDOG=1\nSTATUS=")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("host", "training", "events", "left"),
    [
        (10, 600_000, 500_000, ["ok", "failed", "ok"]),  # events are told once: gauges stay at home first
        (600_000, 700_000, 300_000, ["ok", "failed", "ok"]),
        (10, 10, 1_100_000, ["ok", "ok", "failed"]),
        (10, 700_000, 1_100_000, ["ok", "ok", "failed"]),  # no gauge would help
    ],
)
def test_a_report_that_would_be_too_large_keeps_its_events_longest(
    host: int, training: int, events: int, left: list[str]
) -> None:
    class Large(FakeSource):
        def __init__(self, name: str, size: int) -> None:
            super().__init__(name)
            self.size = size

        def take(self) -> tuple[Envelope, bool]:
            facts = msgspec.Raw(msgspec.msgpack.encode(b"x" * self.size))
            return Envelope(self.name, 0, 0.0, "ok", facts=facts), self.name == "kernel_log"

    sources = [Large("host", host), Large("training", training), Large("kernel_log", events)]
    parcel = Reporter(WHO, 5.0, Clock()).make(sources)
    report = msgspec.msgpack.decode(parcel.data, type=Report)
    assert [envelope.status for envelope in report.envelopes] == left
    assert len(parcel.data) <= MAX_REPORT_BYTES


def test_an_event_is_told_at_once_while_every_other_source_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that comes while they are asked: none of them is before it, however many they are."""
    monkeypatch.setattr(crew, "PATIENCE_NS", 60 * NS)
    gate, sent, clock = threading.Event(), list[Parcel](), SystemClock()
    heard_out, heard_in = os.pipe()
    os.set_blocking(heard_out, False)

    class Settings(msgspec.Struct, frozen=True):
        interval_s: float = 60.0

    class Hung:
        def read(self) -> Reading:
            assert gate.wait(30)
            return Reading(HostFacts())

        def close(self) -> None:
            pass

    class Log:
        def fileno(self) -> int:
            return heard_out

        def read(self) -> Reading:
            try:
                number = os.read(heard_out, 1).decode()
            except BlockingIOError:
                return Reading(KernelLogFacts(True, (), 0, "kmsg"))
            event = KernelEvent(id=f"b/{number}", at_unix_ns=1, kind="xid", text="", xid=79)
            return Reading(KernelLogFacts(True, (event,), 0, "kmsg"), urgent=True)

        def close(self) -> None:
            pass

    sources = list[Inline]()
    loop = Loop(
        sources,
        Reporter(WHO, 60.0, clock),
        sent.append,
        interval_s=60.0,
        clock=clock,
        manager=ServiceManager("", ""),
        status=lambda: "",
    )
    hung = Collector(facts=HostFacts, settings=Settings, open=lambda _: Hung())
    log = Collector(facts=KernelLogFacts, settings=Settings, open=lambda _: Log())
    for number in range(8):
        leaf = log if number == 4 else hung
        sources.append(Inline(f"source-{number}", leaf, Settings(), clock=clock, wake=loop.wake, crew=loop.crew))

    def told() -> list[str]:
        facts = [msgspec.msgpack.decode(envelope.facts, type=KernelLogFacts) for parcel in sent
                 for envelope in msgspec.msgpack.decode(parcel.data, type=Report).envelopes
                 if envelope.collector == "source-4"]  # fmt: skip
        return [event.id for fact in facts for event in fact.events]

    def wait_for(*ids: str) -> float:
        began_s = time.monotonic()
        while told() != list(ids):
            assert time.monotonic() - began_s < 20, "it waits for one that hangs"
            loop._wait()
            loop.turn(loop._now())
        return time.monotonic() - began_s

    os.write(heard_in, b"1")
    loop.turn(loop._now())  # all are asked
    wait_for("b/1")
    os.write(heard_in, b"2")
    assert wait_for("b/1", "b/2") < 1.0
    gate.set()
    os.close(heard_in)
