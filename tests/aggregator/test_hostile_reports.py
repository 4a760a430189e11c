"""Reports with a valid token from a machine that is broken, or lies: nobody else is harmed, nothing of ours stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.aggregator import plausible
from gpuwatch.aggregator.admission import Refusal, decode
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.facts.training import Beat
from gpuwatch.model.moment import Moment
from gpuwatch.model.run import Sighting
from gpuwatch.model.wire import Envelope, Goodbye, Report
from gpuwatch.runs.track import absorb, new_book
from tests.fakes_centre import Agent, Centre
from tests.fakes_hands import START_UNIX_NS, FakeClock

PACK = msgspec.msgpack.Encoder().encode
BEYOND = (-(1 << 63), -1, 1 << 62, (1 << 64) - 1)
S = 10**9


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, nodes=3)
    made.settle()
    yield made
    assert made.store is not None
    made.store.close()


def report(**changes: Any) -> Report:
    usual: dict[str, Any] = {
        "version": 2,
        "slot": "gpu01",
        "machine": "m1",
        "boot_id": "b",
        "agent_id": "a",
        "sequence": 1,
        "sent_unix_ns": START_UNIX_NS,
    }
    return Report(**(usual | changes))


def envelope(**changes: Any) -> Envelope:
    usual: dict[str, Any] = {"collector": "host", "at_unix_ns": 1, "took_s": 0.1, "status": "ok"}
    return Envelope(**(usual | changes))


HEAD = PACK(report())[1:]
BOMBS = {
    "lists-in-lists": b"\x91" * 500_000,
    "maps-in-maps": b"\x81\xa1a" * 300_000,
    "facts-without-end": b"\x9b" + PACK([2, "s", "m", "b", "a", 1, 5])[1:] + b"\x91\x97" + PACK(["nvml", 1, 0.1])[1:]
    + PACK("ok") + b"\xc0\xc0" + b"\x91" * 500_000,
    "a-field-to-come-without-end": b"\x9c" + HEAD + b"\x91" * 500_000 + b"\xc0",
    "four-billion-envelopes": b"\x9b" + PACK([2, "s", "m", "b", "a", 1, 5])[1:] + b"\xdd\xff\xff\xff\xff",
    "four-billion-anythings": b"\xdd\xff\xff\xff\xff",
    "a-string-of-four-gigabytes": b"\x9b\x02\xdb\xff\xff\xff\xff",
    "half-a-character": b"\x9b\x02\xa3\xed\xa0\x80",
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_garbage_for_good(bomb: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        decode(bomb)
    assert (refused.value.code, refused.value.reason) == (400, "garbage")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        *[pytest.param({key: name}, "printed", id=f"{key}-{name!a}")
          for key in ("slot", "machine", "boot_id") for name in ("a\nb", "\x1b[2J", "a\u202eb", "a\x00")],
        pytest.param({"envelopes": (envelope(collector="a\nb"),)}, "printed", id="collector"),
        pytest.param({"envelopes": (envelope(collector="c" * 256),)}, "256", id="collector-too-long"),
        pytest.param({"envelopes": (envelope(),) * 65}, "65 envelopes", id="envelopes"),
        pytest.param({"agent_id": "a" * 256}, "longer", id="agent-id"),
        pytest.param({"agent_version": "a" * 256}, "longer", id="agent-version"),
        pytest.param({"interval_s": 3601.0}, "interval", id="interval"),
        *[pytest.param({"sequence": n}, "range", id=f"sequence-{n}") for n in BEYOND],
        *[pytest.param({"sent_unix_ns": n}, "range", id=f"sent-{n}") for n in BEYOND],
        *[pytest.param({"envelopes": (envelope(at_unix_ns=n),)}, "range", id=f"at-{n}") for n in BEYOND],
        *[pytest.param({"envelopes": (envelope(since_unix_ns=n),)}, "range", id=f"since-{n}") for n in BEYOND],
        *[pytest.param({"goodbye": Goodbye("x", n)}, "range", id=f"back-{n}") for n in BEYOND],
    ],
)  # fmt: skip
def test_what_no_agent_says_is_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(Refusal, match="cannot be") as refused:
        decode(PACK(report(**changes)))
    assert refused.value.code == 400
    assert word in refused.value.why


def test_long_words_are_cut() -> None:
    long = "x" * 900_000
    taken = decode(PACK(report(envelopes=(envelope(status="failed", reason=long),), goodbye=Goodbye("bye" * 10_000))))
    assert taken.goodbye is not None
    for words in (taken.envelopes[0].reason, taken.goodbye.reason):
        assert words is not None
        assert len(words) < 10_020
        assert words.endswith("(cut)")
    short = report(envelopes=(envelope(reason="ok"),), goodbye=Goodbye("bye"))
    assert decode(PACK(short)) == short


def event(**changes: Any) -> KernelEvent:
    usual: dict[str, Any] = {"id": "e1", "at_unix_ns": START_UNIX_NS, "kind": "xid", "text": "t"}
    return KernelEvent(**(usual | changes))


def test_an_event_of_another_machine_under_our_id_takes_nothing_from_us(centre: Centre) -> None:
    good, evil = centre.agents["m-gpu02"], centre.agents["m-gpu01"]
    evil.events = (event(id=f"{good.boot}/e1", xid=31),)
    centre.seconds(6)
    good.xid(79)
    centre.seconds(6)
    assert [line.slot for line in centre.opened()] == ["gpu02"]


@pytest.mark.parametrize("at_unix_ns", BEYOND)
def test_an_event_that_cannot_be_is_left_out_and_the_rest_counts(at_unix_ns: int, centre: Centre) -> None:
    agent = centre.agents["m-gpu01"]
    agent.xid(79)
    agent.events = (event(id="bad", at_unix_ns=at_unix_ns), event(id="i" * 300), event(id=""), *agent.events)
    centre.seconds(6)
    assert centre.ingest.undecodable == {"kernel_log": 3}
    assert centre.ingest.event_count == 1
    assert [line.slot for line in centre.opened()] == ["gpu01"]


def test_the_same_event_twice_in_one_report_counts_once(centre: Centre) -> None:
    centre.agents["m-gpu01"].events = (event(), event(text="z" * 5_000))
    centre.seconds(6)
    assert centre.ingest.event_count == 1
    record = centre.fleet.get("m-gpu01")
    assert record is not None
    assert [len(aged.event.text) <= 400 for aged in record.events] == [True]


class SkewedClock(FakeClock):
    """A node's clock that is off."""

    def __init__(self, true: FakeClock, off_s: int) -> None:
        self._true, self._off_s = true, off_s

    def unix_ns(self) -> int:
        return self._true.unix_ns() + self._off_s * S


