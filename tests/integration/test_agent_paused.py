"""A real agent that is stopped in the middle of a reading, alone or with its whole machine: it goes on where it was."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent_node import Aggregator, Node, envelope_of

STOPPED_S = 4.0
SAYS = """#!/bin/sh
echo $$ > "$0.asked"
sleep 0.4
printf 'Id=slurmd.service\\nLoadState=loaded\\nActiveState=active\\nNRestarts=0\\n'
"""


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    made = Aggregator()
    yield made
    made.close()


@pytest.fixture
def node(tmp_path: Path, aggregator: Aggregator) -> Iterator[Node]:
    made = Node(tmp_path / "node", aggregator.url)
    (made.folder / "run/systemd/system").mkdir(parents=True)
    systemctl = made.folder / "systemctl"
    systemctl.write_text(SAYS)
    systemctl.chmod(0o755)
    where = {"run_root": str(made.folder / "run"), "systemctl": str(systemctl)}
    made.others["services"] = {"interval_s": 0.5, "deadline_s": 2.0, **where}
    yield made
    made.end()


@pytest.mark.parametrize("whole_machine", [False, True])
def test_a_source_in_the_middle_of_which_we_slept_is_read_on_and_not_called_hung(
    node: Node, aggregator: Aggregator, *, whole_machine: bool
) -> None:
    agent, asked = node.start(), node.folder / "systemctl.asked"
    aggregator.wait(lambda report: envelope_of(report, "services") is not None)
    asked.unlink(missing_ok=True)
    while not (asked.exists() and (said := asked.read_text())):
        time.sleep(0.005)
    stopped = (agent.pid, int(said)) if whole_machine else (agent.pid,)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    asked.unlink()
    begun_s, before = time.monotonic(), len(aggregator.envelopes("services"))
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)
    while not asked.exists():  # before: after four times as long as it was stopped
        assert time.monotonic() - begun_s < STOPPED_S, "it is asked no more"
        time.sleep(0.01)
    aggregator.wait(lambda _: len(aggregator.envelopes("services")) > before + 1)
    assert {envelope.status for envelope in aggregator.envelopes("services")} == {"ok"}
