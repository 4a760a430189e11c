"""`/metrics`: few series a node, rendered from the last scene in a thread of the server's pool.

A node is one series with its states as labels, joined to others by `slot`; whatever has more detail is in the API.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gpuwatch import __version__
from gpuwatch.aggregator.alert_push import Pusher
from gpuwatch.aggregator.coverage import Coverage
from gpuwatch.aggregator.executor import Executor
from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.guard import Guard
from gpuwatch.aggregator.incidents import IncidentBook
from gpuwatch.aggregator.ingest import Ingest
from gpuwatch.aggregator.money import Money
from gpuwatch.aggregator.needs import JOB, Need
from gpuwatch.aggregator.scene import Stage
from gpuwatch.aggregator.sharing import Together
from gpuwatch.aggregator.witnesses import Witness
from gpuwatch.clock import Clock


class Metrics(Collector):
    """Everything that is counted, asked at each scrape."""

    def __init__(
        self,
        *,
        clock: Clock,
        stage: Stage,
        fleet: Fleet,
        ingest: Ingest,
        executor: Executor,
        guard: Guard,
        book: IncidentBook,
        witnesses: tuple[Witness[Any], ...],
        money: Callable[[], Money],
        failures: Callable[[], int],
        covered: Callable[[], Mapping[str, Coverage]] = dict,
        ledger_error: Callable[[], str] = str,
        pushers: Sequence[Pusher] = (),
        needs: Callable[[], tuple[Need, ...]] = tuple,
        sharing: Callable[[], tuple[Together, ...]] = tuple,
        more: Sequence[Callable[[], Iterable[Metric]]] = (),
    ) -> None:
        """`more`: families of parts that tell their own."""
        self._clock = clock
        self._stage = stage
        self._fleet = fleet
        self._ingest = ingest
        self._executor = executor
        self._guard = guard
        self._book = book
        self._witnesses = witnesses
        self._money = money
        self._failures = failures
        self._covered = covered
        self._ledger_error = ledger_error
        self._pushers = pushers
        self._needs = needs
        self._sharing = sharing
        self._more = more
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page in the format that is asked for, OpenMetrics or text, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        """All families. For prometheus_client."""
        yield from self._nodes()
        yield from self._coverage()
        yield from self._runs()
        yield from self._reports()
        yield from self._actions()
        yield from self._ourselves()
        yield from self._alerts()
        yield from self._dollars()
        for tell in self._more:
            yield from tell()

    def _nodes(self) -> Iterator[Metric]:
        scene = self._stage.scene
        state = GaugeMetricFamily(
            "gpuwatch_node_state",
            "1 for each machine, with its health and lifecycle as labels.",
            labels=("slot", "machine", "pool", "health", "lifecycle"),
        )
        age = GaugeMetricFamily(
            "gpuwatch_node_report_age_seconds", "Seconds since a machine's last report.", labels=("slot", "machine")
        )
        now_ns = self._clock.monotonic_ns()
        counts: dict[tuple[str, str], int] = {}
        for record in self._fleet.machines():
            health = scene.health(record.machine) or "joining"
            state.add_metric((record.slot, record.machine, record.pool, health, str(record.lifecycle)), 1)
            counts[(record.pool, health)] = counts.get((record.pool, health), 0) + 1
            if record.heard is not None:
                age.add_metric((record.slot, record.machine), (now_ns - record.heard.last.monotonic_ns) / 1e9)
        nodes = GaugeMetricFamily("gpuwatch_nodes", "Machines by pool and health.", labels=("pool", "health"))
        for (pool, health), count in counts.items():
            nodes.add_metric((pool, health), count)
        yield state
        yield age
        yield nodes

    def _coverage(self) -> Iterator[Metric]:
        families = (
            ("nodes_expected", "Nodes that there should be.", "node_count"),
            ("nodes_seen", "Of them, those that report, or whose silence has a known reason.", "seen_node_count"),
            (
                "gpus_expected",
                "GPUs of the nodes that there should be, where their number is set, or known by their type.",
                "gpu_count",
            ),
            ("gpus_seen", "Of them, those of nodes that are seen.", "seen_gpu_count"),
            ("nodes_deaf", "Nodes that report and cannot read their kernel's log.", "deaf_node_count"),
        )
        pools = self._covered()
        for name, text, field in families:
            family = GaugeMetricFamily(f"gpuwatch_pool_{name}", text, labels=("pool",))
            for pool, found in pools.items():
                if found.gpu_count or not name.startswith("gpus"):  # not told how many: no number, and no zero
                    family.add_metric((pool,), getattr(found, field))
            yield family

    def _runs(self) -> Iterator[Metric]:
        scene = self._stage.scene
        stalled = GaugeMetricFamily(
            "gpuwatch_run_stalled",
            "1 while a live run makes no progress and no sick node explains it.",
            labels=("run",),
        )
        age = GaugeMetricFamily(
            "gpuwatch_run_progress_age_seconds", "Seconds since a live run last made progress.", labels=("run",)
        )
        still = {verdict.run for verdict in scene.run_verdicts if not verdict.explained_by}
        newest = {view.run: view for view in scene.runs}  # one series a run, whichever attempt is told last
        now_ns = self._clock.monotonic_ns()
        for run, view in newest.items():
            stalled.add_metric((run,), 1 if run in still else 0)
            age.add_metric((run,), (now_ns - view.moved_monotonic_ns) / 1e9)
        yield from (stalled, age)

    def _reports(self) -> Iterator[Metric]:
        taken = CounterMetricFamily(
            "gpuwatch_reports_taken", "Reports acknowledged: accepted, repeated or late.", labels=("how",)
        )
        for how, count in self._ingest.counts.items():
            taken.add_metric((how,), count)
        refused = CounterMetricFamily("gpuwatch_reports_refused", "Reports refused, by reason.", labels=("reason",))
        for reason, count in self._ingest.refused.items():
            refused.add_metric((reason,), count)
        unknown = CounterMetricFamily(
            "gpuwatch_unknown_collector_facts",
            "Facts kept but not understood: the agent is newer than the aggregator.",
            labels=("collector",),
        )
        for name, count in self._ingest.unknown_collectors.items():
            unknown.add_metric((name,), count)
        broken = CounterMetricFamily(
            "gpuwatch_undecodable_facts", "Facts of a known collector that did not fit.", labels=("collector",)
        )
        for name, count in self._ingest.undecodable.items():
            broken.add_metric((name,), count)
        events = CounterMetricFamily("gpuwatch_kernel_events", "Kernel events, each counted once.")
        events.add_metric((), self._ingest.event_count)
        yield from (taken, refused, unknown, broken, events)

    def _actions(self) -> Iterator[Metric]:
        under_way = GaugeMetricFamily("gpuwatch_actions_under_way", "Actions that were begun.", labels=("pool", "kind"))
        ended = GaugeMetricFamily(
            "gpuwatch_actions_ended_last_week",
            "Actions that ended, of the last week.",
            labels=("pool", "kind", "outcome"),
        )
        sagas = self._executor.sagas()
        for labels, count in Counter(
            (saga.action.pool, str(saga.action.kind)) for saga in sagas if not saga.outcome
        ).items():
            under_way.add_metric(labels, count)
        for over, count in Counter(
            (saga.action.pool, str(saga.action.kind), saga.outcome) for saga in sagas if saga.outcome
        ).items():
            ended.add_metric(over, count)
        needs = self._needs()
        stuck = GaugeMetricFamily(
            "gpuwatch_actions_stuck",
            "Actions whose present step takes longer than it should, not counting those that wait for a person.",
        )
        awaited = {(need.fault, need.reason) for need in needs}
        stuck.add_metric((), sum(1 for saga in self._executor.stuck() if (saga.action.fault, JOB) not in awaited))
        everything = GaugeMetricFamily("gpuwatch_hold_everything", "1 while the HOLD file stops every action.")
        everything.add_metric((), 1 if self._guard.hold_everything() else 0)
        yield from (under_way, ended, stuck, everything)
        yield from self._held(needs)

    def _held(self, needs: tuple[Need, ...]) -> Iterator[Metric]:
        holds = GaugeMetricFamily(
            "gpuwatch_holds", "Sick nodes and runs that are held, by reason.", labels=("pool", "reason")
        )
        for labels, count in Counter((hold.pool, hold.reason) for hold in self._stage.scene.plan.holds).items():
            holds.add_metric(labels, count)
        needed = GaugeMetricFamily(
            "gpuwatch_waiting_for_person", "Nodes and runs that wait until a person acts.", labels=("pool", "reason")
        )
        waiting: Counter[tuple[str, str]] = Counter()
        for need in needs:
            waiting[(need.pool, need.reason)] += len(need.slots)
        for labels, count in waiting.items():
            needed.add_metric(labels, count)
        shared = GaugeMetricFamily(
            "gpuwatch_shared_cause_nodes",
            "Nodes that are held for one cause which they share.",
            labels=("pool", "kind", "subject", "cause"),
        )
        for one in self._sharing():
            cause = one.cause
            shared.add_metric((one.pool, cause.rule, cause.subject.id, cause.cause), len(cause.slots))
        incidents = GaugeMetricFamily(
            "gpuwatch_open_incidents", "Incidents that are not over.", labels=("pool", "kind")
        )
        open_now = (item for item in self._book.all() if item.closed_unix_ns is None)
        for labels, count in Counter((item.pool, item.kind) for item in open_now).items():
            incidents.add_metric(labels, count)
        yield from (holds, needed, shared, incidents)

    def _ourselves(self) -> Iterator[Metric]:
        scene = self._stage.scene
        info = GaugeMetricFamily("gpuwatch_aggregator_info", "1, with the version as a label.", labels=("version",))
        info.add_metric((__version__,), 1)
        blind = GaugeMetricFamily("gpuwatch_blind", "1 while the aggregator doubts its own sight.")
        blind.add_metric((), 1 if scene.blind_because else 0)
        ticks = CounterMetricFamily("gpuwatch_ticks", "Ticks of the brain.")
        ticks.add_metric((), scene.tick_count)
        took = GaugeMetricFamily("gpuwatch_tick_duration_seconds", "How long the last tick took.")
        took.add_metric((), scene.tick_s)
        age = GaugeMetricFamily("gpuwatch_tick_age_seconds", "Seconds since the last tick.")
        age.add_metric((), (self._clock.monotonic_ns() - scene.now.monotonic_ns) / 1e9)
        failed = CounterMetricFamily("gpuwatch_tick_failures", "Ticks that failed.")
        failed.add_metric((), self._failures())
        asked = CounterMetricFamily(
            "gpuwatch_witness_answers", "Answers of scheduler and cloud.", labels=("witness", "result")
        )
        old = GaugeMetricFamily("gpuwatch_witness_age_seconds", "Age of the last good answer.", labels=("witness",))
        for witness in self._witnesses:
            asked.add_metric((witness.name, "ok"), witness.answer_count)
            asked.add_metric((witness.name, "error"), witness.error_count)
            last = witness.last()
            if last is not None:
                old.add_metric((witness.name,), (self._clock.monotonic_ns() - last.asked.monotonic_ns) / 1e9)
        ledger = GaugeMetricFamily("gpuwatch_ledger_failing", "1 while the ledger cannot be written.")
        ledger.add_metric((), 1 if self._ledger_error() else 0)
        yield from (info, blind, ticks, took, age, failed, asked, old, ledger)

    def _alerts(self) -> Iterator[Metric]:
        """The rules of Prometheus stand in for the push while its last success is old or there is none."""
        configured = GaugeMetricFamily("gpuwatch_push_configured", "Alertmanagers that incidents are pushed to.")
        configured.add_metric((), len(self._pushers))
        label = ("alertmanager",)
        age = GaugeMetricFamily(
            "gpuwatch_push_age_seconds", "Seconds since an Alertmanager last took our alerts.", labels=label
        )
        failed = CounterMetricFamily("gpuwatch_push_failures", "Pushes that were not taken.", labels=label)
        refused = CounterMetricFamily("gpuwatch_push_refused", "Alerts refused for what they are.", labels=label)
        told = CounterMetricFamily("gpuwatch_push_alerts", "Alerts taken, repeated ones too.", labels=label)
        for pusher in self._pushers:
            if (age_s := pusher.age_s()) is not None:
                age.add_metric((pusher.name,), age_s)
            failed.add_metric((pusher.name,), pusher.failure_count)
            refused.add_metric((pusher.name,), pusher.refused_count)
            told.add_metric((pusher.name,), pusher.told_count)
        yield from (configured, age, failed, refused, told)

    def _dollars(self) -> Iterator[Metric]:
        money = self._money()
        cost = GaugeMetricFamily(
            "gpuwatch_cost_dollars",
            "What was paid for since the ledger began, by pool and category.",
            labels=("pool", "category"),
        )
        burn = GaugeMetricFamily(
            "gpuwatch_burn_dollars_per_hour",
            "What is being paid for now, by pool and category.",
            labels=("pool", "category"),
        )
        for row in money.pools:
            cost.add_metric((row.pool, row.category), float(row.usd))
            burn.add_metric((row.pool, row.category), float(row.usd_per_hour_now))
        lost = GaugeMetricFamily("gpuwatch_incident_cost_dollars", "The price of all incidents so far.")
        lost.add_metric((), float(money.incidents_usd))
        waste = GaugeMetricFamily(
            "gpuwatch_waste_dollars_per_hour",
            "What is being paid for now and lost: hung, dead, recovery, idle and such.",
        )
        if not money.empty_because and not money.error:
            waste.add_metric((), float(money.waste_usd_per_hour_now))
        yield from (cost, burn, lost, waste)
