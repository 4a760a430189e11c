"""The three sentences that a stranger reads first: what is sick, what is being done, what it costs. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gpuwatch.aggregator.cost_words import cost_words, dollars, waste_split, wasteful
from gpuwatch.aggregator.money import Money
from gpuwatch.aggregator.saga import Saga
from gpuwatch.aggregator.scene import Scene

_DOUBTED = ("suspect", "unknown", "unseen")  # silent, or not looked into: neither sick nor well, and never green

_BEING = {
    "replace": "replaced",
    "reimage": "reimaged",
    "repair": "repaired",
    "drain": "drained",
    "resume": "given back",
}


def headline(
    nodes: list[dict[str, Any]], scene: Scene, under_way: list[Saga], money: Money, *, uncounted: int = 0
) -> dict[str, Any]:
    """State, what is being done, cost: a sentence each, and a tone (good | warn | bad).

    `nodes`: as in the overview. `uncounted`: incidents that are newer than the sums.
    """
    sick = [node for node in nodes if node["sick"]]
    acted = Counter(str(saga.action.kind) for saga in under_way)
    held = {hold.slot for hold in scene.plan.holds if hold.reason != "in_progress"}
    doubted = sum(1 for node in nodes if node["health"] in _DOUBTED)
    asked = sum(1 for action in scene.plan.actions if action.kind == "ask_approval")
    state = f"{len(sick)} of {_count(len(nodes), 'node')} {'is' if len(sick) == 1 else 'are'} sick."
    if not nodes:
        state = "No node is known yet."
    elif not sick:
        well = sum(1 for node in nodes if node["health"] == "healthy")
        if well == len(nodes):
            state = f"All {len(nodes)} nodes are well." if well > 1 else "The one node is well."
        else:
            unsure = f"; {doubted} not known to be well" if doubted else ""
            state = f"None of {_count(len(nodes), 'node')} is sick{unsure}."
    stalled = [verdict for verdict in scene.run_verdicts if not verdict.explained_by]
    if stalled:
        still = f"{_count(len(stalled), 'run')} {'stands' if len(stalled) == 1 else 'stand'} still."
        state = f"{state} {still}" if sick else f"{still} {state}"
    doing = [f"{count} being {word}" for kind, word in _BEING.items() if (count := acted[kind])]
    doing += [f"{_count(acted['restart_job'], 'run')} being restarted"] if acted["restart_job"] else []
    doing += [f"{len(held)} held"] if held else []
    doing += [f"{asked} waiting for your approval"] if asked else []
    cost = cost_words(money, uncounted=uncounted)
    if not doing and not sick and not stalled and wasteful(money):
        idle = f"Nothing is being done, and {dollars(money.waste_usd_per_hour_now)}/h buy nothing: {waste_split(money)}"
        doing = [idle]
    return {
        "state": state,
        "doing": (", ".join(doing) + ".") if doing else "",
        "cost": cost["sentence"],
        "money": cost,
        "tone": "bad" if sick or stalled else "warn" if scene.blind_because or doubted or not nodes else "good",
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
