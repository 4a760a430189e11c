"""Every query of every dashboard, asked of a real Prometheus that scraped a living cluster through a fault."""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dashboards.build import DASHBOARDS
from gpuwatch.simulate.cluster import free_port
from gpuwatch.training import Heartbeat
from tests.agent_node import Aggregator, Node
from tests.benchmarks.prometheus import prometheus
from tests.living_cluster import Living

CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
- job_name: gpuwatch-aggregator
  static_configs: [{{targets: ["127.0.0.1:{aggregator}"], labels: {{cluster: demo}}}}]
- job_name: gpuwatch-agent
  static_configs: [{{targets: ["127.0.0.1:{agent}"], labels: {{cluster: demo}}}}]
"""
XID = "NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SEEN_S = 2.5  # two scrapes


class Asked:
    """A Prometheus that has seen the story, and from when to when."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.begun_s = time.time()
        self.ended_s = 0.0
        self.told: set[str] = set()  # names of the aggregator's page, also of those without a sample

    def get(self, path: str, **words: Any) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words)}", timeout=10) as answer:
            return json.loads(answer.read())["data"]

    def over_the_story(self, expr: str) -> list[Any]:
        """Its series at any second of the story."""
        found = self.get("query_range", query=expr, start=self.begun_s, end=self.ended_s, step=1)["result"]
        assert isinstance(found, list)
        return found

    def label_values(self, query: str) -> list[str]:
        """As Grafana asks for a variable's values."""
        inside = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert inside, query
        series = self.get("series", **{"match[]": inside[1], "start": self.begun_s, "end": self.ended_s})
        return sorted({one[inside[2]] for one in series if inside[2] in one})


def shows(living: Living, metric: str) -> bool:
    """Whether the aggregator's page has a sample of it."""
    return any(
        line.startswith((f"{metric} ", f"{metric}{{")) for line in (living.get("metrics") or b"").decode().splitlines()
    )


def pci_bus(folder: Path, *, gpu_count: int) -> Path:
    """A folder as the kernel shows its PCI devices."""
    for number in range(gpu_count):
        device = folder / f"0000:{0x1A + number:02x}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    return folder


def refuse_one(living: Living) -> None:
    """A report from nobody."""
    url = f"http://127.0.0.1:{living.cluster.port}/v1/reports"
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(urllib.request.Request(url, data=b"x"), timeout=5)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """Two nodes train and one of them hangs; another dies while a person holds everything, and is then replaced."""
    folder = tmp_path_factory.mktemp("dashboards")
    living = Living(folder / "cluster")
    centre = Aggregator()
    node = Node(folder / "agent", centre.url)
    port = free_port()
    node.top |= {"slot": living.slots[0], "metrics_listen": f"127.0.0.1:{port}"}
    node.host["interval_s"] = 0.5
    node.nvml["pci_devices"] = str(pci_bus(folder / "pci", gpu_count=8))
    beat = Heartbeat("opt", rank=0, world_size=1, directory=node.folder / "beats")
    config = CONFIG.format(aggregator=living.cluster.port, agent=port)
    (folder / "prometheus").mkdir()
    try:
        with prometheus(folder / "prometheus", config) as (_, url):
            story = Asked(url)
            node.start()
            for step in range(3):
                beat.step(step)
            centre.wait(lambda report: report.sequence > 1, "the agent's second report")
            with (node.folder / "kernel.log").open("a") as log:
                log.write(f"[{time.monotonic():.6f}] {XID}\n")
            living.start(gang=2)
            hold = living.cluster.directory / "HOLD"
            hold.touch()
            refuse_one(living)
            living.cluster.kill_node(living.slots[-1])  # the gang is on the first two
            living.until("the dead node is held", 40, lambda: shows(living, "gpuwatch_holds"))
            time.sleep(SEEN_S)
            living.cluster.hang_rank(living.slots[0], 0)
            hold.unlink()
            living.until("it was replaced", 60, lambda: shows(living, "gpuwatch_actions_ended_last_week"))
            time.sleep(SEEN_S)
            page = (living.get("metrics") or b"").decode()
            story.told = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
            story.ended_s = time.time()
            yield story
    finally:
        living.cluster.stop()
        node.end()
        centre.close()


def filled(expr: str, story: Asked, values: Mapping[str, str]) -> str:
    """The query as Grafana sends it."""
    for name, value in values.items():
        expr = expr.replace(f"${name}", value)
    return expr.replace("$__range", f"{int(story.ended_s - story.begun_s)}s")


def values_of(board: Mapping[str, Any], story: Asked) -> dict[str, str]:
    """Each variable's values, asked in the order of the dashboard: all of them, or the first."""
    chosen: dict[str, str] = {}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = story.label_values(filled(variable["query"]["query"], story, chosen))
            assert found, variable["name"]
            chosen[variable["name"]] = variable.get("allValue") or found[0]
    return chosen


@pytest.mark.needs("prometheus")
@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_returns_data(name: str, asked: Asked) -> None:
    board = DASHBOARDS[name]()
    values = values_of(board, asked)
    silent = [
        f"{panel['title']}: {target['expr']}"
        for panel in board["panels"]
        for target in panel.get("targets", [])
        if not asked.over_the_story(filled(target["expr"], asked, values))
    ]
    assert not silent, "\n".join(silent)


@pytest.mark.needs("prometheus")
def test_every_part_of_a_query_is_a_metric_of_ours(asked: Asked) -> None:
    """`a or b` returns data where `a` is misspelt: so each name is looked for by itself."""
    known = set(asked.get("label/__name__/values")) | asked.told
    for name in DASHBOARDS:
        for panel in DASHBOARDS[name]()["panels"]:
            for target in panel.get("targets", []):
                for metric in re.findall(r"\bgpuwatch_\w+", target["expr"]):
                    assert metric in known, f"{name}: {panel['title']}: {metric}"


@pytest.mark.needs("prometheus")
def test_the_fleets_first_line_tells_the_story(asked: Asked) -> None:
    values = values_of(DASHBOARDS["fleet"](), asked)
    most: dict[str, float] = {}
    for panel in DASHBOARDS["fleet"]()["panels"]:
        if panel["type"] == "stat":
            series = asked.over_the_story(filled(panel["targets"][0]["expr"], asked, values))
            most[panel["title"]] = max(float(value) for one in series for _, value in one["values"])
    assert most["Sick nodes"] >= 1
    assert most["Held"] >= 1
    assert most["Being acted on"] >= 1
    assert most["Everything held"] == 1
    assert most["Paid now"] > 0
    assert most["Wasted now"] > 0
    assert most["Incidents so far"] > 0
