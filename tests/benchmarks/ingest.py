"""Receive, decode and assess reports: CPU and memory a node, beside Prometheus scraping the same 240 series a node."""

from __future__ import annotations

import http.server
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from tests.benchmarks.process import cpu_s, rss_bytes
from tests.benchmarks.row import Row

SERIES = 240


def measure(*, quick: bool = False) -> list[Row]:
    """Both budgets of the aggregator's front door, from one run."""
    seconds = 15.0 if quick else 40.0
    small = _load(nodes=1_250, interval_s=1.0, seconds=seconds)
    big = _load(nodes=12_500, interval_s=5.0, seconds=seconds + 10)
    peer = _prometheus(targets=150, seconds=seconds)
    bytes_a_node = (big["rss"] - big["rss_before"]) / 12_500
    return [
        Row(
            what="aggregator: receive, decode, assess one 8-GPU report",
            budget="≤ 120 µs CPU, ≤ 25 kB a node",
            measured=f"{small['us']:.0f} µs, {bytes_a_node / 1e3:.1f} kB a node; p99 answer {small['p99_ms']:.1f} ms",
            beside=f"Prometheus scraping the same {SERIES} series: {peer['us']:.0f} µs a scrape, "
            f"{peer['kb']:.0f} kB a node (ratio {small['us'] / peer['us']:.2f})",
            met=small["us"] <= 120 and bytes_a_node <= 25_000,
        ),
        Row(
            what="12,500 nodes (100,000 GPUs) at 5 s",
            budget="≤ 0.3 of a core",
            measured=f"{big['cores']:.2f} cores, {big['us']:.0f} µs a report, p99 answer {big['p99_ms']:.1f} ms, "
            f"{big['late']:.0f} late, {big['refused']:.0f} refused",
            met=big["cores"] <= 0.3 and big["refused"] == 0,
        ),
    ]


def _load(*, nodes: int, interval_s: float, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "secret").write_text(secrets.token_hex(32))
        (directory / "operator").write_text(secrets.token_hex(32))
        port = _port()
        (directory / "aggregator.toml").write_text(
            f"""
[server]
listen = "127.0.0.1:{port}"
secret_file = "{directory}/secret"
operator_token_file = "{directory}/operator"
state_dir = "{directory}/state"
[pools.h100]
nodes = ["gpu[00000-{nodes - 1:05d}]"]
gpus = 8
provider = "azure"
region = "eastus"
sku = "ND96isr_H100_v5"
"""
        )
        server = subprocess.Popen(
            [sys.executable, "-m", "gpuwatch.wiring.aggregator", "--config", str(directory / "aggregator.toml")],
            stdout=(directory / "out").open("wb"),
            stderr=subprocess.STDOUT,
        )
        load: subprocess.Popen[bytes] | None = None
        try:
            _wait(f"http://127.0.0.1:{port}/healthz", directory / "out")
            before = rss_bytes(server.pid)
            load = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.benchmarks.load", str(port), str(directory / "secret")),
                    *(str(nodes), str(interval_s), str(seconds + 2 * interval_s)),
                ],
                stdout=subprocess.PIPE,
            )
            assert load.stdout is not None
            load.stdout.readline()
            time.sleep(2 * interval_s)  # every node has reported once, and once more
            cpu, begun = cpu_s(server.pid), time.monotonic()
            time.sleep(seconds * 0.8)
            used, took = cpu_s(server.pid) - cpu, time.monotonic() - begun
            rss = rss_bytes(server.pid)
            seen = json.loads(load.stdout.readline())
        finally:
            for process in (load, server):
                if process is not None:
                    process.send_signal(signal.SIGTERM)
                    process.wait(20)
    reports = nodes / interval_s * took
    return {
        "us": used / reports * 1e6,
        "cores": used / took,
        "rss": rss,
        "rss_before": before,
        "p99_ms": seen["p99_ms"],
        "late": seen["late"],
        "refused": seen["refused"],
    }


def _prometheus(*, targets: int, seconds: float) -> dict[str, float]:
    """A real Prometheus scraping and storing `targets` pages of 240 series a second."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        page = subprocess.Popen(
            [sys.executable, "-c", f"from tests.benchmarks.ingest import serve_page; serve_page({SERIES})"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Prometheus hangs up in the middle of a page when it ends
        )
        assert page.stdout is not None
        port = int(page.stdout.readline())
        names = ", ".join(f'"127.0.0.1:{port}"' for _ in range(1))
        jobs = "\n".join(f"- {{job_name: n{n}, static_configs: [{{targets: [{names}]}}]}}" for n in range(targets))
        (directory / "p.yml").write_text(f"global: {{scrape_interval: 1s}}\nscrape_configs:\n{jobs}\n")
        own = _port()
        prometheus = subprocess.Popen(
            [
                *("prometheus", f"--config.file={directory}/p.yml", f"--storage.tsdb.path={directory}/data"),
                f"--web.listen-address=127.0.0.1:{own}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait(f"http://127.0.0.1:{own}/-/ready", directory / "p.yml")
            before = rss_bytes(prometheus.pid)
            time.sleep(4)
            cpu, begun = cpu_s(prometheus.pid), time.monotonic()
            time.sleep(seconds * 0.6)
            used, took = cpu_s(prometheus.pid) - cpu, time.monotonic() - begun
            rss = rss_bytes(prometheus.pid)
        finally:
            for process in (prometheus, page):
                process.send_signal(signal.SIGTERM)
                process.wait(20)
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


def _port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(url: str, log: Path, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{url} did not answer; {log.read_text()[-400:]}")
