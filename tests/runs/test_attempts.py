"""When attempts begin and end: by the scheduler where it knows the run, by the ranks where nobody does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gpuwatch.model.facts.training import Beat
from gpuwatch.model.ledger import (
    AttemptEnded,
    AttemptStarted,
    EvidenceLost,
    LedgerLine,
    Member,
    MemberLeft,
    RunClosed,
    StepEnded,
    snap_ns,
)
from gpuwatch.model.run import JobFact, Sighting
from gpuwatch.runs.book import Book
from gpuwatch.runs.track import absorb, from_ledger, new_book, views
from tests.fakes import T0, S, later

DAY_S = 86_400.0


def unix(t: float) -> int:
    return later(T0, t).unix_ns


def beat(rank: int, t: float, **changes: Any) -> Beat:
    usual: dict[str, Any] = {
        "run": "opt",
        "attempt": "opt.1",
        "rank": rank,
        "world_size": 2,
        "pid": 100 + rank,
        "phase": "train",
        "step": int(t // 10),
        "step_end_unix_ns": unix(t // 10 * 10),
        "phase_start_unix_ns": unix(0),
        "checkpoint_step": None,
        "checkpoint_unix_ns": None,
        "alive": True,
        "sequence": int(t) + 1,
        "read_unix_ns": unix(t),
    }
    return Beat(**(usual | changes))


def seen(t: float, *beats: Beat) -> list[Sighting]:
    return [Sighting(machine=f"m-{b.rank}", slot=f"s-{b.rank}", beat=b, received=later(T0, t)) for b in beats]


def both(t: float, **changes: Any) -> list[Sighting]:
    return seen(t, beat(0, t, **changes), beat(1, t, **changes))


def job(state: str = "running", **changes: Any) -> JobFact:
    usual: dict[str, Any] = {
        "run": "opt",
        "attempt": "opt.1",
        "state": state,
        "members": tuple(Member(machine=f"m-{n}", gpu_thousandths=8000) for n in (0, 1)),
        "started_unix_ns": unix(0),
    }
    return JobFact(**(usual | changes))


class Story:
    """A book that is told things, and every line it gave."""

    def __init__(self, book: Book | None = None) -> None:
        self.book = book or new_book()
        self.lines: list[LedgerLine] = []

    def at(self, t: float, sightings: Sequence[Sighting] = (), *jobs: JobFact, **faults: str) -> list[LedgerLine]:
        known = {key.replace("_", "-"): value for key, value in faults.items()}
        self.book, new = absorb(self.book, sightings, jobs, later(T0, t), known)
        self.lines += new
        return new

    def of(self, kind: type) -> list[Any]:
        return [line for line in self.lines if isinstance(line, kind)]


def test_the_schedulers_start_is_the_start_though_the_heartbeats_came_first() -> None:
    story = Story()
    assert story.at(12, both(12)) == []
    new = story.at(15, both(15), job())
    assert isinstance(new[0], AttemptStarted)
    assert new[0].at_unix_ns == snap_ns(unix(0))
    assert [line.step for line in new if isinstance(line, StepEnded)] == [1]


def test_without_a_scheduler_the_first_heartbeat_is_the_start_once_the_grace_is_over() -> None:
    story = Story()
    for t in (5, 15, 25):
        assert story.at(t, both(t)) == []
    new = story.at(36, both(36))
    assert isinstance(new[0], AttemptStarted)
    assert new[0].at_unix_ns == snap_ns(unix(0))
    assert [(m.machine, m.gpu_thousandths) for m in new[0].members] == [("m-0", 1000), ("m-1", 1000)]
    assert [line.step for line in new[1:] if isinstance(line, StepEnded)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("phases", "ended", "cause"),
    [
        pytest.param(("done", "done"), "exit0", "completed", id="all-done"),
        pytest.param(("train", "train"), "unplanned", "exited", id="all-crashed"),
        pytest.param(("done", "train"), "unplanned", "exited", id="one-crashed"),
    ],
)
def test_without_a_scheduler_it_ends_when_the_last_rank_is_gone(
    phases: tuple[str, str], ended: str, cause: str
) -> None:
    story = Story()
    for t in range(0, 60, 5):
        story.at(t, both(t))
    last = [beat(r, 60, phase=phases[r], phase_start_unix_ns=unix(58), alive=False, sequence=99) for r in (0, 1)]
    story.at(60, seen(60, last[0]))
    assert story.of(AttemptEnded) == []  # one rank is still there
    story.at(61, seen(61, last[1]))
    (line,) = story.of(AttemptEnded)
    assert (line.ended, line.cause) == (ended, cause)
    assert unix(58) - 3600 <= line.at_unix_ns <= unix(61)
    assert bool(story.of(RunClosed)) is (ended == "exit0")


def test_a_rank_that_was_dead_when_first_seen_begins_nothing() -> None:
    story = Story()
    for t in (0, 20, 40, 60):
        assert story.at(t, both(0, alive=False)) == []
    assert story.book.runs == {}


def test_silence_of_every_rank_ends_nothing() -> None:
    story = Story()
    for t in range(0, 60, 5):
        story.at(t, both(t))
    story.at(4000)
    assert story.of(AttemptEnded) == []
    assert len(story.of(EvidenceLost)) == 1


def test_a_launcher_that_tells_no_attempt_gets_the_schedulers() -> None:
    story = Story()
    story.at(5, both(5, attempt=""), job())
    story.at(15, both(15, attempt=""))
    assert {line.attempt for line in story.lines if isinstance(line, StepEnded)} == {"opt.1"}


def test_a_launcher_that_tells_no_attempt_and_no_scheduler_is_counted_by_its_processes() -> None:
    story = Story()
    for t in range(0, 50, 5):
        story.at(t, both(t, attempt=""))
    crashed = [beat(r, 50, attempt="", alive=False) for r in (0, 1)]
    story.at(50, seen(50, *crashed))
    for t in range(60, 110, 5):
        again = {"attempt": "", "phase_start_unix_ns": unix(58)}
        story.at(t, seen(t, beat(0, t, pid=200, **again), beat(1, t, pid=201, **again), *crashed))
    assert [line.attempt for line in story.of(AttemptStarted)] == ["opt#1", "opt#2"]
    assert [line.attempt for line in story.of(AttemptEnded)] == ["opt#1"]


def test_the_schedulers_name_and_the_launchers_name_become_one_attempt() -> None:
    """Slurm says `77.0`, the launcher `my-run.0`: nobody may count them as two attempts of which one supersedes."""
    story = Story()
    for t in range(0, 60, 5):
        story.at(t, both(t, attempt="my-run.0"), job(attempt="77.0"))
    assert [line.attempt for line in story.of(AttemptStarted)] == ["77.0"]
    assert {line.attempt for line in story.of(StepEnded)} == {"77.0"}
    assert story.of(AttemptEnded) == []


def test_who_joins_late_and_who_leaves_a_live_attempt() -> None:
    story = Story()
    member = [Member(machine=f"m-{n}", gpu_thousandths=8000) for n in range(3)]
    story.at(0, (), job(members=(member[0],)))
    story.at(5, (), job(members=(member[0], member[1])))  # its slot was not resolved at first
    story.at(500, (), job(members=tuple(member)))
    story.at(600, (), job(members=(member[0], member[2])))
    story.at(605, (), job(members=(member[0], member[2])))
    joined = [(line.at_unix_ns, [m.machine for m in line.members]) for line in story.of(AttemptStarted)]
    assert joined == [
        (snap_ns(unix(0)), ["m-0"]),
        (snap_ns(unix(0)), ["m-1"]),
        (snap_ns(unix(500)), ["m-2"]),
    ]
    assert [(line.machine, line.at_unix_ns) for line in story.of(MemberLeft)] == [("m-1", snap_ns(unix(600)))]


@pytest.mark.parametrize(
    ("ended", "faults", "named"),
    [
        pytest.param("unplanned", {}, None, id="no-fault-open"),
        pytest.param("unplanned", {"m_1": "node_dead-7"}, "node_dead-7", id="a-members"),
        pytest.param("unplanned", {"run:opt": "run_stalled-8", "m_1": "x"}, "run_stalled-8", id="the-runs-own-first"),
        pytest.param("unplanned", {"m_9": "elsewhere"}, None, id="of-no-member"),
        pytest.param("planned", {"run:opt": "run_stalled-8"}, "run_stalled-8", id="ordered-because-it-stood-still"),
        pytest.param("planned", {"m_1": "degraded-7"}, None, id="an-owners-stop-is-no-members-fault"),
    ],
)
def test_an_end_names_the_fault_that_is_open(ended: str, faults: dict[str, str], named: str | None) -> None:
    story = Story()
    story.at(0, (), job())
    story.at(50, (), job("ended", ended=ended, cause="requeued", ended_unix_ns=unix(49)), **faults)
    (line,) = story.of(AttemptEnded)
    assert (line.ended, line.cause, line.fault) == (ended, "requeued", named)


def test_a_normal_end_has_no_fault_though_one_is_open_on_a_member() -> None:
    story = Story()
    story.at(0, (), job())
    story.at(50, (), job("ended", ended="exit0", ended_unix_ns=unix(49)), m_0="degraded-1")
    assert [line.fault for line in story.of(AttemptEnded)] == [None]


def test_history_from_before_our_time_is_not_written_down() -> None:
    story = Story()
    story.at(1000, (), job("ended", ended="exit0", started_unix_ns=unix(10), ended_unix_ns=unix(900)))
    assert story.lines == []


def test_an_attempt_that_began_and_ended_between_two_looks_is_written_whole() -> None:
    story = Story()
    story.at(0)
    story.at(100, (), job("ended", ended="unplanned", started_unix_ns=unix(10), ended_unix_ns=unix(90)))
    assert [type(line) for line in story.lines] == [AttemptStarted, AttemptEnded]


def test_a_scheduler_that_still_lists_an_ended_job_after_a_restart_writes_nothing_again() -> None:
    story = Story()
    story.at(0, (), job())
    over = job("ended", ended="unplanned", ended_unix_ns=unix(90))
    story.at(100, (), over)
    again = Story(from_ledger(story.lines))
    for t in (120, 3600, DAY_S):
        again.at(t, (), over)
    assert again.lines == []


def test_a_run_that_nobody_takes_up_again_is_given_up_after_seven_days() -> None:
    story = Story()
    story.at(0, (), job())
    story.at(100, (), job("ended", ended="unplanned", ended_unix_ns=unix(90)))
    story.at(7 * DAY_S + 80)
    assert story.of(RunClosed) == []
    story.at(7 * DAY_S + 95)
    (line,) = story.of(RunClosed)
    assert (line.how, line.at_unix_ns) == ("given_up", snap_ns(unix(90) + 7 * 86_400 * S))
    assert story.book.runs == {}  # nothing is remembered for ever


def test_what_is_remembered_of_an_ended_attempt_is_dropped() -> None:
    story = Story()
    story.at(5, both(5), job())
    story.at(100, (), job("ended", ended="unplanned", ended_unix_ns=unix(90)))
    story.at(100 + 601)
    assert story.book.runs["opt"].attempts["opt.1"].ranks == {}
    story.at(3 * DAY_S)
    assert story.book.runs["opt"].attempts == {}


def test_a_restart_of_the_processes_inside_one_attempt_counts_its_steps_anew() -> None:
    """torchrun starts its workers again: the same attempt, init once more, steps from the checkpoint."""
    story = Story()
    for t in range(0, 100, 5):
        story.at(t, both(t), job())
    fresh = {"pid": 500, "phase": "init", "step": None, "step_end_unix_ns": None, "phase_start_unix_ns": unix(101)}
    story.at(105, both(105, **fresh))
    for t in (125, 135, 145):
        step = {"step": int(t - 115) // 10, "pid": 500, "phase_start_unix_ns": unix(120)}
        story.at(t, both(t, **step))
    assert [line.step for line in story.of(StepEnded)][-2:] == [2, 3]
    assert len(views(story.book, later(T0, 145))) == 1


def test_a_loss_spike_rollback_inside_one_process_is_told() -> None:
    story = Story()
    for t in range(0, 100, 5):
        story.at(t, both(t), job())
    story.at(115, both(115, step=4, step_end_unix_ns=unix(112)))
    assert [(line.step, line.at_unix_ns) for line in story.of(StepEnded)][-1] == (4, snap_ns(unix(112)))


def test_a_book_is_a_plain_value_that_can_be_rebuilt_from_lines_in_any_order() -> None:
    story = Story()
    for t in range(0, 100, 5):
        story.at(t, both(t), job())
    ordered, backwards = from_ledger(story.lines), from_ledger(story.lines[::-1])
    assert ordered.runs["opt"].attempts["opt.1"].last_step == 9
    assert ordered == backwards
    assert msgspec.structs.asdict(story.lines[0])["attempt"] == "opt.1"


def test_a_suspended_attempt_does_not_stand_still_until_it_may_go_on() -> None:
    story = Story()
    story.at(0, both(0), job())
    for t in range(60, 1800, 60):
        story.at(t, both(0), job(suspended=True))
    (view,) = views(story.book, later(T0, 1800))
    assert view.moved_monotonic_ns == later(T0, 1740).monotonic_ns
    for t in range(1800, 2400, 60):
        story.at(t, both(0), job())
    (view,) = views(story.book, later(T0, 2400))
    assert view.moved_monotonic_ns == later(T0, 1740).monotonic_ns
