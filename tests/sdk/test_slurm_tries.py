"""What is remembered of tries: parts of one job together, names as heartbeats write them, more jobs than have room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sdk import slurm_command, slurm_tries
from gpuwatch.sdk.slurm_jobs import Job
from gpuwatch.sdk.slurm_nodes import Node
from gpuwatch.sdk.slurm_tries import Tries
from gpuwatch.training import heartbeat


def part(number: int, *nodes: str, restarts: int = 0, state: str = "RUNNING") -> Job:
    return Job(id=number, name="het", leader=13, state=(state,), nodes=nodes, restarts=restarts)


@pytest.mark.parametrize("down", ["gpu1", "gpu2"])
def test_a_try_of_several_parts_ran_on_all_their_nodes(down: str) -> None:
    tries = Tries(by_name=True)
    for _ in range(2):
        tries.learn([part(13, "gpu1"), part(14, "gpu2")], [])
    again = [part(13, restarts=1, state="PENDING"), part(14, restarts=1, state="PENDING")]
    tries.learn(again, [Node(name=down, state=("DOWN",))])
    facts = {fact.attempt: fact for fact in tries.attempts(again, [])}
    assert (facts["13.0"].nodes, facts["13.0"].cause) == (("gpu1", "gpu2"), "node_failed")


def test_our_order_makes_an_end_planned_though_we_never_saw_the_try_at_work() -> None:
    tries = Tries(by_name=True)
    tries.ordered("13.0")
    tries.learn([], [])
    again = [part(13, restarts=1, state="PENDING")]
    tries.learn(again, [])
    assert {fact.attempt: fact.planned for fact in tries.attempts(again, [])} == {"13.1": False, "13.0": True}
    over = [part(13, "gpu1", state="FAILED")]
    assert [fact.planned for fact in tries.attempts(over, [])] == [True]


@given(st.text(max_size=200))
def test_a_run_has_the_name_that_has_room_in_its_heartbeat(name: str) -> None:
    (fact,) = Tries(by_name=True).attempts([Job(id=7, name=name, state=("RUNNING",))], [])
    assert fact.run == (heartbeat._text(name, 128).decode() or "7")


def test_bytes_that_are_no_text_are_read_as_a_heartbeat_writes_them() -> None:
    raw = b"opt-\xe9\xff x"
    assert slurm_command._text(raw) == heartbeat._text(raw.decode("utf-8", "surrogateescape"), 128).decode()


def test_more_jobs_at_once_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_tries, "REMEMBERED", 10)
    tries = Tries(by_name=True)
    jobs = [Job(id=number, name="x", state=("RUNNING",), nodes=("gpu1",)) for number in range(30)]
    for _ in range(3):
        tries.learn(jobs, [Node(name="gpu1", state=("DOWN",))])
        assert len(tries.attempts(jobs, [])) == 30
