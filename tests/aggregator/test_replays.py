"""Reports that come again: acknowledged again, and counted once, however long ago they came first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.aggregator.heard import absorb, is_late
from gpuwatch.model.moment import Moment
from gpuwatch.model.wire import Ack, Report
from tests.fakes_centre import Centre

ACK = msgspec.json.Decoder(Ack)


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, nodes=2)
    yield made
    assert made.store is not None
    made.store.close()


@pytest.mark.parametrize("later", [0, 1, 31, 32, 33, 100])
def test_a_report_that_comes_again_after_so_many_others_is_counted_once(later: int, centre: Centre) -> None:
    agent = next(iter(centre.agents.values()))
    first = agent.report()
    assert not ACK.decode(centre.send(first)).repeated
    for _ in range(later):
        centre.clock.pass_s(5.0)
        assert not ACK.decode(centre.send(agent.report())).repeated
    assert ACK.decode(centre.send(first)).repeated
    assert centre.ingest.counts == {"accepted": later + 1, "repeated": 1, "late": 0}


def test_what_an_earlier_agent_left_in_its_spool_is_no_repetition(centre: Centre) -> None:
    agent = next(iter(centre.agents.values()))
    old = [agent.report() for _ in range(3)]
    assert not ACK.decode(centre.send(old[0])).repeated
    agent.agent_id, agent.sequence = "agent-2", 0
    for report in (old[1], old[2], agent.report()):
        centre.clock.pass_s(5.0)
        assert not ACK.decode(centre.send(report)).repeated


@pytest.mark.parametrize("interval_s", [0.2, 1.0, 5.0, 60.0])
@pytest.mark.parametrize("early", [False, True], ids=["regular", "with-an-early-report-for-an-event"])
def test_a_spool_is_late_to_its_end_however_often_the_agent_reports(interval_s: float, early: bool) -> None:
    """Facts of the past must not be judged as of now while a spool is delivered, 10 ms a report."""
    unix_ns, monotonic_ns, step_ns = 1_700_000_000 * 10**9, 10**12, int(interval_s * 1e9)

    def report(number: int, sent_ns: int) -> Report:
        return Report(2, "gpu01", "m1", "b", "a", number, unix_ns + sent_ns, (), interval_s=interval_s)

    heard = absorb(None, report(1, 0), Moment(unix_ns, monotonic_ns))
    away_ns = 200 * step_ns + 60 * 10**9
    sent = list(range(step_ns, away_ns - 20 * 10**9, step_ns))
    if early:
        sent = sorted([*sent, *(at + step_ns // 10 for at in sent[::7])])
    for number, sent_ns in enumerate(sent, 2):
        passed_ns = away_ns + number * 10**7
        received = Moment(unix_ns + passed_ns, monotonic_ns + passed_ns)
        if passed_ns - sent_ns > max(15, 3 * interval_s) * 10**9:
            assert is_late(heard, report(number, sent_ns), received), (number, sent_ns / 1e9)
        heard = absorb(heard, report(number, sent_ns), received)


def test_a_spool_behind_a_report_that_came_twice_is_late_too() -> None:
    """The kernel delivered the last one although its answer was lost; the agent sends it again, then its spool."""
    unix_ns, monotonic_ns, second = 1_700_000_000 * 10**9, 10**12, 10**9

    def at(seconds: float) -> Moment:
        return Moment(unix_ns + int(seconds * second), monotonic_ns + int(seconds * second))

    def report(number: int) -> Report:
        return Report(2, "gpu01", "m1", "b", "a", number, unix_ns + number * second, (), interval_s=1.0)

    heard = absorb(None, report(0), at(0))
    for number in range(1, 10):
        heard = absorb(heard, report(number), at(number))
    heard = absorb(heard, report(10), at(36.0))
    heard = absorb(heard, report(10), at(37.0))
    for number in range(11, 22):
        received = at(37.0 + 0.02 * (number - 10))
        assert is_late(heard, report(number), received), number
        heard = absorb(heard, report(number), received)
