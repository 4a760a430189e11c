"""Receive, decode and assess reports: CPU and memory a node, beside Prometheus scraping the same 240 series a node."""

from __future__ import annotations

import http.server
import json
import os
import secrets
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.simulate.cluster import free_port
from tests.benchmarks.process import cpu_s, rss_bytes
from tests.benchmarks.prometheus import prometheus, wait_for
from tests.benchmarks.row import Row

SERIES = 240
SMALL, BIG = 1_250, 12_500  # nodes at 1 s, at 5 s

SETTINGS = """
[server]
listen = "127.0.0.1:{port}"
secret_file = "{directory}/secret"
operator_token_file = "{directory}/operator"
state_dir = "{directory}/state"
{tls}
[pools.h100]
nodes = ["gpu[00000-{last:05d}]"]
gpus = 8
provider = "azure"
region = "eastus"
sku = "ND96isr_H100_v5"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one load of agents cost the server, and how it was answered."""

    nodes: int
    report_us: float
    cores: float
    node_bytes: float
    answered_ratio: float  # of the reports that were due in the window
    refused: int
    refusals: str
    p50_ms: float
    p99_ms: float

    def valid(self) -> bool:
        """Nobody was refused, and the load was carried: else the figures are of another load."""
        return self.refused == 0 and self.answered_ratio > 0.99

    def words(self) -> str:
        """How it was answered."""
        said = f"answers p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.0f} ms; {self.answered_ratio:.1%} of those due"
        return f"{said}; {self.refused} refused" + (f" ({self.refusals})" if self.refusals else "")


def measure(*, quick: bool = False) -> list[Row]:
    """The budgets of the aggregator's front door, each load with its own server, from one run."""
    seconds = 8.0 if quick else 25.0
    small = _load(nodes=SMALL, interval_s=1.0, seconds=seconds)
    big = _load(nodes=BIG, interval_s=5.0, seconds=seconds + 7)
    small_tls = _load(nodes=SMALL, interval_s=1.0, seconds=seconds, tls=True)
    big_tls = None if quick else _load(nodes=BIG, interval_s=5.0, seconds=seconds + 7, tls=True)
    peer = _scraping(targets=150, seconds=seconds)
    return [
        Row(
            what="aggregator: receive, decode, assess one 8-GPU report",
            budget="≤ 120 µs CPU, ≤ 25 kB a node",
            measured=f"{small.report_us:.0f} µs, {big.node_bytes / 1e3:.1f} kB a node; {small.words()}",
            beside=f"Prometheus scraping and storing the same {SERIES} series: {peer['us']:.0f} µs a scrape, "
            f"{peer['kb']:.0f} kB a node (ratio {small.report_us / peer['us']:.2f})",
            met=small.report_us <= 120 and big.node_bytes <= 25_000 and small.valid(),
        ),
        Row(
            what="the same with TLS",
            budget="≤ 180 µs CPU, ≤ 50 kB a node",
            measured=f"{small_tls.report_us:.0f} µs, {(big_tls or small_tls).node_bytes / 1e3:.1f} kB a node; "
            f"{small_tls.words()}",
            beside=f"without TLS {small.report_us:.0f} µs",
            met=small_tls.report_us <= 180 and (big_tls or small_tls).node_bytes <= 50_000 and small_tls.valid(),
        ),
        _cores("12,500 nodes (100,000 GPUs) at 5 s", 0.3, big),
        _cores("the same with TLS", 0.45, big_tls),
    ]


def _cores(what: str, budget: float, load: Load | None) -> Row:
    if load is None:
        return Row(what=what, budget=f"≤ {budget} of a core", measured="left out by --quick")
    return Row(
        what=what,
        budget=f"≤ {budget} of a core",
        measured=f"{load.cores:.2f} of a core, {load.report_us:.0f} µs a report; {load.words()}",
        met=load.cores <= budget and load.valid(),
    )


