"""The whole agent as a process: what it tells, how fast, and how it leaves."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import gpuwatch.collectors
from gpuwatch.collectors import Collector
from gpuwatch.model.facts.kernel_log import KernelLogFacts
from gpuwatch.registry import leaves
from gpuwatch.training import Heartbeat
from tests.agent_node import Aggregator, Node, envelope_of, facts_of, status_is
from tests.strange_files import STRANGE

XID_79 = (
    "Nov 30 15:00:00 gpu-001 kernel: [ 1234.500000] NVRM: Xid (PCI:0000:29:00): 79, pid=1234, name=python, "
    "GPU has fallen off the bus.\n"
)


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    made = Aggregator()
    yield made
    made.close()


@pytest.fixture
def node(tmp_path: Path, aggregator: Aggregator) -> Iterator[Node]:
    made = Node(tmp_path / "node", aggregator.url, GPUWATCH_BOOT_ID="boot-of-the-test")
    yield made
    made.end()


def test_it_reports_all_sources_and_says_goodbye(node: Node, aggregator: Aggregator) -> None:
    hb = Heartbeat("opt", rank=0, world_size=1, directory=node.folder / "beats")
    hb.step(41)
    node.others = {}  # the machine that tests is looked at too
    node.start()
    _, report = aggregator.wait(status_is("nvml", "ok"))
    assert (report.slot, report.machine, report.boot_id) == ("gpu-001", "m-1", "boot-of-the-test")
    assert [gpu.utilization_ratio for gpu in facts_of(report, "nvml").gpus] == [0.97] * 8
    aggregator.wait(lambda report: facts_of(report, "training").beats[0].step == 41)
    aggregator.wait(lambda report: facts_of(report, "kernel_log").readable)
    found = leaves(gpuwatch.collectors, "COLLECTOR", Collector)
    doors = {name for name, door in found.items() if door.settings().enabled} - node.others.keys()

    def told() -> set[str]:
        return {envelope.collector for _, report in aggregator.reports for envelope in report.envelopes}

    aggregator.wait(lambda _: told() == doors, f"a word of {doors - told()}")
    hb.step(42)
    aggregator.wait(lambda report: facts_of(report, "training").beats[0].step == 42)
    assert node.stop() < 2.0
    _, last = aggregator.wait(lambda report: report.goodbye is not None)
    assert last.goodbye is not None
    assert last.goodbye.reason == "stopped by SIGTERM"
    numbers = [report.sequence for _, report in aggregator.reports]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_fatal_xid_and_a_dead_rank_do_not_wait_for_the_next_report(node: Node, aggregator: Aggregator) -> None:
    node.top["interval_s"] = 30.0
    script = (
        f"from gpuwatch.training import Heartbeat\nhb = Heartbeat('opt', directory={str(node.folder / 'beats')!r})\n"
    )
    rank = subprocess.Popen([sys.executable, "-c", script + "print('up', flush=True)\ninput()"],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert rank.stdout is not None
    rank.stdout.readline()
    node.start()
    aggregator.wait(status_is("nvml", "ok"))
    begun_s = time.monotonic()
    with (node.folder / "kernel.log").open("a") as log:
        log.write(XID_79)
    at_s, report = aggregator.wait(lambda report: bool(facts_of(report, "kernel_log").events), "the Xid")
    assert at_s - begun_s < 1.0
    (event,) = facts_of(report, "kernel_log").events
    assert (event.xid, event.pci, event.boot_id) == (79, "0000:29:00", "boot-of-the-test")
    begun_s = time.monotonic()
    rank.kill()
    at_s, _ = aggregator.wait(
        lambda report: any(beat.alive is False for beat in facts_of(report, "training").beats), "the death"
    )
    assert at_s - begun_s < 1.0
    rank.communicate()
    said = aggregator.envelopes("kernel_log")
    told = [event.id for one in said for event in msgspec.msgpack.decode(one.facts, type=KernelLogFacts).events]
    assert len(told) == 1


def test_a_lost_gpu_and_a_hung_driver_are_told_while_the_rest_goes_on(node: Node, aggregator: Aggregator) -> None:
    node.start()
    aggregator.wait(status_is("nvml", "ok"))
    node.gpus(gpu_count=8, seed="node", lost=[3])
    _, report = aggregator.wait(lambda report: any(gpu.error == 15 for gpu in facts_of(report, "nvml").gpus))
    assert [gpu.error for gpu in facts_of(report, "nvml").gpus].count(None) == 7
    node.gpus(gpu_count=8, seed="node", hang=True)
    _, report = aggregator.wait(status_is("nvml", "hung"))
    hung = envelope_of(report, "nvml")
    assert hung is not None
    assert hung.reason is not None
    assert re.search(r"in nvml\w+ of GPU \d; child state [SR], wait channel \w+", hung.reason)
    sequence = report.sequence
    aggregator.wait(lambda report: report.sequence > sequence + 5)  # it goes on
    with (node.folder / "kernel.log").open("a") as log:
        log.write(XID_79)
    aggregator.wait(lambda report: bool(facts_of(report, "kernel_log").events), "the Xid")
    node.gpus(gpu_count=8, seed="node")
    aggregator.wait(lambda report: report.sequence > sequence and status_is("nvml", "ok")(report), "recovery")


def listens(pid: int, number: int) -> bool:
    """Whether a process has a handler for this signal."""
    caught = Path(f"/proc/{pid}/status").read_text().split("SigCgt:")[1].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_what_could_not_be_told_is_told_by_the_next_agent(node: Node, aggregator: Aggregator) -> None:
    url, node.top["aggregator"] = node.top["aggregator"], ["http://127.0.0.1:9"]
    node.start()
    until_s = time.monotonic() + 20
    while len(list((node.folder / "state" / "spool").glob("*.report"))) < 3:
        assert time.monotonic() < until_s
        time.sleep(0.02)
    node.processes[-1].send_signal(signal.SIGKILL)
    node.processes[-1].wait()
    node.start()
    until_s = time.monotonic() + 20
    while not listens(node.processes[-1].pid, signal.SIGTERM):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert node.stop() < 2.0
    node.top["aggregator"] = url
    node.start()
    aggregator.wait(lambda report: report.goodbye is not None, "the goodbye of the agent before")
    agents = list(dict.fromkeys(report.agent_id for _, report in aggregator.reports))
    assert len(agents) >= 2
    first = [report.sequence for _, report in aggregator.reports if report.agent_id == agents[0]]
    assert first == sorted(first)


@pytest.mark.parametrize("strange", ["brackets", "noise", "pipe", "device"])
def test_whatever_lies_in_its_state_directory_it_reports(node: Node, aggregator: Aggregator, strange: str) -> None:
    node.others = {}
    state = node.folder / "state"
    state.mkdir()
    sources = ("host", "infiniband", "services", "pcie", "environment", "attribution")
    names = ["probe-nvml.json", "environment.json", "kernel_log.json", "release"]
    names += [f"{of}-{source}.json" for source in sources for of in ("learned", "errands", "errands-scan")]
    for name in names:
        STRANGE[strange](state / name)
    node.start()
    found = leaves(gpuwatch.collectors, "COLLECTOR", Collector)
    wanted = {name for name, door in found.items() if door.settings().enabled}

    def told() -> set[str]:
        well = ("ok", "unsupported")
        return {e.collector for _, report in aggregator.reports for e in report.envelopes if e.status in well}

    aggregator.wait(lambda _: told() == wanted, "a word of all sources")
    assert node.stop() < 2.0
    assert "Traceback" not in node.log()


def test_there_is_one_agent_a_state_directory(node: Node, aggregator: Aggregator) -> None:
    node.start()
    aggregator.wait(lambda report: True)
    second = subprocess.run(
        [sys.executable, "-m", "gpuwatch.wiring.agent", "--config", str(node.folder / "agent.toml")],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert second.returncode == 2
    assert "another agent uses" in second.stderr
    assert "next: stop the other one" in second.stderr


def test_faults_in_the_settings_are_told_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('slott = "x"\ninterval_s = -1\nmetrics_listen = 5\n[collectors.nvml]\nintervall_s = 1\n'
                    "[collectors.hots]\nenabled = true\n")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "gpuwatch.wiring.agent", "--config", str(path)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("gpuwatch: 5 faults in the settings:")
    assert "Traceback" not in done.stderr


def test_metrics_are_served_while_everything_hangs(node: Node, aggregator: Aggregator) -> None:
    node.gpus(gpu_count=8, hang=True)
    node.start()
    aggregator.wait(status_is("nvml", "hung"))
    found = re.search(r"metrics on port (\d+)", node.log())
    assert found is not None
    connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=5)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    assert 'gpuwatch_collector_status{collector="nvml",status="hung"} 1.0' in text
    assert "gpuwatch_gpu_utilization_ratio" not in text
    connection.close()


def test_the_agent_carries_nothing_of_the_aggregator() -> None:
    script = "import sys, json, gpuwatch.wiring.agent; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    heavy = {"typer", "rich", "starlette", "uvicorn", "sqlalchemy", "apscheduler", "jinja2", "asyncio", "pynvml", "ssl"}
    heavy -= {"ssl"}  # http.client loads it
    assert not loaded & heavy
    rooms = ("rules", "runs", "decide", "cost", "reports", "clouds", "schedulers", "store", "aggregator")
    assert not {name for name in loaded if name.startswith(tuple(f"gpuwatch.{room}" for room in rooms))}


def test_a_source_that_joins_others_gets_what_they_said(node: Node, aggregator: Aggregator) -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        node.gpus(gpu_count=8, seed="node", gpus={"2": {"pids": [child.pid]}})
        node.attribution = {"interval_s": 0.2}
        node.start()
        _, report = aggregator.wait(lambda report: bool(facts_of(report, "attribution").processes))
        (process,) = facts_of(report, "attribution").processes
        assert (process.pid, process.gpus, process.name) == (child.pid, (2,), "sleep")
    finally:
        child.kill()
        child.wait()
