"""One tick: see, judge, plan, write down, hand over. It calls nobody outside; what it decides, the executor does.

The loop runs on the monotonic clock, whatever the wall clock does, and a tick that fails is logged and followed by the
next: nothing is remembered here that the next tick could not work out again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from gpuwatch.aggregator import casebook
from gpuwatch.aggregator.executor import Executor
from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.guard import Guard
from gpuwatch.aggregator.incidents import IncidentBook
from gpuwatch.aggregator.journal import Journal
from gpuwatch.aggregator.lifecycle import RESUMED_BY_SOMEBODY, next_lifecycle
from gpuwatch.aggregator.maintenance_windows import MaintenanceWindows
from gpuwatch.aggregator.people import People
from gpuwatch.aggregator.saga import is_urgent
from gpuwatch.aggregator.scene import Scene, Stage
from gpuwatch.aggregator.senses import Senses
from gpuwatch.aggregator.settings import Settings
from gpuwatch.aggregator.turns import in_turns, paused_ns
from gpuwatch.clock import Clock
from gpuwatch.decide.assess import assess, assess_fleet
from gpuwatch.decide.inspector import inspect
from gpuwatch.decide.judge import judge
from gpuwatch.decide.planner import make_plan
from gpuwatch.decide.spreading import spreading
from gpuwatch.errors import StoreError
from gpuwatch.model.evidence import Finding
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Hold, Plan, PlanMemory
from gpuwatch.model.states import SICK, Health, Lifecycle
from gpuwatch.model.verdict import Judgement, Verdict
from gpuwatch.model.view import FleetView, NodeView

LOG = logging.getLogger("gpuwatch.brain")
MIN_GAP_S = 0.1  # between two ticks, however often one is asked for
SHARE = 0.1  # of a core, at most, goes into ticks that nobody asked for; a huge fleet ticks less often …
LONGEST_S = 5.0  # … but never less often than agents report


class Brain:
    """Everything a tick needs, and the last judgement."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        senses: Senses,
        fleet: Fleet,
        journal: Journal,
        book: IncidentBook,
        run_is_open: Callable[[str], bool],
        people: People,
        guard: Guard,
        executor: Executor,
        granted: Callable[[], frozenset[str]],
        stage: Stage,
    ) -> None:
        self._settings = settings
        self._policies = settings.policies()
        self._tick_rules = {name: rule for name, rule in settings.rules.items() if rule[0].on == "tick"}
        self._clock = clock
        self._senses = senses
        self._fleet = fleet
        self._journal = journal
        self._book = book
        self._run_is_open = run_is_open
        self._people = people
        self._guard = guard
        self._executor = executor
        self._granted = granted
        self._stage = stage
        self._previous: Judgement | None = None
        self._windows = MaintenanceWindows()
        self.failure_count = 0
        self.clock_stepped: Callable[[], None] = lambda: None
        self._stopped = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="brain", daemon=True)

    def start(self) -> None:
        """Tick until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End after the tick under way."""
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    def wake(self) -> None:
        """Something was seen that should not wait for the next tick."""
        self._wake.set()

    def tick(self) -> Scene:
        """See, judge, plan, write down, hand over."""
        now = self._now()
        stepped = self._senses.clock_step_count
        self._book.follow()
        fleet = self._senses.look(now)
        if self._senses.clock_step_count != stepped:
            self.clock_stepped()
        busy_slots = {saga.action.slot for saga in self._executor.open()}
        findings = self._findings(fleet, now)
        judgement = judge(fleet, findings, self._previous, self._policies, now)
        self._previous = judgement
        verdicts = {verdict.machine: verdict for verdict in judgement.nodes}
        by_machine = {view.machine: view for view in fleet.nodes}
        self._journal.add(self._windows.begun(by_machine, findings, self._policies, now))
        self._open_cases(fleet, judgement, now)
        if self._journal.error and not fleet.blind_because:  # what cannot be written down must not be done
            fleet = self._senses.view(fleet.runs, f"the ledger cannot be written: {self._journal.error}", now)
        self._tell_states(by_machine, verdicts, busy_slots, now)
        memory = self._memory()
        shared = assess_fleet(fleet, judgement.nodes, now, self._settings.fleet_rules)
        shared += spreading(fleet, judgement, self._policies, memory, now)
        plan = make_plan(fleet, judgement, shared, self._policies, memory, now)
        objections = inspect(plan, fleet, judgement, shared, self._policies, memory, now)
        plan = self._without_refused(plan, {o.action_id: o.because for o in objections})
        self._journal.holds(plan.holds, now)
        self._close_cases(fleet, judgement, now)
        written = self._journal.write()
        scene = Scene(
            now=now,
            views=by_machine,
            verdicts=verdicts,
            runs=fleet.runs,
            run_verdicts=judgement.runs,
            shared=shared,
            plan=plan,
            objections=objections,
            blind_because=fleet.blind_because,
            tick_s=(self._clock.monotonic_ns() - now.monotonic_ns) / 1e9,
            tick_count=self._stage.scene.tick_count + 1,
        )
        self._stage.scene = scene
        if written and not fleet.blind_because:
            self._hand_over(plan, verdicts)
        return scene

    # judging

    def _findings(self, fleet: FleetView, now: Moment) -> dict[str, tuple[Finding, ...]]:
        """What the last report's rules found, and what time alone finds."""
        findings: dict[str, tuple[Finding, ...]] = {}
        for view in in_turns(fleet.nodes):
            record = self._fleet.get(view.machine)
            found = assess(view, now, self._tick_rules)
            if record is not None and record.findings:
                found = record.findings + found
            if found:
                findings[view.machine] = found
        return findings

    def _memory(self) -> PlanMemory:
        return PlanMemory(
            actions=self._executor.memory(),
            approved=self._people.approved(),
            faults=self._book.open,
            human_holds=self._people.holds(),
            hold_everything=self._guard.hold_everything(),
            granted=self._granted(),
        )

    def _without_refused(self, plan: Plan, refused: dict[str, str]) -> Plan:
        """What the inspector objects to becomes a hold: it must not happen, and it must not be forgotten."""
        if not refused:
            return plan
        if "" in refused:
            LOG.error("the inspector found fault with the plan: %s", refused[""])
        holds = [
            Hold(
                slot=action.slot,
                machine=action.machine,
                pool=action.pool,
                reason="inspector",
                because=f"{action.kind} was planned, and refused on inspection: {refused[action.action_id]}",
                fault=action.fault,
            )
            for action in plan.actions
            if action.action_id in refused
        ]
        kept = tuple(action for action in plan.actions if action.action_id not in refused)
        return msgspec.structs.replace(plan, actions=kept, holds=(*plan.holds, *holds))

    # writing down

    def _open_cases(self, fleet: FleetView, judgement: Judgement, now: Moment) -> None:
        opened = casebook.openings(self._book, self._known_now(fleet, judgement, now))
        if opened:
            self._journal.add(opened)
            self._journal.write()  # now: the plan names these faults
            self._book.follow()

    def _close_cases(self, fleet: FleetView, judgement: Judgement, now: Moment) -> None:
        if self._book.open:
            self._journal.add(casebook.closings(self._book, self._known_now(fleet, judgement, now)))

    def _known_now(self, fleet: FleetView, judgement: Judgement, now: Moment) -> casebook.Known:
        sagas = self._executor.sagas()
        return casebook.Known(
            fleet=fleet,
            judgement=judgement,
            busy={saga.action.fault: saga.action.action_id for saga in sagas if not saga.outcome},
            replaced={
                saga.action.fault: saga.new_machine for saga in sagas if saga.outcome == "done" and saga.new_machine
            },
            run_is_open=self._run_is_open,
            now_unix_ns=now.unix_ns,
        )

    def _tell_states(
        self, views: dict[str, NodeView], verdicts: dict[str, Verdict], busy_slots: set[str], now: Moment
    ) -> None:
        faults = self._book.open
        for machine, verdict in in_turns(verdicts.items()):
            view = views[machine]
            self._journal.health(verdict, view, faults.get(machine), now)
            record = self._fleet.get(machine)
            if record is None or view.slot in busy_slots:
                continue
            current = self._fleet.current(view.slot)
            change = next_lifecycle(
                view,
                verdict.health,
                fills_slot=current is record,
                witnessed=self._settings.scheduler is not None,
                changed_monotonic_ns=record.lifecycle_monotonic_ns,
            )
            if change is not None:
                self._change_lifecycle(view, verdict, *change, now=now)
            elif verdict.health is Health.HEALTHY and view.lifecycle is Lifecycle.IN_SERVICE:
                self._forget_override(view.slot)

    def _change_lifecycle(self, view: NodeView, verdict: Verdict, to: Lifecycle, because: str, *, now: Moment) -> None:
        LOG.debug("%s (%s) is %s: %s", view.slot, view.machine, to, because)
        self._journal.lifecycle(view, str(to), because, self._book.open.get(view.machine), now)
        self._fleet.set_lifecycle(view.machine, to, now.monotonic_ns)
        if because == RESUMED_BY_SOMEBODY and verdict.health in SICK and view.slot not in self._people.holds():
            try:
                self._people.hold(view.slot, "somebody", "resumed it in the scheduler though it is sick")
            except StoreError as error:
                LOG.error("%s", error)

    def _forget_override(self, slot: str) -> None:
        """A hold that followed from somebody's act in the scheduler ends when the node is well."""
        if self._people.holds().get(slot, "").startswith("somebody: "):
            try:
                self._people.lift(slot, "gpuwatch")
            except StoreError as error:
                LOG.error("%s", error)

    # handing over

    def _hand_over(self, plan: Plan, verdicts: dict[str, Verdict]) -> None:
        for action in plan.actions:
            if action.kind == "ask_approval":
                continue
            verdict = verdicts.get(action.machine)
            urgent = verdict is not None and is_urgent(verdict)
            try:
                self._executor.begin(action, urgent=urgent, soft=verdict is not None and verdict.soft)
            except StoreError as error:
                LOG.error("%s was not begun: %s", action.action_id, error)

    # the loop

    def _work(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            began_ns, paused_before_ns = self._clock.monotonic_ns(), paused_ns()
            try:
                self.tick()
            except Exception:
                self.failure_count += 1
                LOG.exception("a tick failed; the next one begins anew")
            took_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            worked_s = took_s - (paused_ns() - paused_before_ns) / 1e9
            pause_s = max(self._settings.server.tick_s, min(worked_s / SHARE, LONGEST_S)) - took_s
            self._stopped.wait(MIN_GAP_S)
            self._wake.wait(max(0.0, pause_s - MIN_GAP_S))

    def _now(self) -> Moment:
        return Moment(self._clock.unix_ns(), self._clock.monotonic_ns())
