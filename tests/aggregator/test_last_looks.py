"""What changed between the plan and the call: the group's owner and target, a scheduler that errs, a clock step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.model.facts.training import Beat
from gpuwatch.schedulers import SchedulerSnapshot
from tests.fakes_centre import Centre
from tests.fakes_hands import START_UNIX_NS


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, nodes=4)
    yield made
    assert made.store is not None
    made.store.close()


def set_owner(centre: Centre) -> None:
    centre.cloud.owner = "aks"


def set_target(centre: Centre) -> None:
    centre.cloud.target_count = 3


def same_target(centre: Centre) -> None:
    centre.cloud.target_count = 4


@pytest.mark.parametrize(
    ("change", "creates"),
    [
        pytest.param(set_owner, 0, id="another-controller-took-the-group"),
        pytest.param(set_target, 0, id="the-groups-target-shrank"),
        pytest.param(same_target, 1, id="the-target-still-counts-it"),
    ],
)
def test_a_machine_is_made_only_where_its_group_is_still_ours_and_wants_it(
    change: Callable[[Centre], None], creates: int, centre: Centre
) -> None:
    centre.settle()
    centre.scheduler.add_job("run.1", ("gpu01",))
    centre.scheduler.obeys = False
    centre.agents["m-gpu01"].xid(79)
    centre.seconds(15)
    assert [saga.step for saga in centre.executor.open()] == ["empty"]
    change(centre)
    centre.seconds(10)
    centre.scheduler.end_job("run.1", "requeued")
    centre.seconds(60)
    assert [name for name, _ in centre.cloud.calls].count("create") == creates
    if not creates:
        assert "resume" not in {name for name, _ in centre.scheduler.calls}  # a sick node is not given back
        assert centre.cloud.alive("gpu01") == ["m-gpu01"]


def test_a_scheduler_that_calls_a_stepping_node_empty_is_not_believed(centre: Centre) -> None:
    centre.settle()
    centre.scheduler.add_job("run.1", ("gpu01",))
    honest = centre.scheduler.snapshot

    def lie() -> SchedulerSnapshot:
        said = honest()
        if not centre.scheduler.drains["gpu01"]:
            return said
        nodes = tuple(msgspec.structs.replace(node, jobs=(), state="drained") for node in said.nodes)
        return SchedulerSnapshot(nodes=nodes, jobs=())

    centre.scheduler_witness._ask = lie
    agent = centre.agents["m-gpu01"]
    for step in range(1, 40):
        if step == 15:
            agent.xid(79)
        now_ns = centre.clock.unix_ns()
        agent.beats = (
            Beat(
                run="run", attempt="run.1", rank=0, world_size=1, pid=1, phase="train", step=step, sequence=step,
                step_end_unix_ns=now_ns, phase_start_unix_ns=START_UNIX_NS, checkpoint_step=None,
                checkpoint_unix_ns=None, read_unix_ns=now_ns, alive=True,
            ),
        )  # fmt: skip
        centre.seconds(5)
    assert centre.cloud.calls == []
    (saga,) = centre.executor.open()
    assert "made progress on it" in centre.executor.waiting[saga.action.action_id]
    centre.seconds(60)  # the ranks have stopped: now it is believed
    assert "create" in {name for name, _ in centre.cloud.calls}


@pytest.mark.parametrize(
    ("step_s", "counts"), [(0, True), (29, True), (31, False), (-10, False), (-2 * 86_400, False), (3600, False)]
)
def test_an_approval_counts_from_its_moment_until_it_expires(step_s: int, counts: bool, centre: Centre) -> None:
    centre.people.approve("a1", "kim", 30.0)
    centre.clock.step_s(step_s)
    assert (centre.people.approved() == ("a1",)) is counts
