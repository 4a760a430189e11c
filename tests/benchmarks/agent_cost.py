"""The agent's CPU and memory, beside nvitop-exporter: same time, interval and library; and a Python that sleeps.

A second nvitop-exporter runs with a library that answers the calls that only it makes without delay, PCIe throughput
above all (nvml.h: 20 ms each). A delay is a wait, but being woken costs CPU, so those delays make the peer dearer. The
budget is judged by the cheaper of the two peers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.benchmarks.process import cpu_s
from tests.benchmarks.row import Row
from tests.nvml_library.build import DELAYS, build
from tests.nvml_library.state import State

PEERS_OWN = (
    "nvmlDeviceGetPcieThroughput",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)
INTERVAL_S = 5
SETTLE_S = 12

SETTINGS = """
slot = "gpu01"
machine = "m1"
aggregator = ["http://127.0.0.1:{port}"]
token_file = "{directory}/token"
state_dir = "{directory}/state"
interval_s = {interval}.0
metrics_listen = "127.0.0.1:0"
[collectors.nvml]
interval_s = {interval}.0
container = "no"
[collectors.kernel_log]
source = "file"
path = "{directory}/kernel.log"
[collectors.training]
directories = ["{directory}/heartbeats"]
"""

# Takes every report, so that the agent pays for sending too.
SINK = """
import http.server, sys
class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # the answer in one piece, as ours: in two the second waits 40 ms for the first's ACK
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"ok":true}'
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
print(server.server_port, flush=True)
server.serve_forever(3600)
"""


def measure(*, quick: bool = False) -> list[Row]:
    """All of them run together; the agent's is the sum of its family."""
    seconds = 45 if quick else 120
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "token").write_text("t")
        (directory / "kernel.log").touch()
        (directory / "heartbeats").mkdir()
        state = State(directory / "nvml")
        state.all(count=8, utilization=97, temperature=61)
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(build()),
            "GPUWATCH_TEST_NVML_STATE": str(state.path),
        }
        started: list[subprocess.Popen[bytes]] = []

        shared = directory / "shared_delays.csv"
        lines = DELAYS.read_text().splitlines()
        shared.write_text("".join(f"{line}\n" for line in lines if line.split(",")[0] not in PEERS_OWN))

        def start(*command: str, delays: Path = DELAYS) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                command,
                env=environment | {"GPUWATCH_TEST_NVML_DELAYS": str(delays)},
                stdout=subprocess.PIPE if SINK in command else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            started.append(process)
            return process

        try:
            sink = start(sys.executable, "-c", SINK)
            assert sink.stdout is not None
            port = int(sink.stdout.readline())
            (directory / "agent.toml").write_text(SETTINGS.format(directory=directory, port=port, interval=INTERVAL_S))
            agent = start(sys.executable, "-m", "gpuwatch.wiring.agent", "--config", str(directory / "agent.toml"))
            exporter = [sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", "0"]
            exporter += ["--interval", str(INTERVAL_S)]
            peer, cheaper = start(*exporter), start(*exporter, delays=shared)
            sleeper = start(sys.executable, "-c", f"import time\nwhile True: time.sleep({INTERVAL_S})")
            time.sleep(SETTLE_S)
            heads = {"agent": agent.pid, "peer": peer.pid, "cheaper": cheaper.pid, "sleeper": sleeper.pid}
            families = {who: _family(pid) for who, pid in heads.items()}
            before = {who: sum(cpu_s(pid) for pid in family) for who, family in families.items()}
            time.sleep(seconds)
            share = {
                who: (sum(cpu_s(pid) for pid in family) - before[who]) / seconds for who, family in families.items()
            }
            memory = {who: sum(_pss_bytes(pid) for pid in family) for who, family in families.items()}
            resident = {who: sum(_rss_bytes(pid) for pid in family) for who, family in families.items()}
        finally:
            for process in reversed(started):
                process.send_signal(signal.SIGTERM)
            for process in started:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
    ratio, stricter = share["agent"] / share["peer"], share["agent"] / share["cheaper"]
    return [
        Row(
            what=f"agent, 8 GPUs every {INTERVAL_S} s, {seconds} s",
            budget="≤ 60 MB in all processes; ≤ 1/4 of the peer's CPU (aim: 0.3 % of a core)",
            measured=f"{share['agent'] * 100:.2f} % of a core, {resident['agent'] / 1e6:.0f} MB resident "
            f"({memory['agent'] / 1e6:.0f} MB counting shared pages once)",
            beside=f"nvitop-exporter {share['peer'] * 100:.2f} %, {resident['peer'] / 1e6:.0f} MB (ratio {ratio:.2f}); "
            f"without delay in the calls that it alone makes {share['cheaper'] * 100:.2f} % (ratio {stricter:.2f}); "
            f"a Python that only sleeps {share['sleeper'] * 100:.2f} %",
            met=max(ratio, stricter) <= 0.25 and resident["agent"] <= 60e6,
        )
    ]


def _family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def _pss_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_full_info().pss)


def _rss_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)
