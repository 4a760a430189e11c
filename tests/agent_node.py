"""A node for tests: a real agent process with its own folder, and an aggregator that writes down what it is told."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpuwatch.model.facts.attribution import AttributionFacts
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.facts.kernel_log import KernelLogFacts
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.facts.training import TrainingFacts
from gpuwatch.model.wire import Ack, Envelope, Report
from gpuwatch.sdk import processes
from gpuwatch.sdk.small_file import small_json

KINDS: Mapping[str, type] = {
    "nvml": NvmlFacts,
    "host": HostFacts,
    "kernel_log": KernelLogFacts,
    "training": TrainingFacts,
    "attribution": AttributionFacts,
    "hands": HandsFacts,
}
PATIENCE_S = 30.0


class NotTold(LookupError):
    """This report has no facts of that collector: an answer is said when it is new."""


class Aggregator:
    """Accepts every report and keeps it, with the moment at which it came."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, Report]] = []
        self.order = ""  # for the node's hands, in each reply
        aggregator = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                report = msgspec.msgpack.decode(body, type=Report)
                aggregator.reports.append((time.monotonic(), report))
                self.send_response(200)
                answer = msgspec.json.encode(Ack(ok=True, order=aggregator.order))
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def envelopes(self, collector: str, agent_id: str = "") -> list[Envelope]:
        """Every envelope of this collector so far, of one agent or of all."""
        return [
            envelope
            for _, report in list(self.reports)
            if agent_id in ("", report.agent_id)
            for envelope in report.envelopes
            if envelope.collector == collector
        ]

    def wait(self, true: Callable[[Report], bool], what: str = "a report") -> tuple[float, Report]:
        """The first report, already here or still to come, of which this is true."""
        end_s, seen = time.monotonic() + PATIENCE_S, 0
        while time.monotonic() < end_s:
            for at_s, report in self.reports[seen:]:
                seen += 1
                with contextlib.suppress(NotTold):
                    if true(report):
                        return at_s, report
            time.sleep(0.005)
        last = [(envelope.collector, envelope.status, envelope.reason) for _, report in self.reports[-1:]
                for envelope in report.envelopes]  # fmt: skip
        raise AssertionError(f"{what} did not come; the last of {len(self.reports)} said {last}")


def envelope_of(report: Report, collector: str) -> Envelope | None:
    """This report's envelope of one collector."""
    return next((envelope for envelope in report.envelopes if envelope.collector == collector), None)


def status_is(collector: str, status: str) -> Callable[[Report], bool]:
    """A test for `Aggregator.wait`."""

    def true(report: Report) -> bool:
        envelope = envelope_of(report, collector)
        return envelope is not None and envelope.status == status

    return true


def facts_of(report: Report, collector: str) -> Any:
    """Decoded facts of one collector."""
    envelope = envelope_of(report, collector)
    if envelope is None or envelope.status != "ok":
        raise NotTold(collector)
    return msgspec.msgpack.decode(envelope.facts, type=KINDS[collector])


class Node:
    """One node's folder and agent."""

    def __init__(self, folder: Path, aggregator_url: str, *, simulated: bool = True, **environment: str) -> None:
        self.folder = folder
        self.environment = os.environ | environment
        (folder / "beats").mkdir(parents=True)
        (folder / "kernel.log").touch()
        (folder / "token").write_text("token")
        self.gpus(gpu_count=8, seed="node")
        self.nvml: dict[str, Any] = {"interval_s": 0.3, "deadline_s": 1.0, "kill_after_s": 2.0, "container": "no"}
        if simulated:
            self.nvml |= {"preload": "gpuwatch.simulate.nvml:install", "preload_argument": str(folder / "gpus.json")}
        self.host: dict[str, Any] = {}
        self.hands: dict[str, Any] = {}
        self.attribution: dict[str, Any] = {}
        # these would see the machine that tests, and start programs of their own
        self.others: dict[str, dict[str, Any]] = {
            name: {"enabled": False} for name in ("infiniband", "pcie", "services")
        }
        self.top: dict[str, Any] = {
            "slot": "gpu-001",
            "machine": "m-1",
            "aggregator": [aggregator_url],
            "token_file": str(folder / "token"),
            "state_dir": str(folder / "state"),
            "interval_s": 0.3,
            "metrics_listen": "127.0.0.1:0",
            "retry_first_s": 0.1,
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def gpus(self, **state: Any) -> None:
        """What the simulated GPUs show, replaced at once."""
        new = self.folder / "gpus.new"
        new.write_text(json.dumps(state))
        new.replace(self.folder / "gpus.json")

    def config(self) -> Path:
        path = self.folder / "agent.toml"
        tables = {
            "nvml": self.nvml,
            "host": self.host,
            "hands": self.hands,
            "attribution": self.attribution,
            **self.others,
            "kernel_log": {"source": "file", "path": str(self.folder / "kernel.log"), "interval_s": 0.2},
            "training": {"directories": [str(self.folder / "beats")], "interval_s": 0.3},
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.top.items()]
        for name, table in tables.items():
            lines += [f"[collectors.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
        path.write_text("\n".join(lines) + "\n")
        return path

    def start(self) -> subprocess.Popen[bytes]:
        """Start an agent; its errors go to agent.log."""
        with (self.folder / "agent.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "gpuwatch.wiring.agent", "--config", str(self.config())],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def probe_record(self) -> dict[str, Any]:
        """What the agent wrote down of its NVML child."""
        return small_json(self.folder / "state" / "probe-nvml.json", dict[str, Any])

    def stop(self) -> float:
        """SIGTERM to the last agent; how long it took to go."""
        begun_s = time.monotonic()
        self.processes[-1].send_signal(signal.SIGTERM)
        assert self.processes[-1].wait(PATIENCE_S) == 0
        return time.monotonic() - begun_s

    def end(self) -> None:
        """Leave nothing behind."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        with contextlib.suppress(OSError, ValueError):  # a probe that hangs outlives its agent, as it should
            record = self.probe_record()
            processes.kill_once(record["pid"], record["start_ticks"])
