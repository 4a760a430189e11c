"""A driver that does not answer: the agent goes on, says what the call waits for, and never piles up children."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch.model.wire import Report
from gpuwatch.sdk import processes
from tests.agent_node import Aggregator, Node, envelope_of, status_is
from tests.components import go_without
from tests.nvml_library.build import build
from tests.nvml_library.state import State

pytestmark = pytest.mark.needs("gcc")


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "nvml.txt")


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    made = Aggregator()
    yield made
    made.close()


@pytest.fixture
def node(tmp_path: Path, state: State, aggregator: Aggregator) -> Iterator[Node]:
    environment = {"LD_LIBRARY_PATH": str(build()), "GPUWATCH_TEST_NVML_STATE": str(state.path)}
    made = Node(tmp_path / "node", aggregator.url, simulated=False, **environment)
    yield made
    made.end()


def children(process: subprocess.Popen[bytes]) -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


def until(true: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    end_s = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


def later(report: Report, than: Report) -> bool:
    return report.agent_id == than.agent_id and report.sequence > than.sequence


def test_a_call_that_never_returns(node: Node, state: State, aggregator: Aggregator) -> None:
    agent = node.start()
    aggregator.wait(status_is("nvml", "ok"))
    first = children(agent)
    state.gpu(3, hang="nvmlDeviceGetUtilizationRates")
    _, report = aggregator.wait(status_is("nvml", "hung"))
    hung = envelope_of(report, "nvml")
    assert hung is not None
    assert hung.reason is not None
    assert "in nvmlDeviceGetUtilizationRates of GPU 3" in hung.reason
    assert re.search(r"state (S, wait channel \w*nanosleep|R, )", hung.reason)  # R: it just looked
    # It is killed once, another is started, and that one hangs as well: hung since the first silence, all the time.
    until(lambda: children(agent) not in ([], first), "another child")
    _, report = aggregator.wait(lambda new: later(new, report) and children(agent) != first)
    again = envelope_of(report, "nvml")
    assert again is not None
    assert (again.status, again.since_unix_ns, again.reason) == ("hung", hung.since_unix_ns, hung.reason)
    statuses = [envelope.status for envelope in aggregator.envelopes("nvml")]
    assert statuses == sorted(statuses, key=["ok", "hung"].index)
    assert len(children(agent)) <= 1
    state.gpu(3, hang=None)
    aggregator.wait(lambda new: later(new, report) and status_is("nvml", "ok")(new), "recovery")
    assert node.stop() < 2.0


def test_an_agent_that_is_killed_leaves_no_second_child(node: Node, state: State, aggregator: Aggregator) -> None:
    agent = node.start()
    aggregator.wait(status_is("nvml", "ok"))
    (orphan,) = children(agent)
    state.gpu(0, hang="nvmlDeviceGetUtilizationRates")
    aggregator.wait(status_is("nvml", "hung"))
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    second = node.start()
    _, report = aggregator.wait(lambda report: report.agent_id != aggregator.reports[0][1].agent_id)
    until(lambda: processes.start_ticks(orphan) is None or not children(second), "one child at a time")
    until(lambda: bool(children(second)), "a child of the second agent")
    assert processes.start_ticks(orphan) is None  # it was in user space: its one SIGKILL ended it
    state.gpu(0, hang=None)
    aggregator.wait(lambda new: later(new, report) and status_is("nvml", "ok")(new), "recovery")


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup whose processes stand still in the kernel, deaf to SIGKILL: a true D state that a test can end."""
    with contextlib.ExitStack() as stack:
        mounted = Path("/sys/fs/cgroup/freezer")
        if not (mounted / "cgroup.procs").exists():
            mounted = stack.enter_context(_mounted_freezer())
        group = mounted / f"gpuwatch-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            go_without("freezer", f"no cgroup can be made: {error}")
        yield group
        (group / "freezer.state").write_text("THAWED")
        until(lambda: not (group / "cgroup.procs").read_text(), "the group to be empty")
        until(lambda: _removed(group), "the group to go")


@contextlib.contextmanager
def _mounted_freezer() -> Iterator[Path]:
    own = Path(f"/tmp/gpuwatch-freezer-{os.getpid()}")
    own.mkdir()
    try:
        words = ["mount", "-t", "cgroup", "-o", "freezer", "none", str(own)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            go_without("freezer", f"no cgroup v1 freezer: {done.stderr.strip()}")
        try:
            yield own
        finally:
            subprocess.run(["umount", str(own)], check=False)
    finally:
        own.rmdir()


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.mark.needs("root")
def test_a_child_that_cannot_be_killed_is_abandoned_once_over_restarts(
    node: Node, aggregator: Aggregator, freezer: Path
) -> None:
    agent = node.start()
    aggregator.wait(status_is("nvml", "ok"))
    (stuck,) = children(agent)
    ticks = processes.start_ticks(stuck)
    assert ticks is not None
    (freezer / "cgroup.procs").write_text(str(stuck))
    (freezer / "freezer.state").write_text("FROZEN")
    _, report = aggregator.wait(
        lambda report: (found := envelope_of(report, "nvml")) is not None and found.abandoned_count == 1, "abandoned"
    )
    hung = envelope_of(report, "nvml")
    assert hung is not None
    assert hung.reason is not None
    assert (hung.status, hung.abandoned_count) == ("hung", 1)
    # A sleep that may be frozen is frozen where it is: the wait channel is that of the probe's own pause.
    assert re.search(r"child state D, wait channel \w+", hung.reason), hung.reason
    assert processes.is_alive(stuck, ticks)  # SIGKILL was sent; it is deaf
    assert children(agent) == [stuck]

    assert node.stop() < 2.0  # the stop waits for no such child
    second = node.start()
    _, report = aggregator.wait(
        lambda new: new.agent_id != report.agent_id and new.goodbye is None and status_is("nvml", "hung")(new),
        "the second agent's word",
    )
    again = envelope_of(report, "nvml")
    assert again is not None
    assert (again.abandoned_count, again.since_unix_ns, again.reason) == (1, hung.since_unix_ns, hung.reason)
    aggregator.wait(lambda new: later(new, report) and new.sequence > report.sequence + 5)
    assert children(second) == []

    second.send_signal(signal.SIGKILL)
    second.wait()
    third = node.start()
    _, report = aggregator.wait(
        lambda new: (
            new.agent_id not in (report.agent_id, aggregator.reports[0][1].agent_id) and status_is("nvml", "hung")(new)
        ),
        "the third agent's word",
    )
    assert children(third) == []
    assert processes.is_alive(stuck, ticks)

    (freezer / "freezer.state").write_text("THAWED")
    aggregator.wait(lambda new: later(new, report) and status_is("nvml", "ok")(new), "recovery")
    assert not processes.is_alive(stuck, ticks)
    assert len(children(third)) == 1
