"""The agent's `/metrics`, made from the last answers when somebody asks; reads no source and waits for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as PrometheusCollector

from gpuwatch import __version__
from gpuwatch.agent.answers import Latest, Source
from gpuwatch.agent.sender import Sender
from gpuwatch.collectors import Collector, Sample
from gpuwatch.model.facts.kernel_log import KernelLogFacts
from gpuwatch.model.wire import Status

STATUSES: tuple[str, ...] = get_args(Status)
NOT_NAMED = "unknown"  # an event that does not say which GPU
MOST_SERIES = 512  # of one kind: whoever may write to the log must not be able to fill our memory, or Prometheus'
OTHERS = "other"


class EventCounts:
    """Kernel events by kind, counted as they are read: the same Xid twice is two."""

    def __init__(self) -> None:
        self.xids: Counter[tuple[str, str]] = Counter()  # (PCI address, Xid)
        self.others: Counter[str] = Counter()  # kind
        self.lost = 0

    def add(self, facts: Any) -> None:
        """Count one reading; facts of other kinds are let by."""
        if isinstance(facts, KernelLogFacts):
            self.lost += facts.lost_count
            for event in facts.events:
                if event.xid is not None:
                    labels = (event.pci or NOT_NAMED, str(event.xid))
                    known = labels in self.xids or len(self.xids) < MOST_SERIES
                    self.xids[labels if known else (OTHERS, OTHERS)] += event.count
                else:
                    self.others[event.kind] += event.count


class Page(PrometheusCollector):
    """Every family of the page. Labels have few values: a GPU's index, a collector, a status."""

    def __init__(
        self,
        sources: Sequence[Source],
        leaves: Mapping[str, Collector[Any]],
        counts: EventCounts,
        sender: Sender | None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """`names`: what the node is called, as labels of the one series that others are joined with."""
        self._names = names
        self._sources = sources
        self._leaves = leaves
        self._counts = counts
        self._sender = sender

    def collect(self) -> Iterable[Metric]:
        """Families in the order in which their first sample comes."""
        families: dict[str, Metric] = {}
        for sample in self._samples():
            family = families.get(sample.name)
            if family is None:
                kind = CounterMetricFamily if sample.counter else GaugeMetricFamily
                family = families[sample.name] = kind(sample.name.removesuffix("_total"), sample.help)
            family.add_sample(sample.name, dict(sample.labels), float(sample.value))
        return families.values()

    def _samples(self) -> Iterable[Sample]:
        text = "Version of the agent."
        yield Sample(name="gpuwatch_agent_build_info", help=text, value=1, labels={"version": __version__})
        if self._names:
            text = "1, with the node's names as labels; join on `instance`."
            yield Sample(name="gpuwatch_node_info", help=text, value=1, labels=dict(self._names))
        for source in self._sources:
            latest = source.latest()
            yield from _of_source(source, latest)
            yield from self._of_facts(source.name, latest)
        yield from self._of_events()
        if self._sender is not None:
            yield from _of_sender(self._sender)

    def _of_facts(self, name: str, latest: Latest | None) -> Iterable[Sample]:
        leaf = self._leaves[name]
        if latest is None or latest.status != "ok" or latest.facts is None or leaf.metrics is None:
            return []  # what is not known now is a missing series, never an old or a zero one
        facts = latest.facts
        if isinstance(facts, msgspec.Raw):
            facts = msgspec.msgpack.decode(facts, type=leaf.facts)
        return leaf.metrics(facts)

    def _of_events(self) -> Iterable[Sample]:
        text = "Xid events in the kernel log, since the agent started."
        for (pci, xid), count in sorted(self._counts.xids.items()):
            labels = {"pci": pci, "xid": xid}
            yield Sample(name="gpuwatch_xid_events_total", help=text, value=count, labels=labels, counter=True)
        text = "Other events in the kernel log, since the agent started."
        for kind, count in sorted(self._counts.others.items()):
            labels = {"kind": kind}
            yield Sample(name="gpuwatch_kernel_events_total", help=text, value=count, labels=labels, counter=True)
        text = "Kernel log records that were overwritten before they were read."
        yield Sample(name="gpuwatch_kernel_log_lost_total", help=text, value=self._counts.lost, counter=True)


def _of_source(source: Source, latest: Latest | None) -> Iterable[Sample]:
    name = {"collector": source.name}
    for status, count in sorted(source.readings().items()):
        text = "Answers of a collector, by status."
        labels = name | {"status": status}
        yield Sample(name="gpuwatch_collector_answers_total", help=text, value=count, labels=labels, counter=True)
    if latest is None:
        return
    text = "1 for the status that a collector has now."
    for status in STATUSES:
        labels = name | {"status": status}
        yield Sample(name="gpuwatch_collector_status", help=text, value=status == latest.status, labels=labels)
    text = "How long the last reading took."
    yield Sample(name="gpuwatch_collector_duration_seconds", help=text, value=latest.took_s, labels=name)
    text = "When the last reading began."
    at_s = latest.at_unix_ns / 1e9
    yield Sample(name="gpuwatch_collector_reading_timestamp_seconds", help=text, value=at_s, labels=name)
    text = "Child processes that could not be killed and are left alone."
    count = latest.abandoned_count
    yield Sample(name="gpuwatch_collector_abandoned_children", help=text, value=count, labels=name)
    if latest.since_unix_ns is not None:
        text = "Since when a collector hangs."
        since_s = latest.since_unix_ns / 1e9
        yield Sample(name="gpuwatch_collector_hung_since_timestamp_seconds", help=text, value=since_s, labels=name)


def _of_sender(sender: Sender) -> Iterable[Sample]:
    text = "Reports that the aggregator accepted."
    yield Sample(name="gpuwatch_reports_accepted_total", help=text, value=sender.accepted_count, counter=True)
    text = "Of them, those that it had already."
    yield Sample(name="gpuwatch_reports_repeated_total", help=text, value=sender.repeated_count, counter=True)
    text = "Reports that the aggregator will never accept, by HTTP status; they are set aside."
    for code, count in sorted(sender.refused.items()):
        labels = {"code": str(code)}
        yield Sample(name="gpuwatch_reports_refused_total", help=text, value=count, labels=labels, counter=True)
    text = "Tries that will be repeated, by HTTP status or `unreachable`."
    for why, count in sorted(sender.failures.items()):
        labels = {"why": why}
        yield Sample(name="gpuwatch_report_failures_total", help=text, value=count, labels=labels, counter=True)
    text = "Reports that will never be delivered, by reason."
    for why, count in sorted(sender.lost().items()):
        labels = {"why": why}
        yield Sample(name="gpuwatch_reports_lost_total", help=text, value=count, labels=labels, counter=True)
    text = "Reports that wait for the aggregator."
    yield Sample(name="gpuwatch_reports_waiting", help=text, value=sender.waiting_count())
    yield Sample(name="gpuwatch_spool_bytes", help="Bytes of them on disk.", value=sender.spool_bytes())
    if sender.last_accepted_unix_ns is not None:
        text = "When the aggregator last accepted a report."
        at_s = sender.last_accepted_unix_ns / 1e9
        yield Sample(name="gpuwatch_report_accepted_timestamp_seconds", help=text, value=at_s)
