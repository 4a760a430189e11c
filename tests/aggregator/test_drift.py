"""Which node differs, in what, and since when."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.aggregator.drift import MOST_PARTS, drifts, in_words
from gpuwatch.model.facts.environment import EnvironmentFacts, Program
from gpuwatch.model.states import Lifecycle
from gpuwatch.model.view import NodeView
from tests.fakes import node_view, rank_view, run_view


def node(
    number: int, parts: dict[str, str], *, pool: str = "h100", libraries: dict[str, str] | None = None
) -> NodeView:
    programs = () if libraries is None else (Program((1,), libraries),)
    facts = EnvironmentFacts("f", parts, dict.fromkeys(parts, 1000 + number), programs)
    view = node_view(machine=f"m-{number}", slot=f"gpu{number:02d}", pool=pool)
    return replace(view, facts={EnvironmentFacts: facts})


def test_one_node_of_a_pool_with_another_driver() -> None:
    views = [node(number, {"driver": "580.95" if number != 7 else "550.54", "kernel": "6.1"}) for number in range(1, 9)]
    (found,) = drifts(views, ())
    assert (found.slot, found.part, found.value, found.usual) == ("gpu07", "driver", "550.54", "580.95")
    assert (found.usual_count, found.known_count, found.since_unix_ns) == (7, 8, 1007)
    assert in_words(found) == "driver 550.54; 7 of 8 of pool h100 have 580.95"


def test_pools_are_not_compared_with_each_other_and_what_is_not_known_is_no_difference() -> None:
    views = [
        node(1, {"driver": "a", "bios": "1"}),
        node(2, {"driver": "a"}),
        node(3, {"driver": "b"}, pool="a100"),
        replace(node(4, {"driver": "c"}), facts={}),
        replace(node(5, {"driver": "c"}), lifecycle=Lifecycle.RETIRED),
    ]
    assert drifts(views, ()) == []


def test_where_nobody_has_the_majority_all_are_told() -> None:
    found = drifts([node(1, {"driver": "a"}), node(2, {"driver": "b"})], ())
    assert [(one.slot, one.value, one.usual) for one in found] == [("gpu01", "a", ""), ("gpu02", "b", "")]
    assert in_words(found[0]) == "driver a; the 2 nodes of pool h100 do not agree"


def test_nodes_of_one_run_with_other_libraries() -> None:
    views = [node(number, {}, libraries={"torch": "2.4" if number != 3 else "2.5"}) for number in range(1, 5)]
    run = run_view(*[rank_view(number, f"m-{number}") for number in range(1, 5)])
    (found,) = drifts(views, (run,))
    assert (found.scope, found.slot, found.part, found.value, found.usual) == (
        f"run {run.run}",
        "gpu03",
        "torch",
        "2.5",
        "2.4",
    )


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy")), max_size=6))
def test_equal_nodes_never_differ_and_each_difference_is_real(nodes: list[dict[str, str]]) -> None:
    views = [node(number, parts) for number, parts in enumerate(nodes)]
    for found in drifts(views, ()):
        assert nodes[int(found.machine[2:])][found.part] == found.value != found.usual
    assert drifts([node(number, {"a": "x"}) for number in range(len(nodes))], ()) == []


def test_nodes_that_tell_of_thousands_of_parts_make_no_thousands_of_series() -> None:
    views = [
        node(n, {f"part{i}{n if i % 2 else ''}": str(n) for i in range(5_000)} | {"x" * 200: str(n)}) for n in (1, 2)
    ]
    found = drifts(views, ())
    assert len(found) <= 2 * MOST_PARTS
    assert all(len(one.part) <= 64 for one in found)