@pytest.mark.parametrize("off_s", [-86_400, -3600, 3600, 86_400, 40 * 365 * 86_400])
@pytest.mark.parametrize("how", ["event", "hung"])
def test_a_node_whose_clock_is_off_falls_sick_by_our_clock(off_s: int, how: str, tmp_path: Path) -> None:
    centre = Centre(tmp_path, nodes=3, mode="observe")
    agent = centre.agents["m-gpu01"]
    agent.clock = SkewedClock(centre.clock, off_s)
    centre.settle()
    sick_ns = centre.clock.unix_ns()
    if how == "event":
        agent.xid(79)
    else:
        agent.nvml = Envelope("nvml", 0, 0.1, "hung", "stuck", since_unix_ns=agent.clock.unix_ns())
    centre.seconds(30)
    (opened,) = centre.opened()
    assert abs(opened.onset_unix_ns - sick_ns) <= 1 * S
    told = [line.at_unix_ns for line in centre.lines("health") if line.health == "driver_failed"]
    assert abs(told[0] - sick_ns) <= 1 * S


BEAT: dict[str, Any] = {
    "run": "r", "attempt": "a", "rank": 0, "world_size": 1, "pid": 1, "phase": "train", "step": 1,
    "step_end_unix_ns": START_UNIX_NS, "phase_start_unix_ns": START_UNIX_NS, "checkpoint_step": 1,
    "checkpoint_unix_ns": START_UNIX_NS, "tokens": 5, "step_s": 1.0, "sequence": 1, "read_unix_ns": START_UNIX_NS,
}  # fmt: skip
NUMBERS = ("rank", "world_size", "pid", "step", "checkpoint_step", "tokens", "sequence")
STAMPS = ("step_end_unix_ns", "phase_start_unix_ns", "checkpoint_unix_ns", "read_unix_ns")
YEAR_2100_NS = 4_102_444_800 * S


