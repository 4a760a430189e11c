"""A source in a thread: answers, failures, events that are carried once, and a read that blocks nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.agent.inline import MAX_EVENTS_A_REPORT, Inline
from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector, Hung, Reading, Unsupported
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.moment import Moment

NS = 10**9


class Settings(msgspec.Struct, frozen=True):
    interval_s: float = 5.0
    enabled: bool = True


class Clock:
    """Moves when told."""

    def __init__(self) -> None:
        self.ns = 100 * NS

    def unix_ns(self) -> int:
        return 1_800_000_000 * NS + self.ns

    def monotonic_ns(self) -> int:
        return self.ns

    def now(self) -> Moment:
        return Moment(self.unix_ns(), self.monotonic_ns())


class Scripted:
    """A reader whose answers the test gives: a reading, an exception to raise, or an event to wait for."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.closed, self.begun = threading.Event(), threading.Event()
        self.file = -1

    def fileno(self) -> int:
        return self.file

    def read(self) -> Reading:
        answer = self.answers.pop(0)
        self.begun.set()
        if isinstance(answer, threading.Event):
            answer.wait(30)
            return Reading(HostFacts(load1=9.0))
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Reading)
        return answer

    def close(self) -> None:
        self.closed.set()


class Bench:
    def __init__(self, facts: type = HostFacts) -> None:
        self.clock = Clock()
        self.reader = Scripted()
        self.answered = threading.Event()
        leaf = Collector(facts=facts, settings=Settings, open=lambda _: self.reader, deadline_s=10.0)
        self.source = Inline("test", leaf, Settings(), clock=self.clock, wake=self.answered.set)

    def read(self, *answers: Any) -> None:
        """Ask once for each answer and take it."""
        for answer in answers:
            self.reader.answers.append(answer)
            self.answered.clear()
            self.clock.ns += 6 * NS
            self.source.ask(self.clock.now())
            assert self.answered.wait(10)
            self.source.tick(self.clock.now())

    def status(self) -> tuple[str, str | None]:
        latest = self.source.latest()
        assert latest is not None
        return latest.status, latest.reason


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_answer(bench: Bench) -> None:
    assert bench.source.take() is None
    bench.read(Reading(HostFacts(load1=1.5), gaps={"cpu_ratio": "why"}, urgent=False))
    taken = bench.source.take()
    assert taken is not None
    envelope, events = taken
    assert msgspec.msgpack.decode(envelope.facts, type=HostFacts).load1 == 1.5
    assert (envelope.status, envelope.gaps, events) == ("ok", {"cpu_ratio": "why"}, False)
    assert bench.source.urgent()  # its first answer
    bench.read(Reading(HostFacts(), urgent=False))
    assert not bench.source.urgent()
    bench.read(Reading(HostFacts(), urgent=True))
    assert bench.source.urgent()


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (ProbeError("it broke off", why="no reason"), ("failed", "it broke off: no reason")),
        (ValueError("odd"), ("failed", "ValueError: odd")),
        (Unsupported("no such thing here"), ("unsupported", "no such thing here")),
    ],
)
def test_what_went_wrong_is_said_and_the_thread_lives_on(
    bench: Bench, fault: Exception, status: tuple[str, str]
) -> None:
    bench.read(fault)
    assert bench.status() == status
    taken = bench.source.take()
    assert taken is not None
    assert bytes(taken[0].facts) == b"\xc0"
    bench.read(Reading(HostFacts()))
    assert bench.status() == ("ok", None)
    assert bench.source.readings() == {status[0]: 1, "ok": 1}


