"""One source's reader is read and closed by whichever thread comes: never by two at once, never closed twice."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import msgspec

from gpuwatch.agent.reading import Answer, Readings
from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector, Reading
from gpuwatch.model.facts.host import HostFacts


class Settings(msgspec.Struct, frozen=True):
    interval_s: float = 5.0


class Reader:
    """Its second reading lasts until `gate` is set."""

    def __init__(self) -> None:
        self.count = self.closed = 0
        self.begun, self.gate = threading.Event(), threading.Event()
        self.reads = self.closed_while_read = False

    def read(self) -> Reading:
        self.count, self.reads = self.count + 1, True
        if self.count == 2:
            self.begun.set()
            assert self.gate.wait(30)
        self.reads = False
        return Reading(HostFacts())

    def close(self) -> None:
        self.closed_while_read |= self.reads
        self.closed += 1


def readings_of(reader: Reader, kind: type[Readings] = Readings) -> Readings:
    leaf = Collector(facts=HostFacts, settings=Settings, open=lambda _: reader)
    return kind("test", leaf, Settings(), clock=SystemClock(), state_dir=None, owner=True)


def test_the_next_reading_may_begin_before_the_thread_of_the_last_one_has_gone_on() -> None:
    reader = Reader()
    readings, others = readings_of(reader), list[threading.Thread]()

    class Loop:
        """Asks anew as soon as it is answered, and another thread is quicker than the one that answered."""

        def put(self, _: Answer) -> None:
            if not others:
                others.append(threading.Thread(target=readings.do, daemon=True))
                others[0].start()
                assert reader.begun.wait(30)

    readings.answers = Loop()  # type: ignore[assignment]
    readings.do()
    assert not readings.end(), "it is read: whoever reads it closes it"
    assert reader.closed == 0
    reader.gate.set()
    others[0].join(30)
    assert (reader.closed, reader.closed_while_read) == (1, False)


def test_a_source_that_is_ended_before_its_reading_has_begun_is_closed_once() -> None:
    both, here = threading.Barrier(2), threading.current_thread()

    class Watched(Readings):
        """Two threads look at its reader at the same moment, if they can."""

        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name == "_reader" and threading.current_thread() is not here:
                with contextlib.suppress(threading.BrokenBarrierError):
                    both.wait(0.2)
            return found

    reader = Reader()
    readings = readings_of(reader, Watched)
    readings.do()
    assert readings.end()
    threads = [threading.Thread(target=readings.do) for _ in range(2)]  # the reading, and the closing
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (reader.count, reader.closed) == (1, 1)


def test_a_source_that_is_ended_while_it_is_read_answers_and_is_closed() -> None:
    reader = Reader()
    readings = readings_of(reader)
    readings.do()
    thread = threading.Thread(target=readings.do)
    thread.start()
    assert reader.begun.wait(30)
    assert not readings.end()
    reader.gate.set()
    thread.join(30)
    answers: list[Any] = [readings.answers.get_nowait() for _ in range(2)]
    assert [answer.latest.status for answer in answers] == ["ok", "ok"]
    assert (reader.closed, reader.closed_while_read) == (1, False)
