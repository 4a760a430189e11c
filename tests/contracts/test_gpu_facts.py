"""Whatever a node says of its GPUs: no rule fails over it, no sentence is endless, what is missing is no fault."""

from __future__ import annotations

import typing
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import gpuwatch.rules
from gpuwatch.decide.assess import assess
from gpuwatch.model.evidence import Evidence, Unknown
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts, Xid
from gpuwatch.registry import leaves
from gpuwatch.rules import FleetRule, Rule
from tests.fakes import T0, node_view

RULES: dict[str, tuple[Rule[Any], Any]] = {
    name: (rule, rule.settings())
    for name, rule in leaves(gpuwatch.rules, "RULE", Rule, FleetRule).items()
    if isinstance(rule, Rule)
}
INTS = st.one_of(st.integers(-3, 40), st.integers(-(1 << 63), (1 << 63) - 1))
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: INTS,
    float: st.floats(),
    bool: st.booleans(),
    str: st.text(max_size=40),
    tuple[int, ...]: st.lists(INTS, max_size=3000).map(tuple),
    tuple[int, int, int, int, int]: st.tuples(INTS, INTS, INTS, INTS, INTS),
}


def strategy(kind: Any) -> st.SearchStrategy[Any]:
    """Anything that a field of this type can hold once it is decoded."""
    if typing.get_origin(kind) is typing.Annotated:
        return st.floats(0.0, 1.0)
    parts = typing.get_args(kind) if type(None) in typing.get_args(kind) else (kind,)
    return st.one_of([st.none() if part is type(None) else VALUES.get(part, st.floats(0.0, 1.0)) for part in parts])


HINTS = typing.get_type_hints(Gpu)
GPUS = st.fixed_dictionaries(
    {"index": st.integers(0, 15)},
    optional={name: strategy(kind) for name, kind in HINTS.items() if name != "index"},
).map(lambda values: Gpu(**typing.cast(dict[str, Any], values)))
XIDS = st.builds(Xid, st.text(max_size=9), INTS, st.one_of(st.none(), st.text(max_size=9)), INTS)
FACTS = st.builds(
    NvmlFacts,
    gpus=st.lists(GPUS, max_size=4).map(tuple),
    init_error=st.one_of(st.none(), INTS),
    pci_gpu_count=st.one_of(st.none(), INTS),
    expected_gpu_count=st.one_of(st.none(), INTS),
    in_container=st.booleans(),
    rights_lost=st.booleans(),
    xids=st.lists(XIDS, max_size=100).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(facts=FACTS, expected=st.sampled_from([None, 0, 8]))
def test_no_rule_fails_over_what_a_node_says(facts: NvmlFacts, expected: int | None) -> None:
    view = node_view(expected_gpu_count=expected)
    view = replace(view, facts=dict(view.facts) | {NvmlFacts: facts})
    for found in assess(view, T0, RULES):
        assert not (isinstance(found, Unknown) and "failed by itself" in found.because), found.because
        assert len(found.because) < 2000
        if isinstance(found, Evidence):
            assert found.because


def test_gpus_of_which_nothing_is_known_argue_for_nothing() -> None:
    view = node_view()
    facts = NvmlFacts(gpus=tuple(Gpu(index) for index in range(8)), pci_gpu_count=8)
    found = assess(replace(view, facts=dict(view.facts) | {NvmlFacts: facts}), T0, RULES)
    assert [finding for finding in found if isinstance(finding, Evidence)] == []
