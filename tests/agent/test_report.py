"""What goes into a report: each source's latest answer, said when it is new and again each minute."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatch.agent.answers import Latest, Source
from gpuwatch.agent.identity import Identity
from gpuwatch.agent.report import Reporter
from gpuwatch.model.wire import Envelope, Goodbye, Report, Status
from tests.fakes_hands import FakeClock

WHO = Identity(slot="gpu01", machine="m", boot_id="b", agent_id="a")


class Slow:
    """A source that keeps its answer until it is given another."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answer = Envelope(name, 1, 0.1, "ok", facts=msgspec.Raw(b"\x01"))
        self.events = False
        self.taken_count = 0

    def is_now(self, at_unix_ns: int, status: Status = "ok") -> None:
        self.answer = Envelope(self.name, at_unix_ns, 0.1, status, facts=msgspec.Raw(b"\x01"))

    def latest(self) -> Latest:
        return Latest(collector=self.name, status=self.answer.status, at_unix_ns=self.answer.at_unix_ns)

    def has_more(self) -> bool:
        return self.events

    def take(self) -> tuple[Envelope, bool]:
        self.taken_count += 1
        return self.answer, self.events


def told(reporter: Reporter, *sources: Slow, goodbye: Goodbye | None = None) -> list[str]:
    some: list[Source] = list(sources)  # type: ignore[arg-type]
    report = msgspec.msgpack.decode(reporter.make(some, goodbye).data, type=Report)
    return [envelope.collector for envelope in report.envelopes]


def test_an_answer_is_said_once_and_again_after_a_minute() -> None:
    clock = FakeClock()
    reporter, slow, quick = Reporter(WHO, 5.0, clock), Slow("pcie"), Slow("nvml")
    said = []
    for second in range(0, 70, 5):
        quick.is_now(second + 1)
        said.append(told(reporter, slow, quick))
        clock.pass_s(5)
    assert [("pcie" in names, "nvml" in names) for names in said] == [(number in (0, 12), True) for number in range(14)]
    assert slow.taken_count == 2  # what is not said is not encoded either


@pytest.mark.parametrize(("status", "again"), [("hung", True), ("failed", True), ("ok", False), ("unsupported", False)])
def test_what_is_wrong_is_told_until_it_is_right(status: Status, again: bool) -> None:
    clock = FakeClock()
    reporter, slow = Reporter(WHO, 5.0, clock), Slow("host")
    slow.is_now(5, status)
    assert told(reporter, slow) == ["host"]
    clock.pass_s(5)
    assert told(reporter, slow) == (["host"] if again else [])
    slow.is_now(5, "ok" if status != "ok" else "failed")
    assert told(reporter, slow) == ["host"]


def test_events_and_a_goodbye_are_never_held_back() -> None:
    clock = FakeClock()
    reporter, log = Reporter(WHO, 5.0, clock), Slow("kernel_log")
    told(reporter, log)
    assert told(reporter, log) == []
    log.events = True
    assert told(reporter, log) == ["kernel_log"]
    log.events = False
    assert told(reporter, log) == []
    assert told(reporter, log, goodbye=Goodbye("stop")) == ["kernel_log"]


def test_what_had_no_room_is_told_with_the_next_report() -> None:
    clock = FakeClock()
    reporter, slow, log = Reporter(WHO, 5.0, clock), Slow("host"), Slow("kernel_log")
    log.events = True
    log.answer = Envelope("kernel_log", 1, 0.1, "ok", facts=msgspec.Raw(msgspec.msgpack.encode(b"x" * 900_000)))
    slow.answer = Envelope("host", 1, 0.1, "ok", facts=msgspec.Raw(msgspec.msgpack.encode(b"x" * 400_000)))
    first = msgspec.msgpack.decode(reporter.make([slow, log]).data, type=Report)  # type: ignore[list-item]
    assert [(envelope.collector, envelope.status) for envelope in first.envelopes] == [
        ("host", "failed"),
        ("kernel_log", "ok"),
    ]
    clock.pass_s(5)
    log.events = False
    log.is_now(2)
    second = msgspec.msgpack.decode(reporter.make([slow, log]).data, type=Report)  # type: ignore[list-item]
    assert [(envelope.collector, envelope.status) for envelope in second.envelopes] == [
        ("host", "ok"),
        ("kernel_log", "ok"),
    ]
