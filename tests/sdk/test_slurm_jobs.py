"""What Slurm's words about a job mean, release by release; what its owner writes can pretend nothing."""

from __future__ import annotations

import json

import pytest

from gpuwatch.errors import SchedulerError
from gpuwatch.schedulers.slurm import _job_fact
from gpuwatch.sdk import slurm_jobs, slurm_values
from gpuwatch.sdk.slurm_tries import Tries
from gpuwatch.training.heartbeat import described_by
from tests.slurm_answers import JOB_22, JSON_22, JSON_24, USUAL, job_text, set_number


def test_text_old_json_and_new_json_tell_the_same_of_a_job() -> None:
    expected = job_text()
    assert expected.gpus_per_node == 8
    for item in (JSON_22, JSON_24):
        (found,) = slurm_jobs.from_json(json.dumps({"jobs": [item], "errors": [], "warnings": []}))
        assert found == expected
    fact = _job_fact(Tries(by_name=True).attempts([expected], [])[0])
    assert (fact.run, fact.job, fact.state, fact.slots) == ("opt", "7.0", "running", ("gpu1", "gpu2", "gpu3"))
    assert (fact.team, fact.user, fact.gpus_per_slot, fact.may_requeue) == ("pretraining", "ada", 8, True)
    assert (fact.started_unix_ns, fact.ended_unix_ns) == (1796055847 * 10**9, None)


@pytest.mark.parametrize(
    ("state", "written", "raw", "cause", "planned", "code"),
    [
        ("COMPLETED", "0:0", 0, "completed", False, 0),
        ("FAILED", "3:0", 768, "failed", False, 3),
        ("FAILED", "0:9", 9, "failed", False, 137),
        ("CANCELLED", "0:15", 15, "cancelled", True, 143),
        ("NODE_FAIL", "0:0", 0, "node_failed", False, 0),
        ("TIMEOUT", "0:0", 0, "time_limit", False, 0),
        ("PREEMPTED", "0:0", 0, "preempted", False, 0),
        ("OUT_OF_MEMORY", "0:125", 125, "out_of_memory", False, 253),
    ],
)
def test_how_a_job_ended(state: str, written: str, raw: int, cause: str, planned: bool, code: int) -> None:
    said = job_text(state=state, exit=written, end=1796055900)
    old = JSON_22 | {"job_state": state, "exit_code": raw, "end_time": 1796055900}
    signal = {"id": set_number(raw), "name": ""} if raw < 256 and raw else {"id": {"set": False, "number": 0}}
    new = JSON_24 | {
        "job_state": [state, "COMPLETING"],
        "exit_code": {"status": ["X"], "return_code": set_number(raw >> 8), "signal": signal},
        "end_time": set_number(1796055900),
    }
    jobs = [said, *slurm_jobs.from_json(json.dumps({"jobs": [old, new], "errors": []}))]
    for job in jobs:
        (fact,) = Tries(by_name=True).attempts([job], [])
        assert (fact.state, fact.cause, fact.planned, fact.exit_code) == ("ended", cause, planned, code)
        assert fact.ended_unix_ns == 1796055900 * 10**9


def test_an_attempt_is_called_as_its_heartbeat_calls_it() -> None:
    environment = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2", "SLURM_JOB_NAME": "opt"}
    told = described_by(environment)
    found = Tries(by_name=True).attempts([job_text(restarts=2)], [])
    assert (told["run"], told["attempt"]) in [(fact.run, fact.attempt) for fact in found]
    assert described_by({"SLURM_JOB_ID": "7"})["attempt"] == job_text().attempt


def test_a_task_of_an_array_is_called_by_its_number_and_never_takes_the_array_with_it() -> None:
    task = job_text(id=2, more="ArrayJobId=2 ArrayTaskId=3 ArrayTaskThrottle=2 ")
    assert (task.attempt, task.address) == ("2.0", "2_3")
    waiting = job_text(id=2, more="ArrayJobId=2 ArrayTaskId=1-3%2 ", state="PENDING", nodes="(null)")
    assert waiting.address == "2"
    assert job_text().address == "7"


