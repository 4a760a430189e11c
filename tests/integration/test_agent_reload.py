"""An agent that goes on: other settings at SIGHUP, broken ones refused, and the driver released on request."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch.sdk.processes import start_ticks
from gpuwatch.wiring import release as wiring
from tests.agent_node import Aggregator, Node, envelope_of, status_is

PATIENCE_S = 15.0


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    made = Aggregator()
    yield made
    made.close()


@pytest.fixture
def node(tmp_path: Path, aggregator: Aggregator) -> Iterator[Node]:
    made = Node(tmp_path / "node", aggregator.url, GPUWATCH_BOOT_ID="boot-of-the-test")
    made.host["interval_s"] = 0.3
    made.start()
    aggregator.wait(status_is("nvml", "ok"))
    yield made
    made.end()


def until(true: Callable[[], bool], story: Callable[[], str]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s, story()
        time.sleep(0.02)


def hang_up(node: Node, says: str) -> None:
    """SIGHUP, and wait until the log says so."""
    seen = len(node.log())
    node.processes[-1].send_signal(signal.SIGHUP)
    until(lambda: says in node.log()[seen:], node.log)
    assert node.processes[-1].poll() is None


def command(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuwatch", "agent", *words, "-c", str(node.folder / "agent.toml")],
        env=node.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def last(aggregator: Aggregator) -> set[str]:
    """The collectors of the latest reports: one carries what is new."""
    return {envelope.collector for _, report in aggregator.reports[-6:] for envelope in report.envelopes}


def test_good_settings_are_taken_over_by_the_agent_that_runs(node: Node, aggregator: Aggregator) -> None:
    agent_id = aggregator.reports[-1][1].agent_id
    first_child = node.probe_record()["pid"]
    node.host["enabled"] = False
    node.top |= {"interval_s": 0.2, "spool_max_reports": 100}
    node.nvml["interval_s"] = 0.2
    node.config()
    hang_up(node, "is taken over")
    aggregator.wait(lambda report: report.interval_s == 0.2)
    until(lambda: "host" not in last(aggregator), node.log)
    until(lambda: node.probe_record()["pid"] != first_child, node.log)
    seen = len(aggregator.reports)
    until(lambda: any(status_is("nvml", "ok")(report) for _, report in aggregator.reports[seen + 3 :]), node.log)
    node.host["enabled"] = True
    node.config()
    hang_up(node, "host: on")
    until(lambda: "host" in last(aggregator), node.log)
    assert {report.agent_id for _, report in aggregator.reports} == {agent_id}
    numbers = [report.sequence for _, report in aggregator.reports]
    assert numbers == list(range(1, len(numbers) + 1))


def test_another_aggregator_gets_what_waits(node: Node, aggregator: Aggregator) -> None:
    other = Aggregator()
    try:
        aggregator.close()
        node.top |= {"aggregator": [other.url]}
        node.config()
        hang_up(node, "is taken over")
        other.wait(status_is("nvml", "ok"))
        sequence = aggregator.reports[-1][1].sequence
        numbers = [report.sequence for _, report in other.reports]
        assert numbers[0] <= sequence + 1  # none is missing between the two
    finally:
        other.close()


BROKEN = {
    "no TOML": "interval_s = = 1",
    "an unknown key": 'interval_z = 1\n[collectors.hots]\nx = "y"',
    "a value that does not fit": "interval_s = -1",
    "not even text": "\xff\xfe",
}


def test_broken_settings_are_refused_and_the_old_ones_stay(node: Node, aggregator: Aggregator) -> None:
    good = (node.folder / "agent.toml").read_text()
    for kind, text in BROKEN.items():
        (node.folder / "agent.toml").write_text(text, encoding="latin-1")
        hang_up(node, "is refused, the settings before it stay in force")
        seen = len(aggregator.reports)
        until(lambda seen=seen: len(aggregator.reports) > seen + 6, node.log)  # type: ignore[misc]
        assert last(aggregator) >= {"nvml", "host", "kernel_log", "training"}, kind
        assert command(node, "check").returncode == 2
    (node.folder / "agent.toml").unlink()
    hang_up(node, "does not exist")
    (node.folder / "agent.toml").write_text(good)
    hang_up(node, "is taken over")
    assert command(node, "check").returncode == 0
    node.top["slot"] = "another"
    node.config()
    hang_up(node, "a new value of slot waits for a restart of the agent")
    until(lambda: aggregator.reports[-1][1].slot == "gpu-001", node.log)
    assert "Traceback" not in node.log()


def test_a_storm_of_hang_ups_does_no_harm(node: Node, aggregator: Aggregator) -> None:
    for _ in range(100):
        node.processes[-1].send_signal(signal.SIGHUP)
        time.sleep(0.005)
    seen = len(aggregator.reports)
    until(lambda: len(aggregator.reports) > seen + 3, node.log)
    assert node.stop() < 2.0


def test_a_hang_up_of_the_whole_unit_ends_no_probe(node: Node, aggregator: Aggregator) -> None:
    pid = node.probe_record()["pid"]
    os.kill(pid, signal.SIGHUP)
    hang_up(node, "is taken over")
    seen = len(aggregator.reports)
    until(lambda: any(status_is("nvml", "ok")(report) for _, report in aggregator.reports[seen + 3 :]), node.log)
    assert node.probe_record()["pid"] == pid


def test_a_terminal_that_is_closed_ends_the_agent_with_a_goodbye(node: Node, aggregator: Aggregator) -> None:
    node.stop()
    leader, terminal = os.openpty()
    words = [sys.executable, "-m", "gpuwatch.wiring.agent", "--config", str(node.folder / "agent.toml")]
    agent = subprocess.Popen(words, env=node.environment, stdin=terminal, stderr=subprocess.PIPE)
    os.close(terminal)
    seen = len(aggregator.reports)
    try:
        until(lambda: len(aggregator.reports) > seen + 1, node.log)
        agent.send_signal(signal.SIGHUP)
        assert agent.wait(10) == 0
    finally:
        agent.kill()
        agent.communicate()
        os.close(leader)
    aggregator.wait(lambda report: report.goodbye is not None and report.goodbye.reason == "stopped by SIGHUP")


def test_the_driver_is_released_on_request_and_taken_again(node: Node, aggregator: Aggregator) -> None:
    child = node.probe_record()["pid"]
    done = command(node, "release", "--because", "driver 580.95", "--minutes", "5")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no process of the agent holds the driver" in done.stdout
    assert start_ticks(child) is None
    _, report = aggregator.wait(status_is("nvml", "failed"))
    envelope = envelope_of(report, "nvml")
    assert envelope is not None
    words = "released on request: driver 580.95 (for 5 min at most; `gpuwatch agent resume` ends it)"
    assert envelope.reason == words
    aggregator.wait(lambda later: later.sequence > report.sequence and status_is("kernel_log", "ok")(later))
    node.stop()
    node.start()  # an agent that is upgraded meanwhile keeps its hands off too
    agent_id = report.agent_id
    aggregator.wait(lambda report: report.agent_id != agent_id and status_is("nvml", "failed")(report))
    assert not (node.folder / "state" / "probe-nvml.json").exists()
    done = command(node, "resume")
    assert done.returncode == 0
    assert "the driver is watched again by process" in done.stdout
    seen = aggregator.reports[-1][1].sequence
    aggregator.wait(lambda report: report.sequence > seen and status_is("nvml", "ok")(report))
    assert "was not released" in command(node, "resume").stdout


def test_a_release_says_what_hangs_in_the_driver(
    node: Node, aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = node.probe_record()["pid"]
    node.nvml |= {"deadline_s": 60.0, "kill_after_s": 60.0}
    node.config()
    hang_up(node, "nvml: other settings")
    until(lambda: (node.folder / "state" / "probe-nvml.json").exists() and node.probe_record()["pid"] != pid, node.log)
    seen = aggregator.reports[-1][1].sequence
    aggregator.wait(lambda report: report.sequence > seen + 3 and status_is("nvml", "ok")(report))
    node.gpus(gpu_count=8, seed="node", hang=True)
    time.sleep(0.5)
    monkeypatch.setenv("GPUWATCH_BOOT_ID", "boot-of-the-test")
    assert wiring.release(node.folder / "agent.toml", minutes=5, patience_s=2.0) == 1
    said = capsys.readouterr().out
    assert re.search(rf"nvml: its process {node.probe_record()['pid']} is still there: state [SR]", said)
    assert "The release stands" in said
    node.gpus(gpu_count=8, seed="node")
    assert wiring.release(node.folder / "agent.toml", minutes=5) == 0