@pytest.mark.parametrize(
    "changes",
    [
        *({name: number} for name in NUMBERS + STAMPS for number in BEYOND),
        *({name: YEAR_2100_NS} for name in STAMPS),
        *({"step_s": number} for number in (float("nan"), float("inf"), -1.0, 1e300)),
        *({name: bad} for name in ("run", "attempt", "phase", "team", "user") for bad in ("x" * 256, "a\nb", "\x1b[m")),
        {"run": ""},
    ],
    ids=str,
)
def test_a_heartbeat_that_cannot_be_is_none(changes: dict[str, Any]) -> None:
    assert plausible.beat_can_be(Beat(**BEAT), START_UNIX_NS)
    assert not plausible.beat_can_be(Beat(**(BEAT | changes)), START_UNIX_NS)


@pytest.mark.parametrize("bad", [{"step_end_unix_ns": (1 << 64) - 1}, {"phase_start_unix_ns": -(1 << 63)}, {"run": ""}])
def test_a_heartbeat_that_cannot_be_is_left_out_and_the_rest_counts(bad: dict[str, Any], centre: Centre) -> None:
    agent = centre.agents["m-gpu01"]
    for step in range(1, 12):
        now_ns = centre.clock.unix_ns()
        stamps = {"step": step, "sequence": step, "step_end_unix_ns": now_ns, "read_unix_ns": now_ns}
        agent.beats = (Beat(**(BEAT | stamps)), Beat(**(BEAT | {"run": "other"} | stamps | bad)))
        centre.seconds(5)
    assert centre.brain.failure_count == 0
    assert centre.ingest.undecodable["training"] >= 10
    assert [run.run for run in centre.stage.scene.runs] == ["r"]


def test_collectors_that_come_and_go_do_not_fill_the_memory(centre: Centre) -> None:
    agent = centre.agents["m-gpu01"]
    for turn in range(10):
        said = agent.report()
        more = tuple(envelope(collector=f"c{turn}-{n}") for n in range(50))
        centre.send(msgspec.structs.replace(said, envelopes=(*more, *said.envelopes)))
    record = centre.fleet.get("m-gpu01")
    assert record is not None
    assert record.heard is not None
    assert len(record.heard.sources) == 64
    assert {"nvml", "kernel_log"} <= record.heard.sources.keys()


def test_facts_without_end_are_missing_facts(centre: Centre) -> None:
    said = centre.agents["m-gpu01"].report()
    endless = msgspec.Raw(b"\x91" * 900 + b"\xc0")
    log = msgspec.Raw(PACK(KernelLogFacts(True)))
    bad = (envelope(collector="nvml", facts=endless), envelope(collector="kernel_log", facts=log))
    centre.send(msgspec.structs.replace(said, envelopes=bad))
    centre.clock.pass_s(1.0)
    centre.brain.tick()
    assert centre.states()["gpu01"] == "unknown in_service"


NUMBER = st.sampled_from([0, 1, 2, 7, 1 << 31, (1 << 62) - 1, *BEYOND]) | st.integers(0, 1 << 64)
STAMP = st.sampled_from([0, 1, START_UNIX_NS, START_UNIX_NS + 40 * S, START_UNIX_NS + 86_400 * S, *BEYOND])


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                **dict.fromkeys(NUMBERS, NUMBER),
                **dict.fromkeys(STAMPS, STAMP),
                "step_s": st.floats() | st.none(),
                "phase": st.sampled_from(["init", "train", "checkpoint", "evaluate", "data_wait", "done", "?"]),
                "alive": st.sampled_from([True, False, None]),
            }
        ),
        max_size=6,
    )
)
def test_whatever_heartbeats_say_the_ledger_can_hold_what_follows(said: list[dict[str, Any]]) -> None:
    book = new_book()
    for turn, changes in enumerate(said):
        beat = Beat(**(BEAT | changes))
        now = Moment(START_UNIX_NS + turn * 31 * S, turn * 31 * S + 1)
        seen = [Sighting(machine="m", slot="s", beat=beat, received=now)]
        book, lines = absorb(book, seen if plausible.beat_can_be(beat, now.unix_ns) else [], (), now)
        assert all(0 <= line.at_unix_ns < 1 << 62 for line in lines)


def test_agents_of_the_fakes_are_plausible() -> None:
    assert plausible.impossible(Agent("gpu01", "m", FakeClock()).report()) == ""
