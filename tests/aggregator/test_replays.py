"""Reports that come again: acknowledged again, and counted once, however long ago they came first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.model.wire import Ack
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
