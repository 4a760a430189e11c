"""`sacct --json`: the shapes of Slurm 22.05 and 24.11, states as lists, cut and broken documents, any piece size."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.errors import HistoryError
from gpuwatch.importers.sacct import IMPORTER
from gpuwatch.model.job_history import Asked, JobHistory
from gpuwatch.sdk.slurm_fold import Fold
from gpuwatch.sdk.slurm_json import read_document

BEGIN = 1_793_491_200


def number(value: int | None) -> dict[str, Any]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


def tres(*gpus: tuple[str, int]) -> dict[str, Any]:
    rest = [{"type": "cpu", "name": None, "id": 1, "count": 8}, {"type": "energy", "name": "", "id": 3, "count": -2}]
    return {"allocated": rest + [{"type": "gres", "name": n, "id": 1001, "count": c} for n, c in gpus], "requested": []}


def old(job: int, state: str = "COMPLETED", held_s: int = 3600, **more: Any) -> dict[str, Any]:
    """Slurm 22.05, data parser v0.0.38."""
    times = {"elapsed": held_s, "eligible": BEGIN, "start": BEGIN, "end": BEGIN + held_s, "submission": BEGIN - 60}
    made: dict[str, Any] = {
        "account": "llm",
        "array": {"job_id": 0, "limits": {"max": {"running": {"tasks": 0}}}, "task": None, "task_id": None},
        "cluster": "gw",
        "het": {"job_id": 0, "job_offset": None},
        "job_id": job,
        "partition": "h100",
        "state": {"current": state, "reason": "None"},
        "steps": [{"state": state, "step": {"id": {"job_id": job, "step_id": "batch"}}, "tres": tres(("gpu", 8))}],
        "time": {**times, "suspended": 0},
        "tres": tres(("gpu", 8)),
        "user": "ada",
    }
    return made | more


def new(job: int, *states: str, held_s: int = 3600, **more: Any) -> dict[str, Any]:
    """Slurm 24.11, data parser v0.0.42."""
    made = old(job, held_s=held_s)
    made["state"] = {"current": list(states or ("COMPLETED",)), "reason": "None"}
    made["array"] = {"job_id": 0, "limits": {"max": {"running": {"tasks": 0}}}, "task": "", "task_id": number(None)}
    made["het"] = {"job_id": 0, "job_offset": number(None)}
    made["time"]["limit"] = {"set": False, "infinite": True, "number": 0}
    made["tres"] = tres(("gpu", 8), ("gpu:h100", 8))
    return made | {"restart_cnt": 0} | more


def document(*jobs: Any, front: bool = False, **more: Any) -> str:
    meta = {"meta": {"Slurm": {"version": {"major": 22}}}, "errors": []}
    made = {"jobs": list(jobs), **meta} if front else {**meta, "jobs": list(jobs)}
    return json.dumps(made | more, indent=2)


def read(text: str, *, keys: tuple[str, ...] = ()) -> JobHistory:
    stream = io.BufferedReader(io.BytesIO(text.encode()))
    return IMPORTER.read(stream, Asked(now_unix_s=BEGIN + 10_000_000, keys=keys), lambda rows: None)


def held(history: JobHistory) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in history.sums:
        found[one.state] = found.get(one.state, 0) + one.gpu_seconds
    return found


@pytest.mark.parametrize("front", [True, False])
@pytest.mark.parametrize("jobs", [(old(1), old(2, "FAILED")), (new(1), new(2, "FAILED")), (old(1), new(2, "FAILED"))])
def test_both_shapes_and_either_order_of_keys(jobs: tuple[Any, ...], front: bool) -> None:
    history = read(document(*jobs, front=front, warnings=[]), keys=("user", "account", "partition"))
    assert held(history) == {"COMPLETED": 8 * 3600, "FAILED": 8 * 3600}
    assert {one.keys for one in history.sums} == {("ada", "llm", "h100")}
    assert (history.rows, history.broken_count) == (2, 0)


@pytest.mark.parametrize(
    ("states", "name", "group"),
    [
        (("COMPLETED",), "COMPLETED", "completed"),
        (("COMPLETED", "COMPLETING"), "COMPLETED", "completed"),
        (("RUNNING", "COMPLETING"), "COMPLETING", "running"),
        (("RUNNING", "CONFIGURING"), "CONFIGURING", "running"),
        (("NODE_FAIL", "REQUEUED"), "REQUEUED", "requeued"),
        (("PENDING", "REQUEUED"), "PENDING", "pending"),
        (("FAILED", "LAUNCH_FAILED"), "FAILED", "failed"),
        (("RUNNING", "LAUNCH_FAILED"), "LAUNCH_FAILED", "failed"),
        (("RUNNING", "EXPEDITING"), "RUNNING", "running"),
        (("SOMETHING_NEW",), "SOMETHING_NEW", "other"),
    ],
)
def test_a_list_of_states(states: tuple[str, ...], name: str, group: str) -> None:
    (one,) = read(document(new(1, *states))).sums
    assert (one.state, one.group) == (name, group)


def test_a_running_job_has_no_end() -> None:
    running = new(1, "RUNNING", held_s=600)
    running["time"]["end"] = 0
    assert held(read(document(running))) == {"RUNNING": 8 * 600}


def test_arrays_and_heterogeneous_jobs() -> None:
    waiting = new(9, "PENDING", array={"job_id": 9, "task": "1-3,7%2", "task_id": number(None)})
    waiting["time"] |= {"start": 0, "end": 0, "elapsed": 0}
    task = new(10, array={"job_id": 9, "task": "", "task_id": number(0)})
    parts = [new(20 + n, het={"job_id": 20, "job_offset": number(n)}) for n in range(2)]
    history = read(document(waiting, task, *parts))
    assert {one.state: one.tries for one in history.sums} == {"PENDING": 4, "COMPLETED": 2}
    assert held(history)["COMPLETED"] == 3 * 8 * 3600


def test_typed_gpus_count_where_the_plain_ones_are_missing_and_none_are_unknown() -> None:
    history = read(document(new(1, tres=tres(("gpu:h100", 4), ("gpu:a100", 2))), new(2, tres={"allocated": []})))
    assert held(history) == {"COMPLETED": 6 * 3600}
    assert (history.unknown_gpus[0].line, history.unknown_gpus_count) == (2, 1)


@pytest.mark.parametrize(
    "job", [7, None, [], {}, {"job_id": 1}, new(1, time=None), new(1, state={"current": []}), new(-4)]
)
def test_a_broken_job_is_named_by_its_place_and_the_rest_counts(job: Any) -> None:
    history = read(document(new(1), job, new(3)))
    assert held(history) == {"COMPLETED": 2 * 8 * 3600}
    assert [one.line for one in history.broken] == [2]


def test_what_sacct_says_of_itself_is_passed_on() -> None:
    history = read(document(new(1), errors=[{"error": "slurmdbd is away"}]))
    assert "slurmdbd is away" in " ".join(history.notes)


def test_a_cut_document_counts_what_it_has_and_says_so() -> None:
    text = document(new(1), new(2), new(3))
    history = read(text[: int(len(text) * 0.6)])
    assert 1 <= history.rows < 3
    assert "ends in the middle" in " ".join(history.notes)


def test_a_document_that_breaks_off_into_garbage() -> None:
    text = document(new(1), new(2))
    history = read(text.replace('"job_id": 2', '"job_id" 2'))
    assert history.rows == 1
    assert "missing" in " ".join(history.notes)


@pytest.mark.parametrize("text", ["[]", "{", '{"jobs": 7}', '{"meta": {}}', "[" * 100_000])
def test_what_is_no_document_of_sacct(text: str) -> None:
    with pytest.raises(HistoryError):
        read(text)


def test_no_jobs_is_an_answer() -> None:
    assert read(document()).sums == ()


@settings(deadline=None)
@given(jobs=st.lists(st.integers(1, 40), max_size=8), size=st.integers(9, 700))
def test_the_size_of_pieces_never_matters(jobs: list[int], size: int) -> None:
    text = io.StringIO(document(*(new(job, held_s=job) for job in jobs)) + document(new(99)))
    fold = Fold(Asked(now_unix_s=BEGIN + 10**6))
    read_document(lambda _: text.read(size), fold, lambda _: None)
    assert held(fold.finish()) == {"COMPLETED": 8 * (3600 + sum(set(jobs)))}
