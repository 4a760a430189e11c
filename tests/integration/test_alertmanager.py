"""Real Prometheus and Alertmanager around a real cluster: one fault, one page, and its end."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.aggregator.alert_push import Pusher
from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.aggregator.alerts import Alert
from gpuwatch.clock import SystemClock
from tests.alerting import RealAlertmanager, Webhook, metrics_of, until
from tests.benchmarks.prometheus import prometheus
from tests.fakes_centre import Centre
from tests.living_cluster import Living

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: ["{root}/alert_rules/*.yml"]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["{alertmanager}"]}}]}}]}}
scrape_configs:
- job_name: gpuwatch-aggregator
  static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
- job_name: gpuwatch-agent
  static_configs: [{{targets: [{agents}]}}]
"""

pytestmark = pytest.mark.needs("prometheus-alertmanager", "promtool")


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    made = Webhook()
    yield made
    made.close()


@pytest.fixture
def alertmanager(tmp_path: Path, webhook: Webhook) -> Iterator[RealAlertmanager]:
    made = RealAlertmanager(tmp_path / "alertmanager", webhook)
    made.start()
    yield made
    made.stop()


def ask(url: str, query: str) -> dict[str, float]:
    """An instant query: `slot`, `instance` or `health` label -> value."""
    with urllib.request.urlopen(f"{url}/api/v1/query?query={urllib.parse.quote(query)}", timeout=5) as answer:
        found = json.loads(answer.read())["data"]["result"]
    return {
        next((row["metric"][name] for name in ("slot", "instance", "health") if name in row["metric"]), ""): float(
            row["value"][1]
        )
        for row in found
    }


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def lint(text: str) -> str:
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def agent_port(living: Living, slot: str) -> int:
    """The agent took any free port, and said which."""
    log = living.cluster.machine_directory(slot) / "log"
    said = re.findall(r"metrics on port (\d+)", log.read_text()) if log.exists() else []
    return int(said[-1]) if said else 0


def test_a_dead_node_pages_once_with_its_story_and_its_end_is_told(
    tmp_path: Path, webhook: Webhook, alertmanager: RealAlertmanager
) -> None:
    living = Living(tmp_path / "cluster", node_count=3)
    cluster = living.cluster
    with cluster.config.open("a") as config:
        config.write(f'\n[alertmanager]\nurls = ["{alertmanager.url}"]\nresend_s = 2\n')
    shared = cluster.directory / "cluster.json"
    shared.write_text(shared.read_text().replace('metrics_listen = \\"\\"', 'metrics_listen = \\"127.0.0.1:0\\"'))
    try:
        living.start(gang=3)
        ports = {slot: agent_port(living, slot) for slot in living.slots}
        words = {
            "root": ROOT,
            "alertmanager": alertmanager.url.removeprefix("http://"),
            "port": cluster.port,
            "agents": ", ".join(f'"127.0.0.1:{port}"' for port in ports.values()),
        }
        (tmp_path / "prometheus").mkdir()
        with prometheus(tmp_path / "prometheus", PROMETHEUS.format(**words)) as (_, url):
            until("all is scraped", lambda: list(ask(url, "up").values()) == [1.0] * 4)
            pages = page(cluster.port) + page(ports[living.slots[0]])
            assert lint(page(cluster.port)) == ""
            assert lint(page(ports[living.slots[0]])) == ""
            cluster.kill_node(living.slots[1])
            living.until("it pages", 30, lambda: bool(webhook.alerts(alertname="GpuwatchNodeDead")))
            (paged,) = webhook.alerts(alertname="GpuwatchNodeDead")
            until("Prometheus knows it", lambda: ask(url, 'gpuwatch_node_state{health="dead"}') != {})
            living.until("its end is told", 60, lambda: len(webhook.alerts(alertname="GpuwatchNodeDead")) > 1)
            time.sleep(3)  # resent, scraped and evaluated some more
            pages += page(cluster.port)
        found = webhook.alerts(alertname="GpuwatchNodeDead")
        assert [alert["status"] for alert in found] == ["firing", "resolved"]
        labels = paged["labels"]
        assert found[1]["labels"] == labels
        assert (labels["slot"], labels["source"], labels["pool"]) == (living.slots[1], "gpuwatch", "h100")
        assert paged["annotations"]["runbook_url"] == "docs/runbooks/GpuwatchNodeDead.md"
        assert "detected: " in paged["annotations"]["story"]
        assert found[1]["annotations"]["now"].startswith("over: ")
        assert found[1]["annotations"]["price"].startswith("$")
        others = {a["labels"]["alertname"] for a in webhook.alerts(source="rules")}
        assert others <= {"GpuwatchWatchdog"}  # one fault, one page
    finally:
        cluster.stop()
    there = set(re.findall(r"^(?:# TYPE )?(gpuwatch_\w+)", pages, re.MULTILINE))  # without a sample while all is well
    for source in (ROOT / "gpuwatch").rglob("*.py"):  # simulated nodes have not every device
        there |= set(re.findall(r'"(gpuwatch_\w+)"', source.read_text()))
    rules = "".join(re.sub("#.*|(summary|description|runbook_url):.*", "", path.read_text()) for path in named())
    assert set(re.findall(r"\bgpuwatch_\w+", rules)) - there == set()


