"""The agent's memory over 100,000 cycles, time-compressed: a real agent with every source, far faster than any node's.

All intervals shrink alike, and the library answers without delay, so that a week's cycles pass within minutes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

import gpuwatch.collectors
from gpuwatch.collectors import Collector
from gpuwatch.registry import leaves
from gpuwatch.simulate.cluster import free_port
from tests.benchmarks.agent_cost import SETTINGS, SINK
from tests.benchmarks.process import rss_bytes
from tests.benchmarks.row import Row
from tests.nvml_library.build import build
from tests.nvml_library.state import State

CYCLES = 100_000
INTERVAL_S, USUAL_S = 0.005, 5.0  # of a report and a look at the GPUs
MOST_GROWTH_MB, MOST_MB = 1.0, 60.0
LOOK_S = 2.0
GIVE_UP_S = 1800.0

# The agent itself; its settings file may not ask for so short an interval.
AGENT = """
import sys, msgspec
from gpuwatch.wiring import agent
usual = agent.load
def load(*given):
    settings = usual(*given)
    brisk = msgspec.structs.replace(settings.agent, interval_s=float(sys.argv[1]))
    return type(settings)(agent=brisk, collectors=settings.collectors)
agent.load = load
sys.exit(agent.main(["--config", sys.argv[2]]))
"""


@dataclass(frozen=True, slots=True)
class Look:
    """The agent and its probe at one moment. The small programs that it starts now and then live for milliseconds; here
    there is always one, so they are left out."""

    cycles: int
    mb: float
    files: int
    threads: int


def measure(*, quick: bool = False) -> list[Row]:
    """One row. Flat: from the second tenth of the cycles, when every cache has filled, to the last."""
    wanted = CYCLES // 10 if quick else CYCLES
    with tempfile.TemporaryDirectory() as name:
        looks, took_s = _looks(Path(name), wanted)
    filled = [look for look in looks if look.cycles >= wanted / 10]
    tenth = max(1, len(filled) // 9)
    early, last = _usual(filled[:tenth]), _usual(filled[-tenth:])
    most_mb = max(look.mb for look in looks)
    growth_mb = last.mb - early.mb
    same = (early.files, early.threads) == (last.files, last.threads)
    return [
        Row(
            what=f"agent's memory over {wanted:,} cycles, time-compressed",
            budget=f"flat: ≤ {MOST_GROWTH_MB:.0f} MB; ≤ {MOST_MB:.0f} MB in all processes",
            measured=f"{early.mb:.1f} MB after {early.cycles:,} cycles, {last.mb:.1f} MB after {last.cycles:,} "
            f"({growth_mb:+.1f} MB), at most {most_mb:.1f} MB; files {early.files} → {last.files}, "
            f"threads {early.threads} → {last.threads}",
            beside=f"{looks[-1].cycles / took_s:.0f} cycles a second, of {USUAL_S:.0f} s each on a node: "
            f"{looks[-1].cycles * USUAL_S / 86400:.1f} days in {took_s / 60:.1f} minutes",
            met=growth_mb <= MOST_GROWTH_MB and most_mb <= MOST_MB and same and looks[-1].cycles >= CYCLES,
        )
    ]


def _usual(looks: list[Look]) -> Look:
    """The middle one of each: at a single look a pipe of a small program may be open."""
    middle = [sorted(column)[len(looks) // 2] for column in zip(*map(astuple, looks), strict=True)]
    return Look(*middle)


def _looks(directory: Path, wanted: int) -> tuple[list[Look], float]:
    (directory / "token").write_text("t")
    (directory / "kernel.log").touch()
    (directory / "heartbeats").mkdir()
    state = State(directory / "nvml")
    state.all(count=8, utilization=97, temperature=61)
    environment = os.environ | {"LD_LIBRARY_PATH": str(build()), "GPUWATCH_TEST_NVML_STATE": str(state.path)}
    metrics_port = free_port()
    sink = subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE)
    assert sink.stdout is not None
    started = [sink]
    try:
        (directory / "agent.toml").write_text(_settings(directory, int(sink.stdout.readline()), metrics_port))
        command = [sys.executable, "-c", AGENT, str(INTERVAL_S), str(directory / "agent.toml")]
        agent = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        started.append(agent)
        looks: list[Look] = []
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < GIVE_UP_S and (not looks or looks[-1].cycles < wanted):
            time.sleep(LOOK_S)
            if agent.poll() is not None:
                raise RuntimeError(f"the agent ended with {agent.returncode}")
            with contextlib.suppress(OSError, psutil.Error):  # not yet; or a program has just ended
                looks.append(_look(agent.pid, metrics_port))
        return looks, time.monotonic() - begun_s
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def _settings(directory: Path, port: int, metrics_port: int) -> str:
    """The benchmark's own with every interval shrunk alike."""
    text = SETTINGS.replace("interval_s = {interval}.0\nc", f"interval_s = {INTERVAL_S}\nc")
    text = text.replace("127.0.0.1:0", f"127.0.0.1:{metrics_port}")
    text = text.format(directory=directory, port=port, interval=int(USUAL_S))
    for name, leaf in leaves(gpuwatch.collectors, "COLLECTOR", Collector).items():
        usual = leaf.settings()
        if name == "nvml" or not usual.enabled:
            continue
        head, line = f"[collectors.{name}]", f"interval_s = {usual.interval_s * INTERVAL_S / USUAL_S:.6f}"
        text = text.replace(head, f"{head}\n{line}") if head in text else f"{text}\n{head}\n{line}\n"
    return text


def _look(pid: int, metrics_port: int) -> Look:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    words = 'gpuwatch_collector_answers_total{collector="nvml",status="ok"}'
    cycles = next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(words)), 0.0)
    pids = [pid, *(child.pid for child in psutil.Process(pid).children() if _is_probe(child))]
    return Look(
        int(cycles),
        sum(map(rss_bytes, pids)) / 1e6,
        sum(len(list(Path(f"/proc/{each}/fd").iterdir())) for each in pids),
        sum(len(list(Path(f"/proc/{each}/task").iterdir())) for each in pids),
    )


def _is_probe(child: psutil.Process) -> bool:
    try:
        return "gpuwatch.agent.probe" in child.cmdline()
    except psutil.Error:
        return False  # it has ended meanwhile
