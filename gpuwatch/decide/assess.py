"""FACTS -> EVIDENCE. Asks every rule, and turns "the check could not run" into Unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from gpuwatch.model.evidence import Evidence, Finding, SharedCause, Subject, Unknown
from gpuwatch.model.moment import Moment
from gpuwatch.model.policy import Policy
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import FleetView, MissingFact, NodeView
from gpuwatch.rules import FleetRule, Rule

_ONE = (Evidence, Unknown)


def assess(view: NodeView, now: Moment, rules: Mapping[str, tuple[Rule[Any], Any]]) -> tuple[Finding, ...]:
    """What every given rule says of one node. `rules`: name -> (rule, its settings).

    A missing fact, and a rule that fails by itself, is Unknown: a broken check must never take out a node.
    """
    found: list[Finding] = []
    for name, (rule, settings) in rules.items():
        try:
            for kind in rule.needs:
                view.fact(kind)
            said = rule.examine(view, now, settings)
            if said is None:
                continue
            if isinstance(said, _ONE):
                found.append(said)
            else:
                found.extend(said)
        except MissingFact as missing:
            found.append(Unknown(rule=name, subject=Subject("machine", view.machine), because=str(missing)))
        except Exception as error:
            why = f"the rule {name} failed by itself: {type(error).__name__}: {error}"
            found.append(Unknown(rule=name, subject=Subject("machine", view.machine), because=why))
    return tuple(found)


def assess_fleet(
    fleet: FleetView,
    verdicts: tuple[Verdict, ...],
    now: Moment,
    rules: Mapping[str, tuple[FleetRule[Any], Any]],
    policies: Mapping[str, Policy] | None = None,
) -> tuple[SharedCause, ...]:
    """What every given fleet rule says. `policies`, by pool, stand in for those of the fleet view where given.

    A fleet rule that fails by itself holds every node: it exists to prevent mass actions, so its silence is no leave.
    """
    if policies is not None:
        fleet = dataclasses.replace(fleet, policies=policies)
    found: list[SharedCause] = []
    for name, (rule, settings) in rules.items():
        try:
            said: Iterable[SharedCause] = tuple(rule.examine(fleet, verdicts, now, settings))
            found.extend(said)
        except Exception as error:
            why = (
                f"the fleet rule {name} failed by itself ({type(error).__name__}: {error}); nothing is done without it"
            )
            slots = tuple(sorted({view.slot for view in fleet.nodes}))
            found.append(SharedCause(rule=name, subject=Subject("us", "aggregator"), slots=slots, because=why))
    return tuple(found)