def test_a_failing_source_is_asked_less_and_less(bench: Bench) -> None:
    bench.reader.answers = [ProbeError("no")] * 100
    asked: list[int] = []
    for second in range(600):
        bench.clock.ns += NS
        bench.source.ask(bench.clock.now())
        if bench.source.busy():
            asked.append(second)
            assert bench.answered.wait(10)
            bench.answered.clear()
            bench.source.tick(bench.clock.now())
    gaps = [after - before for before, after in pairwise(asked)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 60


def test_a_read_that_does_not_return_is_hung_and_nobody_waits(bench: Bench) -> None:
    stuck = threading.Event()
    bench.reader.answers = [stuck]
    bench.source.ask(bench.clock.now())
    since = bench.clock.unix_ns()
    assert bench.source.busy()
    assert bench.reader.begun.wait(10)
    bench.clock.ns += 9 * NS
    bench.source.tick(bench.clock.now())
    assert bench.source.latest() is None
    bench.clock.ns += 2 * NS
    bench.source.tick(bench.clock.now())
    latest = bench.source.latest()
    assert latest is not None
    assert (latest.status, latest.since_unix_ns) == ("hung", since)
    assert "wait channel" in (latest.reason or "")
    assert not bench.source.busy()
    assert bench.source.wake_ns() > bench.clock.ns
    bench.source.ask(bench.clock.now())  # not asked twice
    stuck.set()
    assert bench.answered.wait(10)
    bench.source.tick(bench.clock.now())
    assert bench.status() == ("ok", None)


def test_a_source_that_no_thread_could_begin_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.read(Reading(HostFacts()))  # by a thread whose number is somebody else's by now
    bench.clock.ns += 6 * NS
    monkeypatch.setattr(bench.source._crew, "send_off", lambda: None)
    bench.source.ask(bench.clock.now())
    bench.clock.ns += 10 * NS
    bench.source.tick(bench.clock.now())
    assert bench.status() == ("hung", "no answer for more than 10 s; no thread was free to begin it")


def test_a_source_is_not_hung_because_we_slept(bench: Bench) -> None:
    stuck = threading.Event()
    bench.reader.answers = [stuck]
    bench.source.ask(bench.clock.now())
    since = bench.clock.unix_ns()
    bench.clock.ns += 600 * NS  # SIGSTOP, or a frozen machine: the thread slept too
    bench.source.tick(bench.clock.now())
    assert bench.source.busy()
    assert bench.source.latest() is None
    bench.clock.ns += 10 * NS
    bench.source.tick(bench.clock.now())
    latest = bench.source.latest()
    assert latest is not None
    assert (latest.status, latest.since_unix_ns) == ("hung", since)
    stuck.set()
    assert bench.answered.wait(10)


def test_a_source_that_is_slow_twice_is_asked_seldomer_and_one_that_slept_once_is_not() -> None:
    clock, answered, takes_s = Clock(), threading.Event(), list[float]()

    class Reader:
        def read(self) -> Reading:
            clock.ns += int(takes_s.pop() * NS)
            return Reading(HostFacts())

        def close(self) -> None:
            pass

    leaf = Collector(facts=HostFacts, settings=Settings, open=lambda _: Reader())
    source = Inline("test", leaf, Settings(), clock=clock, wake=answered.set)

    for took_s, next_s in ((0.1, 4.5), (20.0, 4.5), (20.0, 72.0), (20.0, 72.0), (0.1, 4.5), (20.0, 4.5)):
        takes_s.append(took_s)
        answered.clear()
        begun_ns = clock.ns
        source.ask(clock.now())
        assert answered.wait(10)
        source.tick(clock.now())
        for due_s, is_asked in ((next_s - 0.001, next_s < took_s), (next_s, True)):
            clock.ns = max(clock.ns, begun_ns + int(due_s * NS))
            assert (clock.ns >= source._due_ns) is is_asked, (took_s, next_s)


def test_a_source_that_came_back_and_says_that_it_hangs(bench: Bench) -> None:
    bench.read(Reading(HostFacts()), Hung("mlx5_0 does not answer", since_unix_ns=7, abandoned_count=1))
    taken = bench.source.take()
    assert taken is not None
    assert (taken[0].status, taken[0].reason, taken[0].since_unix_ns) == ("hung", "mlx5_0 does not answer", 7)
    assert taken[0].abandoned_count == 1
    bench.read(Reading(HostFacts(), abandoned_count=2))
    taken = bench.source.take()
    assert taken is not None
    assert (taken[0].status, taken[0].abandoned_count) == ("ok", 2)


def test_what_outlives_the_agent_has_a_folder(tmp_path: Path) -> None:
    told: list[tuple[Path, bool]] = []

    class Keeping(Scripted):
        def keep(self, folder: Path, ours: bool) -> None:
            told.append((folder, ours))

    reader, clock, answered = Keeping(), Clock(), threading.Event()
    reader.answers = [Reading(HostFacts())] * 2
    leaf = Collector(facts=HostFacts, settings=Settings, open=lambda _: reader)
    source = Inline("test", leaf, Settings(), clock=clock, wake=answered.set, state_dir=tmp_path, owner=False)
    for _ in range(2):
        answered.clear()
        clock.ns += 6 * NS
        source.ask(clock.now())
        assert answered.wait(10)
        source.tick(clock.now())
    assert told == [(tmp_path, False)]


def event(number: int, count: int = 1) -> KernelEvent:
    return KernelEvent(id=f"b/{number}", at_unix_ns=number, kind="xid", text="", xid=79, count=count)


def log(*numbers: int, lost: int = 0, urgent: bool = False) -> Reading:
    return Reading(KernelLogFacts(True, tuple(event(number) for number in numbers), lost, "kmsg"), urgent=urgent)


def carried(bench: Bench) -> tuple[list[str], int, bool]:
    taken = bench.source.take()
    assert taken is not None
    facts = msgspec.msgpack.decode(taken[0].facts, type=KernelLogFacts)
    return [found.id for found in facts.events], facts.lost_count, taken[1]


def test_events_are_carried_once_whatever_comes_between_two_reports() -> None:
    bench = Bench(KernelLogFacts)
    bench.read(log(1, 2, lost=3), log(3), ProbeError("the log broke off"))
    assert carried(bench) == (["b/1", "b/2", "b/3"], 3, True)
    taken = bench.source.take()
    assert taken is not None
    assert taken[0].status == "failed"
    bench.read(log())
    assert carried(bench) == ([], 0, False)
    bench.read(log(lost=2))
    assert carried(bench) == ([], 2, False)
    assert carried(bench) == ([], 0, False)


def test_many_events_take_several_reports() -> None:
    bench = Bench(KernelLogFacts)
    bench.read(log(*range(MAX_EVENTS_A_REPORT + 3)))
    first, _, _ = carried(bench)
    assert bench.source.has_more()
    second, _, _ = carried(bench)
    assert (len(first), len(second), bench.source.has_more()) == (MAX_EVENTS_A_REPORT, 3, False)


def test_events_without_a_descriptor_are_looked_for() -> None:
    bench = Bench(KernelLogFacts)
    bench.read(log())
    assert bench.source.wake_ns() == bench.clock.ns + 5 * NS  # and not before: there is nothing to select on
    bench.clock.ns += NS
    assert bench.source.wake_ns() == bench.clock.ns + 4 * NS
    bench.reader.answers = [log(1)]
    bench.clock.ns += 4 * NS
    bench.answered.clear()
    bench.source.tick(bench.clock.now())
    assert bench.answered.wait(10)
    bench.source.tick(bench.clock.now())
    assert carried(bench)[0] == ["b/1"]


def test_a_descriptor_asks_by_itself_and_once_more_for_what_was_half_told() -> None:
    bench = Bench(KernelLogFacts)
    bench.reader.file = 7
    bench.read(log())
    assert bench.source.fileno() == 7  # no event asked for this reading: the first one is heard at once
    bench.clock.ns += NS
    bench.reader.answers = [log(1), log(2)]
    bench.answered.clear()
    bench.source.readable(bench.clock.now())
    assert bench.answered.wait(10)
    bench.source.tick(bench.clock.now())
    bench.answered.clear()
    bench.clock.ns += 5 * NS
    bench.source.tick(bench.clock.now())
    assert bench.answered.wait(10)
    bench.source.tick(bench.clock.now())
    assert carried(bench)[0] == ["b/1", "b/2"]
    bench.clock.ns += 60 * NS
    bench.source.tick(bench.clock.now())
    assert not bench.source.busy()


def test_every_reading_is_counted_by_whoever_counts() -> None:
    bench = Bench(KernelLogFacts)
    told: list[KernelLogFacts] = []
    bench.source.on_facts = told.append
    bench.read(log(1), log(2))
    assert [found.events[0].id for found in told] == ["b/1", "b/2"]


def test_closing_ends_the_thread_and_closes_the_reader(bench: Bench) -> None:
    bench.read(Reading(HostFacts()))
    bench.source.close()
    assert bench.reader.closed.wait(10)


def test_with_the_real_clock_an_answer_takes_no_time() -> None:
    answered = threading.Event()
    wake: Callable[[], None] = answered.set
    reader = Scripted()
    reader.answers = [Reading(HostFacts())]
    leaf = Collector(facts=HostFacts, settings=Settings, open=lambda _: reader)
    source = Inline("test", leaf, Settings(), clock=SystemClock(), wake=wake)
    begun_s = time.monotonic()
    source.ask(Moment(time.time_ns(), time.monotonic_ns()))
    assert answered.wait(10)
    assert time.monotonic() - begun_s < 1.0


def woken(bench: Bench, answer: Reading) -> float:
    """One reading that its descriptor asked for; how long it then rests, in seconds."""
    bench.reader.answers = [answer]
    bench.answered.clear()
    bench.source.readable(bench.clock.now())
    assert bench.answered.wait(10)
    bench.source.tick(bench.clock.now())
    begun_ns = bench.clock.ns
    assert bench.source.fileno() == -1
    while bench.source.fileno() == -1:
        bench.clock.ns += NS // 100
    return (bench.clock.ns - begun_ns) / NS


def test_a_chatty_log_wakes_us_twice_a_second_and_a_storm_is_read_on_at_once() -> None:
    bench = Bench(KernelLogFacts)
    bench.reader.file = 7
    rests = [woken(bench, log(number)) for number in range(30)]
    assert rests[:3] == [0.05] * 3, "a dying GPU says several lines, and the last must not wait"
    assert all(0.45 <= rest_s <= 0.55 for rest_s in rests[-10:])
    bench.clock.ns += 10 * NS
    assert woken(bench, log(31)) == 0.05, "it was quiet meanwhile"
    assert woken(bench, msgspec.structs.replace(log(2), more=True)) == 0.05
    assert bench.source.behind
    bench.reader.answers = [log(3)]
    bench.answered.clear()
    bench.source.tick(bench.clock.now())  # more was promised: it need not be selected on
    assert bench.answered.wait(10)
    bench.source.tick(bench.clock.now())
    assert not bench.source.behind


class Chosen(msgspec.Struct, frozen=True):
    interval_s: float = 5.0
    enabled: bool = True
    where: str = "here"


def test_other_settings_open_the_source_anew_another_interval_alone_does_not() -> None:
    clock, opened, answered = Clock(), list[Any](), threading.Event()

    class Reader:
        def __init__(self, settings: Chosen) -> None:
            self.where, self.closed = settings.where, False
            opened.append(self)

        def read(self) -> Reading:
            return Reading(HostFacts(kernel_release=self.where))

        def close(self) -> None:
            self.closed = True

    leaf = Collector(facts=HostFacts, settings=Chosen, open=Reader)
    source = Inline("test", leaf, Chosen(), clock=clock, wake=answered.set)

    def told() -> str:
        answered.clear()
        source.ask(clock.now())
        assert answered.wait(10)
        source.tick(clock.now())
        latest = source.latest()
        assert latest is not None
        return str(latest.facts.kernel_release)

    assert told() == "here"
    source.change(Chosen(interval_s=60.0))
    assert told() == "here"  # due at once
    source.ask(clock.now())
    assert not source.busy()  # and then by the new interval
    clock.ns += 50 * NS
    source.ask(clock.now())
    assert not source.busy()
    source.change(Chosen(interval_s=60.0, where="there"))
    assert told() == "there"
    assert [(reader.where, reader.closed) for reader in opened] == [("here", True), ("there", False)]


def test_events_that_were_not_told_yet_outlive_other_settings() -> None:
    bench = Bench(KernelLogFacts)
    bench.read(Reading(KernelLogFacts(True, (event(1),))))
    bench.source.change(Settings(interval_s=1.0))
    taken = bench.source.take()
    assert taken is not None
    assert [item.id for item in msgspec.msgpack.decode(taken[0].facts, type=KernelLogFacts).events] == ["b/1"]


def test_a_reading_may_ask_for_other_sources(bench: Bench) -> None:
    asked: list[tuple[str, ...]] = []
    bench.source.on_ask = asked.append
    bench.read(Reading(HostFacts(), ask=("nvml",)), Reading(HostFacts()))
    assert asked == [("nvml",)]


@pytest.mark.parametrize(
    "reading",
    [
        Reading(HostFacts(memory_used_bytes=1 << 64)),
        Reading(HostFacts(kernel_release="\udcff")),
        Reading(HostFacts(), gaps={"disks": "\udcff is not there"}),
        ProbeError("\udcff cannot be read"),
    ],
    ids=["65-bits", "half-a-letter", "half-a-letter-in-a-gap", "half-a-letter-in-a-reason"],
)
def test_what_cannot_be_sent_fails_its_source_and_not_the_agent(reading: Any) -> None:
    bench = Bench()
    bench.read(reading)
    envelope, _ = bench.source.take() or (None, False)
    assert envelope is not None
    assert (envelope.status, envelope.gaps) == ("failed", {})
    assert "cannot be sent" in (envelope.reason or "")
    msgspec.msgpack.encode(envelope)


def test_events_that_cannot_be_sent_fail_their_source_and_not_the_agent() -> None:
    bench = Bench(KernelLogFacts)
    event = KernelEvent(
        id="b/1", at_unix_ns=1 << 70, kind="xid", text="x", severity="warning", action="none", drain="no"
    )
    bench.read(Reading(KernelLogFacts(True, (event,))))
    envelope, _ = bench.source.take() or (None, False)
    assert envelope is not None
    assert envelope.status == "failed"
    assert not bench.source.has_more()