def test_components_of_a_heterogeneous_job_are_one_attempt() -> None:
    first = job_text(id=4, more="HetJobId=4 HetJobOffset=0 ", het="HetJobIdSet=4-5 ", nodes="gpu1")
    second = job_text(id=5, more="HetJobId=4 HetJobOffset=1 ", het="HetJobIdSet=4-5 ", nodes="cpu1")
    (fact,) = Tries(by_name=True).attempts([first, second], [])
    assert (fact.attempt, fact.run, fact.nodes) == ("4.0", "opt", ("gpu1", "cpu1"))
    assert second.address == "4"


@pytest.mark.parametrize(
    "name",
    ["my job", "a=b", "JobState=COMPLETED", "x NodeList=none Restarts=9", "a\nb", "", "(null)", "UserId=", "ü | é"],
)
def test_a_name_can_pretend_nothing(name: str) -> None:
    one = job_text(name=name)
    assert (one.id, one.state, one.nodes, one.restarts) == (7, ("RUNNING",), ("gpu1", "gpu2", "gpu3"), 0)
    two = slurm_jobs.from_text(
        JOB_22.format(**(USUAL | {"name": name})) + "\n" + JOB_22.format(**(USUAL | {"id": 8})) + "\n"
    )
    assert [job.id for job in two] == [7, 8]


def test_a_name_leads_no_order_to_the_job_of_another() -> None:
    name = "x UserId=ada(1) JobState=RUNNING ArrayJobId=77 ArrayTaskId=3 HetJobId=78 y"
    assert (job_text(name=name).address, job_text(name=name).attempt) == ("7", "7.0")
    assert job_text(more="ArrayJobId=5 ArrayTaskId=2 ", name=name).address == "5_2"


@pytest.mark.parametrize("name", ["None", "unknown", "n/a", " opt  x ", "a\nb"])
def test_a_run_is_called_as_its_processes_call_it(name: str) -> None:
    answer = json.dumps({"jobs": [{"job_id": 7, "job_state": "RUNNING", "name": name}], "errors": []})
    (by_json,) = Tries(by_name=True).attempts(slurm_jobs.from_json(answer), [])
    (by_text,) = Tries(by_name=True).attempts([job_text(name=name)], [])
    assert by_json.run == by_text.run == described_by({"SLURM_JOB_NAME": name})["run"] == name


@pytest.mark.parametrize("note", ['cost centre=12, "keep" é', "a\nb", "JobState=FAILED", "x"])
def test_a_note_of_somebody_is_read_whole(note: str) -> None:
    assert job_text(note=note).note == note


def test_a_list_of_jobs_that_is_cut_off_is_no_answer() -> None:
    whole = JOB_22.format(**USUAL) + "\n"
    for at in (20, 200, len(whole) // 2, len(whole) - 1):
        with pytest.raises(SchedulerError):
            slurm_jobs.from_text(whole + whole[:at])


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[08-10,12]", ["gpu08", "gpu09", "gpu10", "gpu12"]),
        ("r[1-2]n[1-2],login1", ["r1n1", "r1n2", "r2n1", "r2n2", "login1"]),
        ("gpu[1-2]-ib0", ["gpu1-ib0", "gpu2-ib0"]),
        ("(null)", []),
        ("None assigned", []),
        ("", []),
    ],
)
def test_node_lists(listed: str, names: list[str]) -> None:
    assert list(slurm_values.names(listed)) == names


@pytest.mark.parametrize("listed", ["gpu[3-1]", "gpu[a-b]", "gpu[1-999999999]", "gpu[1-2000]n[1-2000]"])
def test_what_is_no_node_list(listed: str) -> None:
    with pytest.raises(ValueError):
        slurm_values.names(listed)


@pytest.mark.parametrize(
    ("tres", "asked", "nodes", "gpus"),
    [
        ("cpu=3,gres/gpu=24,gres/gpu:h100=24", "", 3, 8),
        ("cpu=3,gres/gpu:h100=16", "gres:gpu:8", 2, 8),
        ("cpu=3,gres/gpu=7", "", 3, None),
        ("cpu=3", "gres:gpu:8", 3, 8),
        ("cpu=3", "gres/gpu:h100:4", 3, 4),
        ("cpu=3", "gpu", 3, 1),
        ("cpu=3", "", 3, None),
        ("", "", 0, None),
    ],
)
def test_gpus_of_a_job_on_each_node(tres: str, asked: str, nodes: int, gpus: int | None) -> None:
    assert slurm_values.gpus_per_node(tres, asked, nodes) == gpus
