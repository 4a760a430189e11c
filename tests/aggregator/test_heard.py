"""What a report changes: now, nothing but history, or only the proof that the agent speaks."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatch.aggregator.heard import Heard, Prior, absorb, is_late
from gpuwatch.model.moment import Moment
from gpuwatch.model.wire import Envelope, Goodbye, Report

UNIX = 1_700_000_000 * 10**9
MONO = 5_000 * 10**9
S = 10**9


def report(
    sequence: int, *, sent_s: float = 0.0, boot: str = "b1", agent: str = "a1", marks: str = "", bye: bool = False
) -> Report:
    envelope = Envelope("host", UNIX, 0.01, "failed", marks)
    return Report(
        2,
        "gpu01",
        "m1",
        boot,
        agent,
        sequence,
        UNIX + int(sent_s * S),
        (envelope,) if marks else (),
        Goodbye("stop") if bye else None,
    )


def at(seconds: float) -> Moment:
    return Moment(UNIX + int(seconds * S), MONO + int(seconds * S))


def marks(heard: Heard) -> str | None:
    return heard.sources["host"].envelope.reason if "host" in heard.sources else None


def test_each_source_keeps_its_last_word() -> None:
    first = absorb(None, report(1, marks="old"), at(0))
    second = absorb(first, report(2, sent_s=5), at(5))
    assert marks(second) == "old"
    assert (second.sequence, second.last, second.sources["host"].monotonic_ns) == (2, at(5), MONO)
    third = absorb(second, report(3, sent_s=10, marks="new"), at(10))
    assert marks(third) == "new"


def test_a_replayed_spool_is_late_until_the_live_report() -> None:
    heard = absorb(None, report(1, marks="before"), at(0))
    for n in range(2, 121):  # ten minutes cut off, then everything within a second
        spooled = report(n, sent_s=5 * (n - 1), marks=f"spooled-{n}")
        received = at(600 + n / 200)
        if n <= 115:
            assert is_late(heard, spooled, received)
        heard = absorb(heard, spooled, received)
        assert heard.last == received
    live = absorb(heard, report(121, sent_s=600.9, marks="live"), at(600.91))
    assert marks(live) == "live"


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_node_whose_clock_steps_is_heard_again_after_one_report(step_s: float) -> None:
    heard = absorb(None, report(1, marks="1"), at(0))
    heard = absorb(heard, report(2, sent_s=5, marks="2"), at(5))
    heard = absorb(heard, report(3, sent_s=10 + step_s, marks="3"), at(10))
    heard = absorb(heard, report(4, sent_s=15 + step_s, marks="4"), at(15))
    assert marks(heard) == "4"
    heard = absorb(heard, report(5, sent_s=20, marks="5"), at(20))  # and back
    heard = absorb(heard, report(6, sent_s=25, marks="6"), at(25))
    assert marks(heard) == "6"


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_our_own_wall_clock_does_not_matter(step_s: float) -> None:
    heard = absorb(None, report(1, marks="1"), at(0))
    stepped = Moment(UNIX + int((5 + step_s) * S), MONO + 5 * S)
    assert not is_late(heard, report(2, sent_s=5), stepped)


def test_a_node_with_a_wrong_clock_from_the_start_is_heard_with_its_second_report() -> None:
    heard = absorb(None, report(1, sent_s=-7200, marks="1"), at(0))
    assert marks(heard) is None
    heard = absorb(heard, report(2, sent_s=-7195, marks="2"), at(5))
    assert marks(heard) == "2"


def test_an_overtaken_report_changes_only_when_we_heard() -> None:
    heard = absorb(None, report(5, sent_s=0, marks="new"), at(0))
    after = absorb(heard, report(4, sent_s=-5, marks="old"), at(1))
    assert marks(after) == "new"
    assert after.last == at(1)
    assert after.sequence == 5


def test_a_reboot_forgets_facts_and_remembers_the_boot() -> None:
    heard = absorb(None, report(9, marks="old"), at(0))
    heard = absorb(heard, report(1, sent_s=60, boot="b2", agent="a2"), at(60))
    assert (heard.boot, heard.earlier_boots, heard.previous_goodbye) == ("b2", ("b1",), False)
    assert heard.boot_changed_monotonic_ns == MONO + 60 * S
    assert marks(heard) is None
    stale = absorb(heard, report(10, sent_s=3, marks="spooled before the reboot"), at(61))
    assert (stale.boot, marks(stale)) == ("b2", None)


def test_a_goodbye_stands_until_the_agent_speaks_again() -> None:
    heard = absorb(absorb(None, report(1), at(0)), report(2, sent_s=5, bye=True), at(5))
    assert heard.goodbye is not None
    assert heard.goodbye_monotonic_ns == MONO + 5 * S
    again = absorb(heard, report(2, sent_s=5, bye=True), at(6))  # its acknowledgement was lost, so it came again
    assert again.goodbye_monotonic_ns == again.last.monotonic_ns
    rebooted = absorb(again, report(1, sent_s=90, boot="b2", agent="a2"), at(90))
    assert rebooted.goodbye is None
    assert rebooted.previous_goodbye


def test_over_an_aggregator_restart_a_reboot_is_still_seen() -> None:
    prior = Prior(boot="b1", agent_id="a1", sequence=7, earlier_boots=("b0",))
    heard = absorb(prior, report(1, boot="b2", agent="a2"), at(0))
    assert (heard.earlier_boots, heard.boot_changed_monotonic_ns, heard.previous_goodbye) == (("b0", "b1"), MONO, False)
    said_goodbye = msgspec.structs.replace(prior, goodbye=Goodbye("upgrade"))
    assert absorb(said_goodbye, report(1, boot="b2", agent="a2"), at(0)).previous_goodbye


def test_over_an_aggregator_restart_the_same_agent_goes_on() -> None:
    prior = Prior(boot="b1", agent_id="a1", sequence=7)
    again = absorb(prior, report(7, marks="acknowledged before the restart"), at(0))
    assert marks(again) is None
    going_on = absorb(prior, report(8, marks="8"), at(0))
    assert (marks(going_on), going_on.boot_changed_monotonic_ns) == ("8", None)
