"""One slot explained: what was seen and by whom, what was concluded, what was done, what is held."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from gpuwatch.aggregator.drift import Drift, in_words
from gpuwatch.aggregator.executor import Executor
from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.incidents import IncidentBook
from gpuwatch.aggregator.people import People
from gpuwatch.aggregator.scene import Stage
from gpuwatch.clock import Clock
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.view import NodeView


def explain(
    slot: str,
    *,
    clock: Clock,
    stage: Stage,
    fleet: Fleet,
    book: IncidentBook,
    executor: Executor,
    people: People,
    drifting: Callable[[], list[Drift]] = list,
    places: Container[str] = (),
) -> dict[str, Any] | None:
    """Everything known of this slot; None if nobody has heard of it and the settings (`places`) do not name it."""
    scene = stage.scene
    records = [record for record in fleet.machines() if record.slot == slot]
    if not records and slot not in places:
        return None
    now_ns = clock.monotonic_ns()
    current = fleet.current(slot)
    machines = []
    for record in records:
        view = scene.views.get(record.machine)
        verdict = scene.verdicts.get(record.machine)
        machines.append(
            {
                "machine": record.machine,
                "fills_the_slot": record is current,
                "lifecycle": str(record.lifecycle),
                "seen": [] if view is None else _seen(view, now_ns),
                "events": [] if view is None else view.events,
                "concluded": verdict,
                "fault": book.open.get(record.machine),
            }
        )
    holds = [hold for hold in scene.plan.holds if hold.slot == slot]
    done = [saga for saga in executor.sagas() if saga.action.slot == slot]
    faults = [item for item in book.all() if item.slot == slot]
    human = people.holds().get(slot, "")
    differs = [one for one in drifting() if one.slot == slot]
    return {
        "slot": slot,
        "sentence": _sentence(slot, scene, current, holds, human, executor),
        "machines": machines,
        "held": holds,
        "human_hold": human,
        "done": [
            {
                "action": saga.action,
                "step": saga.step,
                "outcome": saga.outcome,
                "because": saga.because,
                "waiting": executor.waiting.get(saga.action.action_id, ""),
            }
            for saga in done
        ],
        "incidents": faults,
        "differs": [{"part": one.part, "words": in_words(one), "since_unix_ns": one.since_unix_ns} for one in differs],
    }


def _sentence(slot: str, scene: Any, current: Any, holds: list[Any], human: str, executor: Executor) -> str:
    if current is None:
        words = f"{slot} has no machine now: none has reported from it, and neither scheduler nor cloud names one."
        return words + (f" A person holds it: {human}." if human else "")
    verdict = scene.verdicts.get(current.machine)
    words = f"{slot} ({current.machine}) is {str(current.lifecycle).replace('_', ' ')}"
    if verdict is not None:
        words += f" and {str(verdict.health).replace('_', ' ')}: {verdict.because}"
    words += "."
    open_now = next((saga for saga in executor.open() if saga.action.slot == slot), None)
    if open_now is not None:
        waiting = executor.waiting.get(open_now.action.action_id, "")
        words += f" Under way: {open_now.action.kind}, at {open_now.step}" + (f" ({waiting})." if waiting else ".")
    held = next((hold for hold in holds if hold.machine == current.machine), None)
    if open_now is None and held is not None:
        words += f" Held ({held.reason.replace('_', ' ')}): {held.because}."
    if human:
        words += f" A person holds it: {human}."
    return words


def _seen(view: NodeView, now_ns: int) -> list[dict[str, Any]]:
    """Each witness with its word and its age."""
    seen: list[dict[str, Any]] = []
    silent_s = view.silent_s(now_ns)
    words = "no report since our start" if silent_s is None else f"last report {silent_s:.1f} s ago"
    if view.goodbye is not None:
        words += f"; it said goodbye: {view.goodbye.reason}"
    seen.append({"witness": "agent", "says": words, "age_s": silent_s})
    for source in view.sources.values():
        age_s = (now_ns - source.received_monotonic_ns) / 1e9
        says = source.status + (f": {source.reason}" if source.reason else "")
        if source.collector == "nvml" and source.status == "ok":
            nvml = view.facts.get(NvmlFacts)
            if isinstance(nvml, NvmlFacts):
                says = f"ok: driver {nvml.driver_version}, {len(nvml.gpus)} GPUs"
        seen.append({"witness": f"agent/{source.collector}", "says": says, "age_s": round(age_s, 1)})
    if view.scheduler is not None:
        says = view.scheduler.state + (f": {view.scheduler.reason}" if view.scheduler.reason else "")
        if view.scheduler.jobs:
            says += f"; jobs {', '.join(view.scheduler.jobs)}"
        age_s = (now_ns - view.scheduler.received_monotonic_ns) / 1e9
        seen.append({"witness": "scheduler", "says": says, "age_s": round(age_s, 1)})
    if view.cloud is not None:
        says = view.cloud.state + (f": {view.cloud.because}" if view.cloud.because else "")
        age_s = (now_ns - view.cloud.received_monotonic_ns) / 1e9
        seen.append({"witness": "cloud", "says": says, "age_s": round(age_s, 1)})
    return seen
