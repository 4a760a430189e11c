"""What the brain sees at the beginning of a tick: reports, heartbeats, the witnesses' words, and how well we see."""

from __future__ import annotations

from collections.abc import Callable

from gpuwatch.aggregator import casebook
from gpuwatch.aggregator.blindness import Blindness
from gpuwatch.aggregator.executor import Executor
from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.incidents import IncidentBook
from gpuwatch.aggregator.jobs import Jobs
from gpuwatch.aggregator.journal import Journal
from gpuwatch.aggregator.lives import Lives
from gpuwatch.aggregator.settings import Settings
from gpuwatch.aggregator.turns import in_turns, paused_ns
from gpuwatch.aggregator.witnesses import Witness
from gpuwatch.clock import Clock
from gpuwatch.clouds import CloudSnapshot
from gpuwatch.model.moment import Moment
from gpuwatch.model.run import RunView
from gpuwatch.model.view import FleetView
from gpuwatch.runs.book import Book
from gpuwatch.runs.track import absorb, views
from gpuwatch.schedulers import SchedulerSnapshot

SLOW_NS = 50_000_000  # runs of so many ranks are followed less often than the tick: a tenth of the time at most …
LONGEST_NS = 5 * 10**9  # … but never less often than agents report


class Senses:
    """Takes in what came since the last tick. Used by the brain's thread only."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        started: Moment,
        fleet: Fleet,
        journal: Journal,
        book: IncidentBook,
        jobs: Jobs,
        lives: Lives,
        runs: Book,
        executor: Executor,
        scheduler_witness: Witness[SchedulerSnapshot] | None,
        cloud_witness: Witness[CloudSnapshot] | None,
        lag_s: Callable[[], float],
        heard_monotonic_ns: Callable[[], int | None],
        order_key: str = "",
    ) -> None:
        self._settings = settings
        self._policies = settings.policies()
        self._clock = clock
        self._started = started
        self._blindness = Blindness(started)
        self._fleet = fleet
        self._journal = journal
        self._book = book
        self._jobs = jobs
        self._lives = lives
        self._runs = runs
        self._executor = executor
        self._scheduler_witness = scheduler_witness
        self._cloud_witness = cloud_witness
        self._lag_s = lag_s
        self._heard_monotonic_ns = heard_monotonic_ns
        self._order_key = order_key
        self._last_runs: tuple[RunView, ...] = ()
        self._runs_again_ns = 0
        self._known: set[str] = set()  # machines of the last tick
        self._scheduler_word: object = None  # the answers that were taken in already
        self._jobs_word: object = None
        self._cloud_word: object = None

    @property
    def clock_step_count(self) -> int:
        """How often our wall clock has stepped."""
        return self._blindness.clock_step_count

    def look(self, now: Moment) -> FleetView:
        """The fleet as it is now."""
        blind = self._blind(now)
        self._take_words(now)
        runs = self._follow_runs(now)
        self._fleet.settle({saga.action.slot for saga in self._executor.open()})
        return self.view(runs, blind, now)

    def _blind(self, now: Moment) -> str:
        records = self._fleet.machines()
        speakers = [r for r in records if r.heard is not None or (r.prior is not None and r.prior.goodbye is None)]
        silent = [r for r in speakers if r.heard is not None and r.heard.goodbye is not None]
        return self._blindness.look(
            now,
            lag_s=self._lag_s(),
            store_error=self._journal.error,
            heard_monotonic_ns=self._heard_monotonic_ns(),
            expected_machine_count=len(speakers) - len(silent),
            interval_s=self._fleet.interval_s(),
            tick_s=self._settings.server.tick_s,
        )

    def _take_words(self, now: Moment) -> None:
        """What the witnesses said since the last tick, and who left the fleet."""
        testimony = self._scheduler_witness.last() if self._scheduler_witness is not None else None
        if testimony is not None and testimony is not self._scheduler_word:
            self._scheduler_word = testimony
            self._fleet.absorb_scheduler(testimony.answer, testimony.asked.monotonic_ns)
            self._journal.add(self._jobs.holds(testimony.answer, now.unix_ns))
        cloud = self._cloud_witness.last() if self._cloud_witness is not None else None
        if cloud is not None and cloud is not self._cloud_word:
            self._cloud_word = cloud
            for item in self._fleet.absorb_cloud(cloud.answer, cloud.asked.monotonic_ns):
                if item.slot is not None:
                    self._fleet.join(item.machine, item.slot, now.monotonic_ns)
            self._fleet.absorb_cloud(cloud.answer, cloud.asked.monotonic_ns)
            self._journal.add(self._lives.of_cloud(cloud.answer, self._fault_of_creation, now.unix_ns))
        records = self._fleet.machines()
        if self._cloud_witness is None or cloud is not None:
            listed = None if cloud is None else {item.machine: item for item in cloud.answer.machines}
            self._journal.add(self._lives.of_fleet(records, listed, now))
        present = {record.machine for record in records}
        for machine in self._known - present:
            self._journal.add(self._jobs.retire(machine, now.unix_ns))
            if self._cloud_witness is None:
                self._journal.add(self._lives.end(machine, now.unix_ns))
        self._known = present
        for name, pool in self._settings.pools.items():
            self._journal.quota(name, pool.policy.spare_quota, now)

    def _fault_of_creation(self, key: str) -> str | None:
        action_id = key.rpartition("/")[0]
        return next((s.action.fault for s in self._executor.sagas() if s.action.action_id == action_id), None)

    def _follow_runs(self, now: Moment) -> tuple[RunView, ...]:
        """Heartbeats and jobs into runs, each live attempt to its machines."""
        if now.monotonic_ns < self._runs_again_ns:
            return self._last_runs
        paused_before_ns = paused_ns()
        testimony = self._scheduler_witness.last() if self._scheduler_witness is not None else None
        jobs = () if testimony is None or testimony is self._jobs_word else self._jobs.facts(testimony.answer)
        self._jobs_word = testimony
        self._runs, lines = absorb(self._runs, in_turns(self._fleet.take_sightings()), jobs, now, self._book.open)
        acted = {attempt: saga.action.fault for saga in self._executor.sagas() for attempt in saga.acted}
        self._journal.add(casebook.blame_ends(self._book, lines, acted))
        runs = views(self._runs, now)
        members = {machine: run for run in runs for machine in run.machines}
        for record in self._fleet.machines():
            run = members.get(record.machine)
            if run is not record.run:
                record.run = run
                record.view = None
        self._last_runs = runs
        took_ns = self._clock.monotonic_ns() - now.monotonic_ns - (paused_ns() - paused_before_ns)
        self._runs_again_ns = now.monotonic_ns + (min(10 * took_ns, LONGEST_NS) if took_ns > SLOW_NS else 0)
        return runs

    def view(self, runs: tuple[RunView, ...], blind: str, now: Moment) -> FleetView:
        """The fleet with these runs and this doubt."""
        cloud = self._cloud_witness.last() if self._cloud_witness is not None else None
        return FleetView(
            nodes=self._fleet.views(now),
            runs=runs,
            groups=self._fleet.groups(None if cloud is None else cloud.answer),
            blind_because=blind,
            started_monotonic_ns=self._started.monotonic_ns,
            policies=self._policies,
            order_key=self._order_key,
        )
