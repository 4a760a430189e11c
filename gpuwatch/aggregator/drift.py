"""Which node differs from its pool, in what, and since when; and which node of a run has other libraries than the rest.

A node is compared only in parts that it knows: a part that could not be read is not another value. The usual value is
that of more than half of the nodes which know the part; where there is none, each node is told beside what others have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from gpuwatch.model.facts.environment import EnvironmentFacts
from gpuwatch.model.run import RunView
from gpuwatch.model.states import Lifecycle
from gpuwatch.model.view import NodeView

MOST_PARTS, MOST_PROGRAMS, MOST_LETTERS = 64, 64, 64  # of what an agent tells, more than any sound one does


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """One node, one part."""

    scope: str  # `pool NAME` or `run NAME`
    slot: str
    machine: str
    part: str
    value: str
    usual: str = ""  # empty: no value is that of more than half
    usual_count: int = 0
    known_count: int = 0  # nodes that know this part
    since_unix_ns: int | None = None


def drifts(views: Iterable[NodeView], runs: Iterable[RunView]) -> list[Drift]:
    """Every difference, by scope, part and slot."""
    known: dict[str, tuple[NodeView, EnvironmentFacts]] = {}
    pools: dict[str, dict[str, Mapping[str, str]]] = {}
    for view in views:
        facts = view.facts.get(EnvironmentFacts)
        if facts is None or view.lifecycle is Lifecycle.RETIRED:
            continue
        known[view.machine] = view, facts
        pools.setdefault(f"pool {view.pool}", {})[view.machine] = _sound(facts.parts)
    scopes = pools | {
        f"run {run.run}": {machine: _programs(known[machine][1]) for machine in run.machines if machine in known}
        for run in runs
    }
    return [
        msgspec.structs.replace(
            found,
            slot=known[found.machine][0].slot,
            since_unix_ns=known[found.machine][1].since_unix_ns.get(found.part),
        )
        for scope, parts in sorted(scopes.items())
        for found in _in_scope(scope, parts)
    ]


def in_words(drift: Drift) -> str:
    """`driver 550.54.15; 63 of 64 of pool h100 have 580.95.05`."""
    if drift.usual:
        others = f"{drift.usual_count} of {drift.known_count} of {drift.scope} have {drift.usual}"
    else:
        others = f"the {drift.known_count} nodes of {drift.scope} do not agree"
    return f"{drift.part.replace('_', ' ')} {drift.value}; {others}"


def drift_metrics(found: Iterable[Drift]) -> Iterator[Metric]:
    """How many nodes differ, by pool and part; runs come and go, so they are in the API alone."""
    family = GaugeMetricFamily(
        "gpuwatch_drifted_nodes", "Nodes that differ from most of their pool, by part.", labels=("pool", "part")
    )
    pools = Counter((one.scope.removeprefix("pool "), one.part) for one in found if one.scope.startswith("pool "))
    for labels, count in sorted(pools.items()):
        family.add_metric(labels, count)
    yield family


def _in_scope(scope: str, nodes: Mapping[str, Mapping[str, str]]) -> Iterable[Drift]:
    names = sorted({part for parts in nodes.values() for part in parts})
    for part in names:
        values = {machine: parts[part] for machine, parts in nodes.items() if part in parts}
        value, count = Counter(values.values()).most_common(1)[0]
        usual = value if 2 * count > len(values) else ""
        for machine in sorted(values):
            if values[machine] != usual:
                yield Drift(
                    scope=scope,
                    slot="",
                    machine=machine,
                    part=part,
                    value=values[machine],
                    usual=usual,
                    usual_count=count if usual else 0,
                    known_count=len(values),
                )


def _programs(facts: EnvironmentFacts) -> dict[str, str]:
    """Of each part the values that this node's programs have, as one text."""
    values: dict[str, set[str]] = {}
    for program in facts.programs[:MOST_PROGRAMS]:
        for part, value in _sound(program.parts).items():
            values.setdefault(part, set()).add(value)
    return {part: ", ".join(sorted(found)) for part, found in values.items()}


def _sound(parts: Mapping[str, str]) -> Mapping[str, str]:
    """Parts are labels: a node that tells of thousands must not make as many series."""
    if len(parts) <= MOST_PARTS and all(len(name) <= MOST_LETTERS for name in parts):
        return parts
    return {name: value for name, value in list(parts.items())[:MOST_PARTS] if len(name) <= MOST_LETTERS}
