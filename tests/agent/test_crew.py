"""One thread reads all that is due; what takes long keeps nobody else waiting; the loop is woken once a lot."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import pytest

from gpuwatch.agent import crew as crew_module
from gpuwatch.agent.crew import AGAIN_NS, MOST_IDLE, NEVER_NS, PATIENCE_NS, Crew


class Clock:
    def __init__(self) -> None:
        self.ns = 10**9

    def unix_ns(self) -> int:
        return self.ns

    def monotonic_ns(self) -> int:
        return self.ns


class Job:
    """Remembers who did it; waits for `gate` where it has one."""

    def __init__(self, done: list[Job], *, gate: threading.Event | None = None, pressing: bool = False) -> None:
        self.done, self.gate, self.pressing = done, gate, pressing
        self.begun = threading.Event()
        self.thread = 0

    def do(self) -> bool:
        self.thread = threading.get_ident()
        self.begun.set()
        if self.gate is not None:
            assert self.gate.wait(30)
        self.done.append(self)
        return self.pressing


class Bench:
    def __init__(self) -> None:
        self.clock = Clock()
        self.done: list[Job] = []
        self.wakings = 0
        self.crew = Crew(self.wake, self.clock)

    def wake(self) -> None:
        self.wakings += 1

    def job(self, *, gate: threading.Event | None = None, pressing: bool = False, first: bool = False) -> Job:
        job = Job(self.done, gate=gate, pressing=pressing)
        self.crew.ask(job, first=first)
        return job


def until(said: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not said():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def threads() -> int:
    return sum(thread.name.startswith("sources-") for thread in threading.enumerate())


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_is_asked_together_is_done_in_order_by_one_thread_and_told_once(bench: Bench) -> None:
    jobs = [bench.job() for _ in range(5)]
    assert bench.done == []  # nothing begins before the loop is done
    bench.crew.send_off()
    until(lambda: bench.wakings == 1)
    assert bench.done == jobs
    assert len({job.thread for job in jobs}) == 1
    again = bench.job()
    bench.crew.send_off()
    until(lambda: bench.wakings == 2)
    assert again.thread == jobs[0].thread


def test_what_must_not_wait_is_done_first(bench: Bench) -> None:
    later, log = bench.job(), bench.job(first=True)
    bench.crew.send_off()
    until(lambda: bench.wakings == 1)
    assert bench.done == [log, later]


def test_what_is_pressing_is_told_before_the_rest_is_done(bench: Bench) -> None:
    gate = threading.Event()
    bench.job(pressing=True)
    bench.job(gate=gate)
    bench.crew.send_off()
    until(lambda: bench.wakings == 1)
    assert len(bench.done) == 1
    gate.set()
    until(lambda: bench.wakings == 2)


def test_what_takes_long_keeps_nothing_waiting_that_was_asked_with_it_or_later(bench: Bench) -> None:
    gate = threading.Event()
    stuck, behind = bench.job(gate=gate), bench.job()
    bench.crew.send_off()
    assert stuck.begun.wait(30)
    assert bench.crew.wake_ns() == bench.clock.ns + PATIENCE_NS
    later = bench.job()
    bench.crew.send_off()  # at once, by another thread
    until(lambda: later in bench.done)
    bench.clock.ns += PATIENCE_NS - 1
    bench.crew.tick(bench.clock.ns)
    bench.crew.send_off()
    assert behind not in bench.done
    bench.clock.ns += 1
    bench.crew.tick(bench.clock.ns)
    bench.crew.send_off()
    until(lambda: behind in bench.done)
    assert stuck not in bench.done
    assert stuck.thread not in (behind.thread, later.thread)
    gate.set()
    until(lambda: stuck in bench.done)
    assert [bench.done.count(job) for job in (stuck, behind, later)] == [1, 1, 1]
    assert bench.crew.wake_ns() == NEVER_NS


def test_threads_that_have_nothing_to_do_any_more_end(bench: Bench) -> None:
    before, gate = threads(), threading.Event()
    for number in range(1, 7):
        bench.job(gate=gate)
        bench.crew.send_off()
        until(lambda expected=before + number: threads() == expected)  # type: ignore[misc]
    gate.set()
    until(lambda: bench.wakings == 6)
    bench.crew.tick(bench.clock.ns)
    until(lambda: threads() == before + MOST_IDLE)


def test_one_that_breaks_does_not_end_the_thread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module.log, "exception", lambda *_: None)

    class Broken(Job):
        def do(self) -> bool:
            raise RuntimeError("a reader that nobody tested")

    bench.crew.ask(Broken(bench.done))
    after = bench.job()
    bench.crew.send_off()
    until(lambda: bench.wakings == 1)
    assert bench.done == [after]


def test_a_thread_that_has_just_done_its_last_work_while_the_loop_looks(bench: Bench) -> None:
    class Lot(deque[Job]):
        def __bool__(self) -> bool:
            hand.lot = None  # as its thread does, between the loop's look and its grip
            return True

    gate = threading.Event()
    bench.job(gate=gate)
    bench.crew.send_off()
    (hand,) = bench.crew._hands
    hand.lot = Lot()  # type: ignore[assignment]
    bench.clock.ns += PATIENCE_NS
    bench.crew.tick(bench.clock.ns)
    gate.set()
    until(lambda: len(bench.done) == 1)


def test_where_no_thread_can_be_started_work_waits_for_one_that_comes_free(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit's TasksMax, a node without a free pid: just then the agent must go on."""
    gate, tries, said = threading.Event(), list[int](), list[str]()

    def refuse(_: threading.Thread) -> None:
        tries.append(1)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(crew_module.log, "warning", lambda words, *_: said.append(words))
    stuck = bench.job(gate=gate)
    bench.crew.send_off()
    assert stuck.begun.wait(30)
    waiting = [bench.job(), bench.job()]
    with monkeypatch.context() as out_of_threads:
        out_of_threads.setattr(threading.Thread, "start", refuse)
        for _ in range(5):
            bench.crew.send_off()
        assert len(tries) == 1, "one try a second"
        assert bench.crew.wake_ns() == bench.clock.ns + AGAIN_NS
        bench.clock.ns += AGAIN_NS
        bench.crew.tick(bench.clock.ns)
        bench.crew.send_off()
        assert (len(tries), len(said)) == (2, 1)
        assert bench.done == []
        gate.set()
        until(lambda: bench.wakings == 1)
        bench.crew.send_off()
        until(lambda: bench.done == [stuck, *waiting])
    until(lambda: bench.wakings == 2)
    assert bench.crew.wake_ns() == NEVER_NS


def test_a_thread_that_can_be_started_again_takes_what_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module.log, "warning", lambda *_: None)
    waiting = bench.job()
    with monkeypatch.context() as out_of_threads:
        out_of_threads.setattr(threading, "Thread", _no_thread)
        bench.crew.send_off()
    bench.clock.ns += AGAIN_NS
    bench.crew.send_off()
    until(lambda: bench.done == [waiting])


def _no_thread(**_: object) -> threading.Thread:
    raise RuntimeError("can't start new thread")
