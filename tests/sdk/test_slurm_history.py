"""Tries of a job out of the controller's answers and out of the accounting database."""

from __future__ import annotations

import json

import pytest

from gpuwatch.sdk import slurm_history, slurm_jobs
from gpuwatch.sdk.slurm_history import SEPARATOR
from gpuwatch.sdk.slurm_tries import Tries
from tests.slurm_answers import JSON_24, job_text, node_text, set_number


class TestTries:
    """A requeued job shows only its present try: the one before is told from the restart count."""

    def test_a_requeue_by_somebody_is_planned(self) -> None:
        tries = Tries(by_name=True)
        tries.learn([job_text()], [node_text("MIXED")])
        again = [job_text(state="PENDING", restarts=1, nodes="(null)")]
        assert tries.learn(again, [node_text("IDLE")])
        waiting, before = tries.attempts(again, [])
        assert (waiting.attempt, waiting.state, waiting.started_unix_ns) == ("7.1", "pending", None)
        assert (before.attempt, before.state, before.cause, before.planned) == ("7.0", "ended", "requeued", True)
        assert before.nodes == ("gpu1", "gpu2", "gpu3")
        assert before.ended_unix_ns == 1796055845 * 10**9

    def test_a_requeue_because_a_node_died_is_not(self) -> None:
        tries = Tries(by_name=True)
        tries.learn([job_text()], [node_text("MIXED")])
        again = [job_text(state="PENDING", restarts=1, nodes="(null)")]
        tries.learn(again, [node_text("DOWN*")])
        before = tries.attempts(again, [])[1]
        assert (before.cause, before.planned) == ("node_failed", False)

    def test_our_own_order_is_planned_though_the_node_is_down(self) -> None:
        tries = Tries(by_name=True)
        tries.learn([job_text()], [node_text("MIXED")])
        tries.ordered("7.0")
        again = [job_text(state="PENDING", restarts=1, nodes="(null)")]
        tries.learn(again, [node_text("DOWN*")])
        assert tries.attempts(again, [])[1].planned

    def test_a_leaf_that_has_just_begun_claims_no_more_than_it_knows(self) -> None:
        again = [job_text(restarts=5)]
        tries = Tries(by_name=True)
        tries.learn(again, [node_text("MIXED")])
        now, *before = tries.attempts(again, [])
        assert (now.attempt, now.state) == ("7.5", "running")
        assert [(fact.attempt, fact.nodes, fact.planned) for fact in before] == [
            ("7.2", (), False),
            ("7.3", (), False),
            ("7.4", (), False),
        ]
        assert [fact.ended_unix_ns for fact in before] == [None, None, 1796055845 * 10**9]

    def test_what_leaves_its_nodes_is_neither_running_nor_ended_until_slurm_says_which(self) -> None:
        (fact,) = Tries(by_name=True).attempts([job_text(state="COMPLETING", restarts=0)], [])
        assert fact.state == "pending"

    def test_a_requeued_job_that_is_still_leaving_its_nodes_says_nothing_of_its_end_yet(self) -> None:
        (job,) = slurm_jobs.from_json(
            json.dumps({"jobs": [JSON_24 | {"job_state": ["PENDING", "COMPLETING"], "restart_cnt": set_number(1)}]})
        )
        (fact,) = Tries(by_name=True).attempts([job], [])
        assert (fact.attempt, fact.state, job.leaving) == ("7.1", "pending", True)

    def test_by_job_id(self) -> None:
        assert Tries(by_name=False).attempts([job_text()], [])[0].run == "7"


def sacct_row(**changes: str) -> str:
    row = {
        "JobIDRaw": "7",
        "JobID": "7",
        "User": "ada",
        "Account": "pretraining",
        "State": "COMPLETED",
        "ExitCode": "0:0",
        "Submit": "1796055000",
        "Start": "1796055100",
        "End": "1796055200",
        "NNodes": "3",
        "AllocTRES": "billing=24,cpu=24,gres/gpu=24,node=3",
        "NodeList": "gpu[1-3]",
        "JobName": "opt",
    } | changes
    return SEPARATOR.join(row[name] for name in slurm_history.FIELDS)


def test_the_database_tells_each_try_and_why_it_ended() -> None:
    answer = "\n".join(
        [
            sacct_row(State="NODE_FAIL"),
            sacct_row(State="REQUEUED", Start="1796055300", End="1796055400"),
            sacct_row(State="CANCELLED by 1000", Start="1796055500", End="1796055600", ExitCode="0:15"),
            sacct_row(JobIDRaw="9", JobID="8+1", State="COMPLETED", NodeList="gpu4", NNodes="1"),
            sacct_row(JobIDRaw="10", Start="Unknown", State="CANCELLED by 0"),
            "half a li",
            sacct_row(JobIDRaw="11", State="OF_A_LATER_RELEASE"),
        ]
    )
    tries = slurm_history.numbered(slurm_history.from_sacct(answer), {})
    assert [(t.job.attempt, t.cause, t.planned) for t in sorted(tries, key=lambda t: t.job.attempt)] == [
        ("7.0", "node_failed", False),
        ("7.1", "requeued", True),
        ("7.2", "cancelled", True),
        ("8.0", "completed", False),
    ]
    assert tries[0].job.gpus_per_node == 8


def test_a_name_invents_no_try_of_another_job() -> None:
    forged = "x\n" + "\x1f".join(["9", "9", "bob", "a", "NODE_FAIL", "0:0", "1", "2", "3", "1", "", "gpu1", "b"])
    (only,) = slurm_history.from_sacct(sacct_row(JobName=forged) + "\n")
    assert (only.job.id, only.job.name) == (7, forged)


@pytest.mark.parametrize(
    ("newest", "expected"), [({}, ["7.0", "7.1"]), ({7: (6, True)}, ["7.5", "7.6"]), ({7: (6, False)}, ["7.4", "7.5"])]
)
def test_tries_are_counted_back_from_what_the_controller_says(
    newest: dict[int, tuple[int, bool]], expected: list[str]
) -> None:
    answer = "\n".join([sacct_row(State="REQUEUED"), sacct_row(Start="1796055300", End="1796055400")])
    assert [t.job.attempt for t in slurm_history.numbered(slurm_history.from_sacct(answer), newest)] == expected


def test_what_the_database_says_counts_before_what_we_guess() -> None:
    tries = Tries(by_name=True)
    jobs = [job_text(restarts=1)]
    tries.learn(jobs, [node_text("MIXED")])
    history = slurm_history.numbered(slurm_history.from_sacct(sacct_row(State="NODE_FAIL")), tries.newest)
    facts = {fact.attempt: fact for fact in tries.attempts(jobs, history)}
    assert (facts["7.0"].cause, facts["7.1"].state) == ("node_failed", "running")
