"""What the rules say of one report. A rule of facts that the report does not bring is not asked again: what it said of
them stands. Most sources are slow, most rules are theirs, and a report comes every few seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuwatch.aggregator.facts import KINDS
from gpuwatch.decide.assess import assess
from gpuwatch.model.evidence import Finding
from gpuwatch.model.moment import Moment
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule

Rules = dict[str, tuple[Rule[Any], Any]]
MOST_REMEMBERED = 1_000  # sets of collectors: a few in a sound fleet, as many as a hostile agent likes
_COLLECTOR_OF = {kind: name for name, kind in KINDS.items()}


class Examiner:
    """The rules that run when a report arrives, with their settings."""

    def __init__(self, rules: Mapping[str, tuple[Rule[Any], Any]]) -> None:
        self._rules = dict(rules)
        self._watch = {
            name: frozenset(_COLLECTOR_OF[kind] for kind in rule.watches) for name, (rule, _) in rules.items()
        }
        self._choices: dict[frozenset[str], tuple[Rules, frozenset[str]]] = {}

    def findings(
        self, view: NodeView, now: Moment, told: Iterable[str], before: tuple[Finding, ...] | None
    ) -> tuple[Finding, ...]:
        """`told`: the collectors whose envelopes this report has. `before`: what was found of the same boot; None: all
        rules are asked."""
        if before is None:
            return assess(view, now, self._rules)
        asked, kept = self._choice(frozenset(told))
        found = assess(view, now, asked)
        stands = tuple([finding for finding in before if finding.rule in kept]) if before else ()
        return found + stands if stands else found

    def _choice(self, told: frozenset[str]) -> tuple[Rules, frozenset[str]]:
        """Rules to ask, and the names of those that are not."""
        choice = self._choices.get(told)
        if choice is None:
            asked = {
                name: rule
                for name, rule in self._rules.items()
                if not self._watch[name] or not self._watch[name].isdisjoint(told)
            }
            choice = asked, frozenset(self._rules.keys() - asked.keys())
            if len(self._choices) < MOST_REMEMBERED:
                self._choices[told] = choice
        return choice
