"""A real Alertmanager with a fresh storage, a local receiver of what it sends, and the desk of a centre."""

from __future__ import annotations

import http.server
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuwatch.aggregator.alert_desk import AlertDesk
from gpuwatch.aggregator.alert_runs import AlertRuns
from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.aggregator.coverage import coverage
from gpuwatch.aggregator.metrics import Metrics
from gpuwatch.aggregator.money import Money
from gpuwatch.aggregator.needs import Needs
from gpuwatch.aggregator.overview import Teller
from gpuwatch.aggregator.sharing import Sharing
from gpuwatch.aggregator.unblock import unblock
from gpuwatch.simulate.cluster import free_port
from tests.benchmarks.prometheus import wait_for
from tests.fakes_centre import Centre

CONFIG = """
route: {{receiver: hook, group_by: [fault, alertname, slot, run], group_wait: 300ms, group_interval: 500ms, repeat_interval: 4h}}
receivers:
- name: hook
  webhook_configs: [{{url: "{url}", send_resolved: true}}]
"""  # noqa: E501


class _Hook(http.server.ThreadingHTTPServer):
    request_queue_size = 256  # or a burst of pages is lost in the backlog, and told again


class Webhook:
    """Every message of Alertmanager, in order."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        webhook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                webhook.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._http = _Hook(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def told(self, label: str = "fault") -> list[tuple[str, str]]:
        """(status, this label) of each alert of each message, in order."""
        return [
            (alert["status"], alert["labels"].get(label, ""))
            for message in list(self.messages)
            for alert in message["alerts"]
        ]

    def alerts(self, **labels: str) -> list[dict[str, Any]]:
        """Every alert of every message with these labels."""
        return [
            alert
            for message in list(self.messages)
            for alert in message["alerts"]
            if labels.items() <= alert["labels"].items()
        ]


class RealAlertmanager:
    """`start` and `stop` as often as wanted: its storage stays, as on a real host."""

    def __init__(self, directory: Path, webhook: Webhook, config: str = "") -> None:
        directory.mkdir()
        self._directory = directory
        (directory / "alertmanager.yml").write_text(config or CONFIG.format(url=webhook.url))
        self.url = f"http://127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it is ready."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("prometheus-alertmanager", f"--config.file={self._directory}/alertmanager.yml"),
                    *(f"--storage.path={self._directory}/data", "--cluster.listen-address="),
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )
        wait_for(f"{self.url}/-/ready", self._directory / "log")

    def stop(self) -> None:
        """It writes down what it has told."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(20)
            self._process = None


def until(what: str, holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for it, or fail."""
    deadline_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


def desk_of(centre: Centre, money: Callable[[], Money] = lambda: Money(as_of_unix_ns=1)) -> AlertDesk:
    """What a centre would push, were it wired, with a Slurm as its scheduler."""
    store = centre.store
    assert store is not None
    policies = centre.settings.policies()
    teller = Teller(
        settings=centre.settings,
        clock=centre.clock,
        stage=centre.stage,
        fleet=centre.fleet,
        book=centre.book,
        executor=centre.executor,
        people=centre.people,
        guard=centre.guard,
        money=money,
        witnesses=(),
    )
    return AlertDesk(
        settings=AlertmanagerSettings(),
        cluster="alpha",
        page_url="http://gw",
        runs=AlertRuns(store),
        open_faults=lambda: centre.book.open,
        incidents=teller.incidents,
        shared=Sharing(stage=centre.stage, clock=centre.clock).now,
        needs=needs_of(centre).now,
        unblock=lambda need: unblock(need, policy=policies[need.pool], scheduler="slurm", url="http://gw"),
        clock=centre.clock,
    )


def needs_of(centre: Centre) -> Needs:
    """What waits for a person in this centre."""
    assert centre.store is not None
    return Needs(
        ledger=centre.store,
        stage=centre.stage,
        executor=centre.executor,
        book=centre.book,
        policies=centre.settings.policies(),
        clock=centre.clock,
    )


def metrics_of(centre: Centre, money: Callable[[], Money] = lambda: Money(as_of_unix_ns=1)) -> Metrics:
    """The metrics page of this centre."""
    return Metrics(
        clock=centre.clock,
        stage=centre.stage,
        fleet=centre.fleet,
        ingest=centre.ingest,
        executor=centre.executor,
        guard=centre.guard,
        book=centre.book,
        witnesses=(centre.scheduler_witness, centre.cloud_witness),
        money=money,
        failures=lambda: centre.brain.failure_count,
        covered=lambda: coverage(
            centre.settings, centre.fleet, centre.stage.scene, centre.book.open, set(), centre.clock.monotonic_ns()
        ),
        needs=needs_of(centre).now,
        sharing=Sharing(stage=centre.stage, clock=centre.clock).now,
    )
