"""The metrics page: names and units by convention, both formats, no series of what is gone, few series a node."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as open_parser
from prometheus_client.parser import text_string_to_metric_families as text_families

from gpuwatch.aggregator.metrics import Metrics
from tests.alerting import metrics_of
from tests.fakes_centre import Centre

OPEN = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
open_families: Any = open_parser.text_string_to_metric_families
UNITS = ("_seconds", "_dollars", "_dollars_per_hour", "_info", "_total", "_nodes", "_gpus")
ODD = ('quote"', "back\\slash", "new\nline", "tab\t", "ünïcødé€\u2028", "\x01\x1b[31m", "{}=,", "x" * 255)


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, mode="replace")
    made.settle()
    yield made
    assert made.store is not None
    made.store.close()


def series(metrics: Metrics, name: str, **labels: str) -> list[dict[str, str]]:
    text = metrics.render()[0].decode()
    return [
        sample.labels
        for family in text_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        pytest.param("", "text/plain; version=0.0.4", id="nobody-asked"),
        pytest.param("*/*", "text/plain; version=0.0.4", id="curl"),
        pytest.param("text/plain;version=0.0.4", "text/plain; version=0.0.4", id="old-prometheus"),
        pytest.param(OPEN, "application/openmetrics-text; version=1.0.0", id="prometheus"),
        pytest.param("text/html,application/xml;q=0.9", "text/plain; version=0.0.4", id="browser"),
        pytest.param(";;,,q=", "text/plain; version=0.0.4", id="nonsense"),
    ],
)
def test_it_speaks_the_format_that_is_asked_for(centre: Centre, accept: str, kind: str) -> None:
    text, content_type = metrics_of(centre).render(accept)
    assert content_type.startswith(kind)
    assert text.endswith(b"# EOF\n") == ("openmetrics" in kind)


def test_both_formats_say_the_same(centre: Centre) -> None:
    metrics = metrics_of(centre)
    text, opened = metrics.render()[0].decode(), metrics.render(OPEN)[0].decode()
    found = [
        {(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples}
        for families in (text_families(text), open_families(opened))
    ]
    assert found[0] == found[1]


def test_names_have_a_prefix_counters_end_in_total_and_everything_has_help(centre: Centre) -> None:
    text = metrics_of(centre).render()[0].decode()
    helped = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert helped.keys() == kinds.keys()
    assert len(kinds) > 30
    for name, kind in kinds.items():
        assert name.startswith("gpuwatch_"), name
        assert kind in ("gauge", "counter"), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert len(helped[name]) > 10, name
        assert helped[name].endswith("."), name
        if re.search("age|duration|took|cost|burn|waste", name):
            assert name.endswith(UNITS), name


def test_a_node_that_cannot_read_its_kernels_log_is_counted(centre: Centre) -> None:
    metrics = metrics_of(centre)
    assert '\ngpuwatch_pool_nodes_deaf{pool="p"} 0.0\n' in metrics.render()[0].decode()
    centre.agents["m-gpu03"].log_readable = False
    centre.seconds(10)
    text = metrics.render()[0].decode()
    assert '\ngpuwatch_pool_nodes_deaf{pool="p"} 1.0\n' in text
    assert '\ngpuwatch_pool_nodes_seen{pool="p"} 8.0\n' in text
    centre.agents["m-gpu03"].speaks = False
    centre.seconds(60)
    assert '\ngpuwatch_pool_nodes_deaf{pool="p"} 0.0\n' in metrics.render()[0].decode(), "it is unseen now"


def test_a_machine_that_was_replaced_leaves_no_series(centre: Centre) -> None:
    metrics = metrics_of(centre)
    centre.agents["m-gpu04"].speaks = False
    centre.cloud.set_state("m-gpu04", "failed")
    centre.scheduler.down.add("gpu04")
    while not centre.executor.open():
        centre.second()
    assert series(metrics, "gpuwatch_actions_under_way", pool="p", kind="replace")
    assert series(metrics, "gpuwatch_open_incidents", pool="p")
    centre.scheduler.down.discard("gpu04")
    for _ in range(400):
        centre.second()
        if not centre.book.open:
            break
    centre.seconds(3)
    assert {one["machine"] for one in series(metrics, "gpuwatch_node_state", slot="gpu04")} == {"new-gpu04-8"}
    assert "m-gpu04" not in metrics.render()[0].decode()
    assert series(metrics, "gpuwatch_actions_under_way") == []
    assert series(metrics, "gpuwatch_open_incidents") == []
    assert series(metrics, "gpuwatch_actions_ended_last_week", pool="p", kind="replace", outcome="done")
    assert len(series(metrics, "gpuwatch_node_state")) == 8


def test_what_waits_for_a_person_is_counted_and_is_not_stuck(centre: Centre) -> None:
    metrics = metrics_of(centre)
    centre.scheduler.add_job("17.0", ("gpu03",), may_requeue=False)
    centre.agents["m-gpu03"].xid(79)
    centre.seconds(900)
    assert len(centre.executor.stuck()) == 1
    assert "\ngpuwatch_actions_stuck 0.0\n" in metrics.render()[0].decode()
    assert series(metrics, "gpuwatch_waiting_for_person") == [{"pool": "p", "reason": "job"}]


@pytest.mark.needs("promtool")
def test_odd_names_break_no_scrape(centre: Centre) -> None:
    centre.second()
    for number, name in enumerate(ODD):
        record = centre.fleet.machines()[number]
        record.slot = name
    metrics = metrics_of(centre)
    text = metrics.render()[0].decode()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert {one["slot"] for one in series(metrics, "gpuwatch_node_state")} == set(ODD)
    found = open_families(metrics.render(OPEN)[0].decode())
    states = next(family for family in found if family.name == "gpuwatch_node_state")
    assert {sample.labels["slot"] for sample in states.samples} == set(ODD)


def test_a_node_more_costs_few_series(tmp_path: Path) -> None:
    counts = []
    for nodes in (4, 40):
        (tmp_path / str(nodes)).mkdir()
        made = Centre(tmp_path / str(nodes), nodes=nodes, mode="observe")
        made.seconds(20)
        text = metrics_of(made).render()[0].decode()
        counts.append(sum(1 for line in text.splitlines() if not line.startswith("#")))
        assert made.store is not None
        made.store.close()
    assert (counts[1] - counts[0]) / 36 <= 2.0