def _load(*, nodes: int, interval_s: float, seconds: float, tls: bool = False) -> Load:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "secret").write_text(secrets.token_hex(32))
        (directory / "operator").write_text(secrets.token_hex(32))
        port = free_port()
        ca_file = _certificate(directory) if tls else None
        lines = f'tls_cert_file = "{directory}/cert.pem"\ntls_key_file = "{directory}/key.pem"' if tls else ""
        words = {"port": port, "directory": directory, "tls": lines, "last": nodes - 1}
        (directory / "aggregator.toml").write_text(SETTINGS.format(**words))
        with (directory / "out").open("wb") as out:
            server = subprocess.Popen(
                [sys.executable, "-m", "gpuwatch.wiring.aggregator", "--config", str(directory / "aggregator.toml")],
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        load: subprocess.Popen[bytes] | None = None
        try:
            scheme = "https" if tls else "http"
            wait_for(f"{scheme}://127.0.0.1:{port}/healthz", directory / "out", ca_file=ca_file)
            before = rss_bytes(server.pid)
            load = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.benchmarks.load", str(port), str(directory / "secret")),
                    *(str(directory / "progress"), str(nodes), str(interval_s), str(seconds + 2 * interval_s + 1)),
                    *(() if ca_file is None else (str(ca_file),)),
                ],
                stdout=subprocess.PIPE,
            )
            assert load.stdout is not None
            load.stdout.readline()
            time.sleep(2 * interval_s)  # every node has reported once, and once more
            cpu, answered, begun = cpu_s(server.pid), _answered(directory), time.monotonic()
            time.sleep(seconds)
            used, took = cpu_s(server.pid) - cpu, time.monotonic() - begun
            answered = _answered(directory) - answered
            rss = rss_bytes(server.pid)
            seen = json.loads(load.stdout.readline())
        finally:
            for process in (load, server):
                if process is not None:
                    process.send_signal(signal.SIGTERM)
                    process.wait(20)
    return Load(
        nodes=nodes,
        report_us=used / max(1, answered) * 1e6,
        cores=used / took,
        node_bytes=(rss - before) / nodes,
        answered_ratio=answered / (nodes / interval_s * took),
        refused=seen["refused"],
        refusals=", ".join(f"{words}: {count}" for words, count in seen["refusals"].items()),
        p50_ms=seen["p50_ms"] or float("nan"),
        p99_ms=seen["p99_ms"] or float("nan"),
    )


def _answered(directory: Path) -> int:
    return int(struct.unpack("<q", (directory / "progress").read_bytes())[0])


def _certificate(directory: Path) -> Path:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    return directory / "cert.pem"


def _scraping(*, targets: int, seconds: float) -> dict[str, float]:
    """A real Prometheus scraping and storing `targets` pages of 240 series a second."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        page = subprocess.Popen(
            [sys.executable, "-c", f"from tests.benchmarks.ingest import serve_page; serve_page({SERIES})"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Prometheus hangs up in the middle of a page when it ends
        )
        assert page.stdout is not None
        try:
            port = int(page.stdout.readline())
            jobs = "\n".join(
                f'- {{job_name: n{n}, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}' for n in range(targets)
            )
            config = f"global: {{scrape_interval: 1s}}\nscrape_configs:\n{jobs}\n"
            with prometheus(directory, config) as (pid, _):
                before = rss_bytes(pid)
                time.sleep(4)
                cpu, begun = cpu_s(pid), time.monotonic()
                time.sleep(seconds * 0.6)
                used, took = cpu_s(pid) - cpu, time.monotonic() - begun
                rss = rss_bytes(pid)
        finally:
            page.send_signal(signal.SIGTERM)
            page.wait(20)
    return {"us": used / (targets * took) * 1e6, "kb": (rss - before) / targets / 1e3}


def serve_page(series: int) -> None:
    """A metrics page of so many series; prints its port."""
    body = "\n".join(f'gpuwatch_field_{n % 30}{{gpu="{n // 30}"}} {n}.5' for n in range(series)).encode() + b"\n"

    class Page(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    signal.sigwait({signal.SIGTERM})
    os._exit(0)