def named() -> list[Path]:
    return sorted((ROOT / "alert_rules").glob("*.yml"))


def an_alert(fault: str, ended_unix_ns: int | None = None) -> Alert:
    return Alert(
        id=fault,
        labels={"alertname": "GpuwatchNodeDead", "fault": fault},
        annotations={"summary": fault, "now": "", "story": ""},
        started_unix_ns=time.time_ns() - 10**9,
        ended_unix_ns=ended_unix_ns,
        link="http://gw/",
    )


def test_alertmanager_goes_away_and_comes_back(webhook: Webhook, alertmanager: RealAlertmanager) -> None:
    alerts = {name: an_alert(name) for name in ("stays", "ends")}
    clock, settings = SystemClock(), AlertmanagerSettings()

    def pusher() -> Pusher:
        return Pusher(alertmanager.url, settings, lambda: tuple(alerts.values()), clock)

    first = pusher()
    first.turn()
    until("both page", lambda: sorted(webhook.told()) == [("firing", "ends"), ("firing", "stays")])
    alertmanager.stop()
    alerts["new"] = an_alert("new")
    first.turn()
    assert first.failure_count == 1
    alerts["ends"] = msgspec.structs.replace(alerts["ends"], ended_unix_ns=time.time_ns())
    alerts["came and went"] = an_alert("came and went", time.time_ns())
    alertmanager.start()
    webhook.messages.clear()
    first.turn()
    expected = [("firing", "new"), ("resolved", "ends")]
    until("the new one and the end are told", lambda: sorted(webhook.told()) == expected)
    pusher().turn()  # the next aggregator tells the same
    time.sleep(1.5)
    assert sorted(webhook.told()) == expected


@pytest.mark.needs("amtool")
def test_a_runs_alert_is_quiet_while_its_nodes_incident_is_open(tmp_path: Path, webhook: Webhook) -> None:
    example = (ROOT / "deploy" / "alertmanager.example.yml").read_text()
    config = re.sub(r"http://127.0.0.1:9094/\w+", webhook.url, example).replace("group_wait: 10s", "group_wait: 1s")
    server = RealAlertmanager(tmp_path / "alertmanager", webhook, config)
    server.start()
    common = {"severity": "critical", "run": "opt"}
    node = {"alertname": "GpuwatchNodeDead", "source": "gpuwatch", "slot": "gpu01", "kind": "node_dead", "fault": "f1"}
    run = {"alertname": "GpuwatchRunStalled", "source": "gpuwatch", "kind": "run_stalled", "fault": "f2"}
    stand_in = {"alertname": "GpuwatchNodeDead", "source": "rules", "slot": "gpu01", "severity": "critical"}
    other = run | {"run": "other", "fault": "f3", "severity": "critical"}
    now_ns = time.time_ns()  # one that began before the group's wait is told at once, with what keeps it quiet or not
    alerts = [
        msgspec.structs.replace(an_alert(str(number)), labels=labels, started_unix_ns=now_ns)
        for number, labels in enumerate((common | node, common | run, stand_in, other))
    ]
    try:
        Pusher(server.url, AlertmanagerSettings(), lambda: alerts, SystemClock()).turn()
        until("two page", lambda: len(webhook.messages) == 2)
        time.sleep(1.0)
        assert sorted(webhook.told()) == [("firing", "f1"), ("firing", "f3")]
    finally:
        server.stop()


def test_prometheus_scrapes_while_a_hundred_nodes_fail(tmp_path: Path) -> None:
    centre = Centre(tmp_path, nodes=120, mode="observe")
    metrics = metrics_of(centre)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text, content_type = metrics.render(self.headers.get("Accept", ""))
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\nscrape_configs:\n- job_name: gpuwatch\n"
    config += f'  static_configs: [{{targets: ["127.0.0.1:{server.server_address[1]}"]}}]\n'
    try:
        centre.seconds(70)
        (tmp_path / "prometheus").mkdir()
        with prometheus(tmp_path / "prometheus", config) as (_, url):
            until("it scrapes", lambda: 1.0 in ask(url, "up").values())
            for number, agent in enumerate(list(centre.agents.values())[:100]):
                agent.xid(79)
                if number % 10 == 9:
                    centre.second()
            centre.seconds(8)
            failed = 'sum by (health) (gpuwatch_nodes{health="driver_failed"})'
            until("Prometheus knows all of them", lambda: ask(url, failed) == {"driver_failed": 100.0})
            assert set(ask(url, "min_over_time(up[1m])").values()) == {1.0}  # no scrape failed, or was refused
            series = ask(url, "max_over_time(scrape_samples_scraped[1m])")
            assert all(count < 120 * 3 + 200 for count in series.values()), series
        assert lint(metrics.render()[0].decode()) == ""
    finally:
        server.shutdown()
        server.server_close()
        assert centre.store is not None
        centre.store.close()
