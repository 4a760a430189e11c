"""Spare or idle, instant by instant."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.cost.intervals import partition
from gpuwatch.cost.quota import Decided, Free, decide
from tests.ledgers import Pen, at


def test_the_first_by_resource_id_are_spare_and_others_move_up() -> None:
    pen = Pen()
    for name in ("c", "a", "b"):
        pen.node(name, 0)
    pen.quota(1)
    pen.state("a", 30, health="degraded")  # sick nodes do not use the quota up
    found = {(one.machine, one.category.value, one.start_unix_ns) for one in partition(pen.lines, at(60))}
    assert found == {
        ("a", "spare", at(0)),
        ("a", "quarantine", at(30)),
        ("b", "idle", at(0)),
        ("b", "spare", at(30)),
        ("c", "idle", at(0)),
    }


def test_held_nodes_do_not_use_it_up_and_other_prices_have_their_own() -> None:
    pen = Pen()
    pen.node("a", 0)
    pen.node("b", 0)
    pen.node("c", 0, sku="ND96amsr_A100_v4")
    pen.hold(["a"], 0)
    pen.quota(1)
    found = {one.machine: (one.category.value, one.run) for one in partition(pen.lines, at(60))}
    assert found == {"a": ("spare", "train"), "b": ("spare", None), "c": ("spare", None)}


def test_a_quota_may_change_and_without_one_all_is_idle() -> None:
    pen = Pen()
    for name in ("a", "b"):
        pen.node(name, 0)
    pen.quota(2, 15)
    pen.quota(0, 45)
    for machine in ("a", "b"):
        found = [one.category.value for one in partition(pen.lines, at(60)) if one.machine == machine]
        assert found == ["idle", "spare", "idle"]


def test_a_node_that_is_free_in_part_counts_for_that_part() -> None:
    free = [Free(0, 3600, "a", 3000), Free(0, 3600, "b", 8000), Free(0, 3600, "c", 8000)]
    found = decide(free, [(0, 1)], 8000)
    spare = {free[part.free_index].machine: part.gpu_thousandths for part in found if part.spare}
    assert spare == {"a": 3000, "b": 5000}


def naive(free: list[Free], quotas: list[tuple[int, int]], capacity: int) -> dict[tuple[int, int], int]:
    """Spare thousandths of each stretch at each instant, the slow and obvious way."""
    result: dict[tuple[int, int], int] = {}
    for instant in range(20):
        limit = next((count for at, count in reversed(quotas) if at <= instant), 0) * capacity
        for index in sorted(range(len(free)), key=lambda i: (free[i].machine, i)):
            if free[index].start <= instant < free[index].end:
                result[index, instant] = min(free[index].gpu_thousandths, limit)
                limit -= result[index, instant]
    return result


def spread(parts: list[Decided], *, spare: bool) -> dict[tuple[int, int], int]:
    found: defaultdict[tuple[int, int], int] = defaultdict(int)
    for part in parts:
        for instant in range(part.start, part.end):
            found[part.free_index, instant] += part.gpu_thousandths if part.spare is spare else 0
    return dict(found)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 18), st.integers(1, 9), st.sampled_from("abcdef"), st.sampled_from([8, 8, 3, 1])),
        max_size=12,
    ),
    st.dictionaries(st.integers(0, 19), st.integers(0, 3), max_size=4),
)
def test_the_sweep_says_what_the_slow_way_says(
    stretches: list[tuple[int, int, str, int]], counts: dict[int, int]
) -> None:
    free = [Free(start, min(start + length, 20), name, share) for start, length, name, share in stretches]
    quotas = sorted(counts.items())
    parts = decide(free, quotas, 8)
    expected = naive(free, quotas, 8)
    assert spread(parts, spare=True) == expected
    idle = spread(parts, spare=False)
    assert all(idle[key] == free[key[0]].gpu_thousandths - spare for key, spare in expected.items())
