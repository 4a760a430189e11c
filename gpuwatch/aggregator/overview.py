"""The whole state in one look: the headline, every slot, every incident, what is held and why, money.

Texts come from agents, schedulers and people: they are data here, and whoever shows them escapes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from gpuwatch import __version__
from gpuwatch.aggregator.executor import Executor
from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.guard import Guard
from gpuwatch.aggregator.headline import headline
from gpuwatch.aggregator.incidents import IncidentBook
from gpuwatch.aggregator.machine import Machine
from gpuwatch.aggregator.money import Money
from gpuwatch.aggregator.people import People
from gpuwatch.aggregator.saga import Saga
from gpuwatch.aggregator.scene import Scene, Stage
from gpuwatch.aggregator.settings import Settings
from gpuwatch.aggregator.witnesses import Witness
from gpuwatch.clock import Clock
from gpuwatch.model.incident import Incident
from gpuwatch.model.states import OUT, SICK, Health, Lifecycle

SETTLE_NS = 2 * 10**9  # the ledger's line of a fault is written in the tick that finds it
STEP_WORDS = {
    "drain": "draining",
    "end_job": "looking after its job",
    "empty": "waiting until it is empty",
    "create": "asking the cloud for a machine",
    "join": "waiting for the machine to report",
    "validate": "checking the machine",
    "adopt": "giving the slot to the new machine",
    "resume": "giving it back to the scheduler",
    "release": "releasing the old machine",
    "reimage": "asking the cloud for a fresh system disk",
    "sign": "waiting for a word of its hands",
    "order": "ordering a repair from its hands",
    "ended": "waiting for the attempt to end",
    "undo_resume": "giving it back to the scheduler",
    "undo_create": "releasing the unusable new machine",
    "undo_repair": "leaving it drained",
}


class Teller:
    """Reads what the other parts hold, and puts it into words and plain values."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        stage: Stage,
        fleet: Fleet,
        book: IncidentBook,
        executor: Executor,
        people: People,
        guard: Guard,
        money: Callable[[], Money],
        witnesses: tuple[Witness[Any], ...],
        needs: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        """`needs`: what waits for a person, besides the approvals."""
        self._needs = needs
        self._settings = settings
        self._clock = clock
        self._stage = stage
        self._fleet = fleet
        self._book = book
        self._executor = executor
        self._people = people
        self._guard = guard
        self._money = money
        self._witnesses = witnesses

    def overview(self) -> dict[str, Any]:
        """Everything that the page shows."""
        return {
            **self.fleet(),
            "incidents": self.incidents(limit=50),
            **self.holds(),
            "money": self.money(),
        }

    def fleet(self) -> dict[str, Any]:
        """The headline and one entry a slot."""
        scene = self._stage.scene
        nodes = self._nodes(scene)
        doubts = [scene.blind_because] if scene.blind_because else []
        doubts += [f"the {w.name} {w.trouble()}" for w in self._witnesses if w.trouble()]
        return {
            "cluster": self._settings.cluster.name,
            "version": __version__,
            "now_unix_ns": self._clock.unix_ns(),
            "tick_unix_ns": scene.now.unix_ns,
            "headline": headline(nodes, scene, self._executor.open(), self._money(), uncounted=self._uncounted()),
            "blind_because": scene.blind_because,
            "doubts": doubts,
            "hold_everything": self._guard.hold_everything(),
            "modes": {
                name: str(pool.policy.mode)
                for name, pool in self._settings.pools.items()
                if any(node["pool"] == name for node in nodes)
            },
            "counts": dict(Counter(node["health"] for node in nodes)),
            "runs": [self._run(run) for run in scene.runs],
            "nodes": nodes,
        }

    def _uncounted(self) -> int:
        money = self._money()
        found = (self._book.get(fault) for fault in set(self._book.open.values()))
        return sum(1 for incident in found if incident is not None and _is_newer(incident, money))

    def incidents(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Open ones first, then the latest, each with its price so far and what is being done."""
        sagas = {saga.action.fault: saga for saga in self._executor.sagas()}
        plan = self._stage.scene.plan
        holds = {hold.fault: hold for hold in plan.holds if hold.fault}
        asked = {action.fault for action in plan.actions if action.kind == "ask_approval"}
        money = self._money()
        return [self._incident(item, sagas, holds, asked, money) for item in self._book.all()[:limit]]

    def holds(self) -> dict[str, Any]:
        """What is not done, and why; what waits for a person."""
        scene = self._stage.scene
        money = self._money()
        asks = []
        for action in scene.plan.actions:
            if action.kind == "ask_approval":
                price = money.incidents.get(action.fault)
                asks.append(
                    {
                        "action_id": action.action_id,
                        "slot": action.slot,
                        "because": action.because,
                        "fault": action.fault,
                        "usd_so_far": None if price is None else price.usd,
                        "usd_per_hour_now": None if price is None else price.usd_per_hour_now,
                    }
                )
        return {
            "holds": [
                {
                    "slot": hold.slot,
                    "machine": hold.machine,
                    "reason": hold.reason,
                    "because": hold.because,
                    "fault": hold.fault,
                }
                for hold in scene.plan.holds
                if hold.reason != "in_progress"
            ],
            "waiting": [
                {"slot": saga.action.slot, "kind": saga.action.kind, "step": saga.step, "because": because}
                for saga in self._executor.open()
                if (because := self._executor.waiting.get(saga.action.action_id, ""))
            ],
            "human_holds": [{"slot": slot, "because": because} for slot, because in self._people.holds().items()],
            "asks": asks,
            "needs": self._needs(),
        }

    def plan(self) -> dict[str, Any]:
        """The last tick's plan, with what the inspector refused and the actions under way."""
        scene = self._stage.scene
        return {
            "at_unix_ns": scene.plan.at_unix_ns,
            "actions": scene.plan.actions,
            "holds": scene.plan.holds,
            "objections": scene.objections,
            "shared_causes": scene.shared,
            "under_way": [self._saga(saga) for saga in self._executor.open()],
            "ended": [self._saga(saga) for saga in self._executor.sagas() if saga.outcome][-50:],
        }

    def money(self) -> Money:
        """The ledger in money, as of a few seconds ago."""
        return self._money()

    def _nodes(self, scene: Scene) -> list[dict[str, Any]]:
        sagas = {saga.action.slot: saga for saga in self._executor.open()}
        holds = {(hold.slot, hold.machine): hold for hold in scene.plan.holds if hold.reason != "in_progress"}
        asked = {action.slot for action in scene.plan.actions if action.kind == "ask_approval"}
        people = self._people.holds()
        faults = self._book.open
        by_slot: dict[str, list[Machine]] = {}
        for record in self._fleet.machines():
            by_slot.setdefault(record.slot, []).append(record)
        slots = sorted(set(self._settings.places) | set(by_slot))
        nodes = []
        for slot in slots:
            records = by_slot.get(slot, [])
            current = self._fleet.current(slot)
            node = self._node(slot, current, scene, faults)
            saga, hold = sagas.get(slot), holds.get((slot, "" if current is None else current.machine))
            node["action"] = None if saga is None else self._saga(saga)
            node["held"] = None if hold is None else {"reason": hold.reason, "because": hold.because}
            node["human_hold"] = people.get(slot, "")
            node["asks_approval"] = slot in asked
            node["waiting"] = [
                {"machine": other.machine, "health": scene.health(other.machine) or "joining"}
                for other in records
                if other is not current
            ]
            nodes.append(node)
        return nodes

    def _node(self, slot: str, record: Machine | None, scene: Scene, faults: dict[str, str]) -> dict[str, Any]:
        place = self._settings.place(slot)
        if record is None:
            words = "never heard of, and on no list"
            return {
                "slot": slot,
                "machine": None,
                "pool": place.pool,
                "domain": place.domain,
                "health": "unseen",
                "lifecycle": "",
                "because": words,
                "sick": False,
                "out": False,
                "fault": None,
                "run": None,
                "report_age_s": None,
                "since_unix_ns": None,
            }
        verdict = scene.verdicts.get(record.machine)
        health = Health.JOINING if verdict is None else verdict.health
        heard = record.heard
        age_ns = None if heard is None else self._clock.monotonic_ns() - heard.last.monotonic_ns
        return {
            "slot": slot,
            "machine": record.machine,
            "pool": record.pool,
            "domain": record.domain,
            "health": str(health),
            "lifecycle": str(record.lifecycle),
            "because": "not judged yet" if verdict is None else verdict.because,
            "sick": health in SICK or (verdict is not None and verdict.cause == "absent_unexplained"),
            "out": record.lifecycle in OUT or record.lifecycle is Lifecycle.PROVISIONING,
            "fault": faults.get(record.machine),
            "run": None if record.run is None else record.run.run,
            "report_age_s": None if age_ns is None else round(age_ns / 1e9, 1),
            "since_unix_ns": None if verdict is None else verdict.since_unix_ns,
        }

    def _saga(self, saga: Saga) -> dict[str, Any]:
        action = saga.action
        return {
            "action_id": action.action_id,
            "kind": action.kind,
            "slot": action.slot,
            "machine": action.machine,
            "fault": action.fault,
            "because": action.because,
            "step": saga.step,
            "step_words": STEP_WORDS.get(saga.step, ""),
            "step_number": saga.at + 1,
            "step_count": len(saga.steps),
            "step_unix_ns": saga.step_unix_ns,
            "waiting": self._executor.waiting.get(action.action_id, ""),
            "stuck": not saga.outcome and self._executor.is_stuck(saga),
            "new_machine": saga.new_machine,
            "outcome": saga.outcome,
            "outcome_because": saga.because,
            "started_unix_ns": saga.started_unix_ns,
        }

    def _incident(
        self, incident: Incident, sagas: dict[str, Saga], holds: dict[str, Any], asked: set[str], money: Money
    ) -> dict[str, Any]:
        price = money.incidents.get(incident.fault)
        saga = sagas.get(incident.fault)
        hold = holds.get(incident.fault)
        now = ""
        if incident.closed_unix_ns is not None:
            now = f"over: {incident.closed_because}"
        elif saga is not None and not saga.outcome:
            waiting = self._executor.waiting.get(saga.action.action_id, "")
            step = f"{STEP_WORDS.get(saga.step, saga.step)} (step {saga.at + 1} of {len(saga.steps)})"
            now = step + (f": {waiting}" if waiting else "")
        elif incident.fault in asked:
            now = "waits for your approval"
        elif hold is not None and hold.reason != "in_progress":
            now = f"held ({hold.reason.replace('_', ' ')}): {hold.because}"
        elif saga is not None and saga.outcome in ("failed", "cancelled"):
            now = f"{saga.action.kind} {saga.outcome}: {saga.because}"
        elif saga is not None:
            now = f"{saga.action.kind.replace('_', ' ')} done; watching whether it is over"
        return {
            "fault": incident.fault,
            "kind": incident.kind,
            "slot": incident.slot,
            "machine": incident.machine,
            "run": incident.run,
            "pool": incident.pool,
            "cause": incident.cause,
            "because": incident.because,
            "onset_unix_ns": incident.onset_unix_ns,
            "detected_unix_ns": incident.detected_unix_ns,
            "closed_unix_ns": incident.closed_unix_ns,
            "now": now,
            "action": None if saga is None else self._saga(saga),
            "price_usd": None if price is None else price.usd,
            "price": price,
            "price_pending": _is_newer(incident, money),
            "timeline": incident.timeline,
        }

    def _run(self, run: Any) -> dict[str, Any]:
        return {
            "run": run.run,
            "attempt": run.attempt,
            "step": run.step,
            "phase": run.phase,
            "machine_count": len(run.machines),
            "usual_step_s": run.usual_step_s,
            "moved_s_ago": round((self._clock.monotonic_ns() - run.moved_monotonic_ns) / 1e9, 1),
            "checkpoint_step": run.checkpoint_step,
        }


def _is_newer(incident: Incident, money: Money) -> bool:
    """Whether the sums are of a time before it was known: then it has no price yet, and no zero."""
    counted = incident.fault in money.incidents or money.empty_because
    return (
        not counted and incident.closed_unix_ns is None and incident.detected_unix_ns > money.as_of_unix_ns - SETTLE_NS
    )
