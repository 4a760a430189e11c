"""The word of the node's hands, as the agent carries it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpuwatch.collectors import Unsupported
from gpuwatch.collectors.hands import COLLECTOR, OLD_S, Settings, _Reader, metrics
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.order import Answer
from tests.fakes import FakeClock, S

DONE = Answer("act-1", "reboot", "", "done", "it runs as boot b2 now", 1)


def told(path: Path, clock: FakeClock, **changed: object) -> HandsFacts:
    """The hands write their word."""
    facts = HandsFacts(boot_id="b1", nonce="aa", nonce_expires_monotonic_ns=1, told_monotonic_ns=clock.monotonic)
    facts = msgspec.structs.replace(facts, **changed)
    path.write_bytes(msgspec.json.encode(facts))
    return facts


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "status"


@pytest.fixture
def reader(path: Path, clock: FakeClock) -> _Reader:
    return _Reader(Settings(status_file=str(path)), clock)


def test_it_is_off_unless_asked_for() -> None:
    assert not COLLECTOR.settings().enabled


def test_a_node_without_hands(reader: _Reader) -> None:
    with pytest.raises(Unsupported, match="no hands have written"):
        reader.read()


def test_their_word_is_carried_as_it_is(reader: _Reader, path: Path, clock: FakeClock) -> None:
    facts = told(path, clock, units=("slurmd.service",), answers=(DONE,))
    reading = reader.read()
    assert (reading.facts, reading.urgent) == (facts, False)


def test_an_answer_is_urgent_once(reader: _Reader, path: Path, clock: FakeClock) -> None:
    told(path, clock)
    reader.read()
    told(path, clock, answers=(DONE,))
    assert [reader.read().urgent, reader.read().urgent] == [True, False]


@pytest.mark.parametrize("age_s", [OLD_S + 1, -1])
def test_an_old_word_is_one_of_hands_that_have_ended(
    reader: _Reader, path: Path, clock: FakeClock, age_s: float
) -> None:
    told(path, clock)
    clock.monotonic += int(age_s * S)
    with pytest.raises(ProbeError, match="the hands have said nothing"):
        reader.read()


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[1,2]", b"[" * 70_000])
def test_garbage_is_a_failure_with_its_reason(reader: _Reader, path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(ProbeError, match="cannot be read"):
        reader.read()


def test_a_folder_in_its_place(reader: _Reader, path: Path) -> None:
    path.mkdir()
    with pytest.raises(ProbeError, match="cannot be read"):
        reader.read()


@pytest.mark.parametrize(("changed", "ready"), [({}, 1), ({"refuses": "HOLD"}, 0), ({"nonce": ""}, 0)])
def test_metrics(path: Path, clock: FakeClock, changed: dict[str, str], ready: int) -> None:
    (sample,) = metrics(told(path, clock, **changed))
    assert (sample.name, sample.value) == ("gpuwatch_hands_ready", ready)
