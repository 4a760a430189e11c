"""A real Prometheus, the peer of two benchmarks, and how to wait until a server answers."""

from __future__ import annotations

import contextlib
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from gpuwatch.simulate.cluster import free_port


@contextlib.contextmanager
def prometheus(directory: Path, config: str) -> Iterator[tuple[int, str]]:
    """Run it on this configuration; its pid and address. `FileNotFoundError` where it is not installed."""
    (directory / "prometheus.yml").write_text(config)
    url = f"http://127.0.0.1:{free_port()}"
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={directory}/prometheus.yml"),
                *(f"--storage.tsdb.path={directory}/data", f"--web.listen-address={url.removeprefix('http://')}"),
            ],
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(f"{url}/-/ready", directory / "prometheus.log")
        yield process.pid, url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def wait_for(url: str, log: Path, *, seconds: float = 60.0, ca_file: Path | None = None) -> None:
    """Until it answers 200. `TimeoutError` with the log's last words."""
    context = None if ca_file is None else ssl.create_default_context(cafile=ca_file)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=1, context=context):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{url} did not answer; {log.read_text()[-400:]}")
