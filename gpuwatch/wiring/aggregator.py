"""The aggregator process: `python -m gpuwatch.wiring.aggregator --config FILE`.

Builds every part from the settings, starts them in the order in which they may be needed, and stops them in reverse.
What an earlier process knew is taken from the ledger and the store before the first report is let in.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpuwatch import logs
from gpuwatch.aggregator import settings as settings_file
from gpuwatch.aggregator.alert_desk import AlertDesk
from gpuwatch.aggregator.alert_push import Pusher
from gpuwatch.aggregator.alert_runs import AlertRuns
from gpuwatch.aggregator.beginning import open_store, price_book, read_secret, restored_fleet
from gpuwatch.aggregator.brain import Brain
from gpuwatch.aggregator.clockwork import Clockwork
from gpuwatch.aggregator.committer import Committer
from gpuwatch.aggregator.coverage import coverage
from gpuwatch.aggregator.executor import Executor
from gpuwatch.aggregator.explain import explain
from gpuwatch.aggregator.guard import Guard
from gpuwatch.aggregator.incidents import IncidentBook
from gpuwatch.aggregator.ingest import Ingest
from gpuwatch.aggregator.jobs import Jobs
from gpuwatch.aggregator.journal import Journal
from gpuwatch.aggregator.lastseen import LastSeenKeeper
from gpuwatch.aggregator.lives import Lives
from gpuwatch.aggregator.metrics import Metrics
from gpuwatch.aggregator.money import MoneyDesk
from gpuwatch.aggregator.orders import Orders
from gpuwatch.aggregator.overview import Teller
from gpuwatch.aggregator.people import People
from gpuwatch.aggregator.reach import Reach
from gpuwatch.aggregator.scene import Scene, Stage
from gpuwatch.aggregator.senses import Senses
from gpuwatch.aggregator.server import Server, tune_interpreter
from gpuwatch.aggregator.settings import Settings
from gpuwatch.aggregator.webapp import application
from gpuwatch.aggregator.witnesses import Witness
from gpuwatch.clock import Clock, SystemClock
from gpuwatch.clouds import Cloud, CloudSnapshot
from gpuwatch.decide.assess import assess
from gpuwatch.errors import GpuwatchError
from gpuwatch.model.evidence import Finding
from gpuwatch.model.moment import Moment
from gpuwatch.model.view import NodeView
from gpuwatch.notify import ServiceManager
from gpuwatch.runs.track import from_ledger
from gpuwatch.schedulers import Scheduler, SchedulerSnapshot

LOG = logging.getLogger("gpuwatch.aggregator")
T = TypeVar("T")
RUN_KINDS = [
    "attempt_started",
    "attempt_ended",
    "member_left",
    "step_ended",
    "phase_began",
    "phase_ended",
    "evidence_lost",
    "evidence_back",
    "checkpoint_saved",
    "run_closed",
]


class Aggregator:
    """Every part, wired. `start` returns when reports are accepted; `stop` keeps what must survive."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        """Raises `GpuwatchError`: a secret or ledger that cannot be used, a port that is taken, a leaf that fails."""
        self.settings = settings
        self._clock = clock or SystemClock()
        server = settings.server
        secret = read_secret(server.secret_file, "server.secret_file")
        token_file = server.operator_token_file
        operator = None if token_file is None else read_secret(token_file, "server.operator_token_file")
        self._store = open_store(server.state_dir)
        try:
            self._build(secret, operator)
        except BaseException:
            self._store.close()
            raise

    def _build(self, secret: bytes, operator: bytes | None) -> None:
        settings, clock, store = self.settings, self._clock, self._store
        now = Moment(clock.unix_ns(), clock.monotonic_ns())
        self._stage = stage = Stage(Scene(now=now))
        self._fleet = fleet = restored_fleet(settings, store, now)
        self._book = book = IncidentBook(store)
        self._people = people = People(store, clock)
        scene: Callable[[], Scene] = lambda: stage.scene  # noqa: E731
        guard = Guard(
            hold_file=settings.server.hold_file, policies=settings.policies(), human_holds=people.holds, scene=scene
        )
        self._hands(clock)
        reach = Reach(
            fleet=fleet,
            guard=guard,
            scene=scene,
            policies=settings.policies(),
            scheduler=self._scheduler,
            cloud=self._cloud,
            scheduler_witness=self._scheduler_witness,
            cloud_witness=self._cloud_witness,
        )
        self._executor = Executor(store=store, reach=reach, people=people, clock=clock, changed=self.wake)
        self._committer = Committer(store)
        report_rules = {name: rule for name, rule in settings.rules.items() if rule[0].on == "report"}

        def examine(view: NodeView, moment: Moment) -> tuple[Finding, ...]:
            return assess(view, moment, report_rules)

        self._ingest = Ingest(
            fleet=fleet, secret=secret, keeper=self._committer, examine=examine, clock=clock, wake=self.wake
        )
        journal = Journal(store, now)
        jobs = Jobs(
            fleet.machine_at,
            lambda slot: settings.pools[settings.place(slot).pool].gpus,
            store.lines_of("attempt_started", "node_held", "node_let_go"),
        )
        senses = Senses(
            settings=settings,
            clock=clock,
            started=now,
            fleet=fleet,
            journal=journal,
            book=book,
            jobs=jobs,
            lives=Lives(settings, store.lines_of("life_started", "life_ended")),
            runs=from_ledger(store.lines_of(*RUN_KINDS)),
            executor=self._executor,
            scheduler_witness=self._scheduler_witness,
            cloud_witness=self._cloud_witness,
            lag_s=lambda: self._server.lag_s(),
            heard_monotonic_ns=lambda: self._ingest.last_heard_monotonic_ns,
        )
        self._brain = Brain(
            settings=settings,
            clock=clock,
            senses=senses,
            fleet=fleet,
            journal=journal,
            book=book,
            run_is_open=jobs.is_open,
            people=people,
            guard=guard,
            executor=self._executor,
            stage=stage,
        )
        self._money = MoneyDesk(
            store,
            price_book(settings),
            clock,
            alive=lambda: {record.machine for record in fleet.machines()},
            evidence_age_s=lambda: 4 * fleet.interval_s(),
        )
        self._clockwork = self._make_clockwork()
        self._brain.clock_stepped = self._clockwork.clock_stepped
        teller = Teller(
            settings=settings,
            clock=clock,
            stage=stage,
            fleet=fleet,
            book=book,
            executor=self._executor,
            people=people,
            guard=guard,
            money=self._money.latest,
            witnesses=self._witnesses,
        )
        self._pushers = self._make_pushers(book, teller)
        orders = Orders(
            token=operator, settings=settings, store=store, people=people, fleet=fleet, stage=stage, clock=clock
        )
        metrics = Metrics(
            clock=clock,
            stage=stage,
            fleet=fleet,
            ingest=self._ingest,
            executor=self._executor,
            guard=guard,
            book=book,
            witnesses=self._witnesses,
            money=self._money.latest,
            failures=lambda: self._brain.failure_count,
            covered=lambda: coverage(
                settings,
                fleet,
                stage.scene,
                book.open,
                {saga.action.slot for saga in self._executor.open()},
                clock.monotonic_ns(),
            ),
            ledger_error=lambda: journal.error,
            pushers=self._pushers,
        )
        web = application(
            teller=teller,
            explain=partial(
                explain,
                clock=clock,
                stage=stage,
                fleet=fleet,
                book=book,
                executor=self._executor,
                people=people,
                places=settings.places,
            ),
            orders=orders,
            metrics=metrics,
            alive=self.wrong,
            ready=lambda: "" if stage.scene.tick_count else "the first tick is not over yet",
        )
        server = settings.server
        self._server = Server(
            server.listen, self._ingest, web, tls_cert_file=server.tls_cert_file, tls_key_file=server.tls_key_file
        )
        self._memory = LastSeenKeeper(store, fleet)

    @property
    def url(self) -> str:
        """Where the page is."""
        return self._server.url

    def start(self) -> None:
        """Return when reports are accepted."""
        for witness in self._witnesses:
            witness.start()
        self._server.start()
        self._brain.start()
        self._executor.start()
        self._money.start()
        self._memory.start()
        for pusher in self._pushers:
            pusher.start()
        threading.Thread(target=self._clockwork.start, name="clockwork", daemon=True).start()

    def stop(self) -> None:
        """No new step, no new report; then keep what must survive."""
        for pusher in self._pushers:
            pusher.stop()
        self._executor.stop()
        self._server.stop()
        self._brain.stop()
        for witness in self._witnesses:
            witness.stop()
        self._clockwork.stop()
        self._money.stop()
        self._committer.close()
        self._memory.stop()
        self._store.close()

    def wake(self) -> None:
        """Something was seen or done that should not wait for the next tick."""
        self._brain.wake()

    def wrong(self) -> str:
        """Why this process is not well; empty if it is."""
        age_s = (self._clock.monotonic_ns() - self._stage.scene.now.monotonic_ns) / 1e9
        limit_s = max(10.0, 5 * self.settings.server.tick_s)
        if age_s > limit_s:
            return f"the last tick was {age_s:.0f} s ago"
        lag_s = self._server.lag_s()
        return f"the server is {lag_s:.0f} s behind" if lag_s > limit_s else ""

    def _hands(self, clock: Clock) -> None:
        self._scheduler: Scheduler | None = None
        self._cloud: Cloud | None = None
        self._scheduler_witness: Witness[SchedulerSnapshot] | None = None
        self._cloud_witness: Witness[CloudSnapshot] | None = None
        hand = self.settings.scheduler
        if hand is not None:
            self._scheduler = scheduler = hand.leaf.open(hand.settings)
            self._scheduler_witness = Witness("scheduler", scheduler.snapshot, hand.interval_s, clock)
        hand = self.settings.cloud
        if hand is not None:
            self._cloud = cloud = hand.leaf.open(hand.settings)
            self._cloud_witness = Witness("cloud", cloud.snapshot, hand.interval_s, clock)
        self._witnesses = tuple(w for w in (self._scheduler_witness, self._cloud_witness) if w is not None)

    def _make_pushers(self, book: IncidentBook, teller: Teller) -> tuple[Pusher, ...]:
        settings = self.settings.alertmanager
        if not settings.urls:
            return ()
        scheme = "http" if self.settings.server.tls_cert_file is None else "https"
        host, _, port = self.settings.server.listen.rpartition(":")
        host = socket.gethostname() if host in ("0.0.0.0", "[::]") else host  # a link that leads somewhere
        desk = AlertDesk(
            settings=settings,
            cluster=self.settings.cluster.name,
            page_url=settings.page_url or f"{scheme}://{host}:{port}",
            runs=AlertRuns(self._store),
            open_faults=lambda: book.open,
            incidents=teller.incidents,
            clock=self._clock,
        )
        return tuple(Pusher(url, settings, desk.alerts, self._clock) for url in settings.urls)

    def _make_clockwork(self) -> Clockwork:
        hand = self.settings.cloud
        return Clockwork(
            store=self._store,
            clock=self._clock,
            event_days=self.settings.server.event_days,
            cloud=self._cloud,
            provider="" if hand is None else hand.kind,
            bill_every_s=30.0 if hand is None else min(30.0, max(5.0, 6 * hand.interval_s)),
        )


def run(config: Path) -> int:
    """Serve until SIGTERM or SIGINT. 0; raises `GpuwatchError` where it cannot begin."""
    logs.set_up(logging.INFO, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    service = ServiceManager()
    aggregator = Aggregator(settings_file.load(config))
    aggregator.start()
    tune_interpreter()
    if aggregator.url.startswith("http://") and not aggregator.url.startswith(("http://127.", "http://[::1]")):
        LOG.warning("%s is reachable without TLS: tokens travel in the clear; set server.tls_cert_file", aggregator.url)
    print(f"gpuwatch aggregator: {aggregator.url}", flush=True)
    service.ready(f"serving {aggregator.url}")
    beat_s = min(10.0, (service.watchdog_s or 30.0) / 3)
    while not ended.wait(beat_s):
        wrong = aggregator.wrong()
        if not wrong:  # a brain that hangs is ended by the watchdog, and begins again from the ledger
            service.alive(f"serving {aggregator.url}")
    service.stopping("keeping what must survive")
    aggregator.stop()
    return 0


def main() -> None:
    """The module's command line."""
    parser = argparse.ArgumentParser(prog="gpuwatch aggregator")
    parser.add_argument("--config", type=Path, default=Path("/etc/gpuwatch/aggregator.toml"))
    try:
        code = run(parser.parse_args().config)
    except GpuwatchError as error:
        print(f"gpuwatch: {error}", file=sys.stderr)
        code = error.exit_code
    sys.stdout.flush()
    logging.shutdown()
    os._exit(code)  # a cloud call that hangs in a thread must not keep a stopped aggregator alive


if __name__ == "__main__":
    main()
