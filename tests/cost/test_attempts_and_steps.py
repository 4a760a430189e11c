"""What an attempt's own lines show: start-up, phases, spread steps, slow steps, ends of every kind."""

from __future__ import annotations

from collections import Counter

import pytest

from gpuwatch.cost.intervals import account, partition
from gpuwatch.cost.step_time import StepTime, UsualLength
from tests.ledgers import MINUTE, Pen, at


def alone() -> Pen:
    pen = Pen()
    pen.node("n", 0)
    pen.hold(["n"], 0)
    return pen


def minutes(pen: Pen, now: float = 60) -> dict[str, float]:
    total: Counter[str] = Counter()
    for one in partition(pen.lines, at(now)):
        total[one.category.value] += one.end_unix_ns - one.start_unix_ns
    return {category: round(ns / MINUTE, 3) for category, ns in total.items()}


def test_start_up_to_the_first_execution() -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 6, 12, resumed=0)
    pen.step("1", 1, 18)
    pen.end("1", 18, "exit0")
    assert minutes(pen, 18) == {"startup": 12.0, "productive": 6.0}


def test_without_the_end_of_init_the_first_execution_is_an_ideal_one() -> None:
    pen = alone()
    pen.start("1", 0, ["n"], expected_step_s=120.0)
    pen.phase("1", "init", 0)
    pen.step("1", 1, 18)
    pen.end("1", 18, "exit0")
    assert minutes(pen, 18) == {"startup": 16.0, "productive": 2.0}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("unplanned", {"startup": 30.0, "hung": 24.0}),
        ("planned", {"startup": 54.0}),
        ("exit0", {"startup": 54.0}),
        (None, {"startup": 30.0, "hung": 24.0}),  # still going on
    ],
)
def test_init_that_never_ends_is_start_up_at_most_for_its_usual_length(
    how: str | None, expected: dict[str, float]
) -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0)
    if how is not None:
        pen.end("1", 54, how)  # type: ignore[arg-type]
    assert minutes(pen, 54) == expected


def test_the_usual_length_of_a_phase_is_learned() -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    for i, length in enumerate((1, 2, 9)):
        pen.phase("1", "checkpoint", 10 * i, 10 * i + length)
    pen.phase("1", "checkpoint", 30)
    pen.end("1", 60, "unplanned")
    found = minutes(pen, 60)
    assert found["checkpoint"] == 1 + 2 + 9 + 2  # the lower median of 1, 2 and 9
    assert found["hung"] == 28


def test_steps_between_two_recorded_ends_are_spread_evenly() -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 10, 30)
    pen.saved("1", 0, 0)
    pen.end("1", 30, fault="F")
    pen.start("2", 30, ["n"])
    pen.phase("2", "init", 30, 30, resumed=4)
    pen.step("2", 5, 33)
    found = minutes(pen, 33)
    assert found == {"productive": 4 * 3 + 3.0, "lost_work": 6 * 3.0}


def test_a_save_between_two_recorded_ends_belongs_to_no_step() -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 1, 3)
    pen.phase("1", "checkpoint", 6, 12)
    pen.step("1", 3, 15)
    assert minutes(pen, 15) == {"productive": 9.0, "checkpoint": 6.0}


@pytest.mark.parametrize(("last_s", "slow_s"), [(63.0, 0.0), (63.001, 3.001), (120.0, 60.0), (30.0, 0.0)])
def test_only_the_excess_over_the_ideal_of_a_step_of_more_than_five_percent_is_slow(
    last_s: float, slow_s: float
) -> None:
    pen = alone()
    pen.start("1", -200, ["n"])
    pen.phase("1", "init", -200, -200, resumed=0)
    pen.node("n", -200)
    pen.steps("1", 1, 200, -200, 1)
    pen.step("1", 201, last_s / 60)
    pen.end("1", last_s / 60, "exit0")
    slow = sum(o.end_unix_ns - o.start_unix_ns for o in partition(pen.lines, at(60)) if o.category == "slow")
    assert slow / 10**9 == pytest.approx(slow_s, abs=1e-5)


def test_nothing_is_slow_before_a_hundred_steps_unless_the_owner_said_how_long_one_takes() -> None:
    for expected, slow in ((None, 0.0), (60.0, 9.0)):
        pen = alone()
        pen.start("1", 0, ["n"], expected_step_s=expected)
        pen.phase("1", "init", 0, 0, resumed=0)
        pen.steps("1", 1, 10, 0, 1)
        pen.step("1", 11, 20)
        assert minutes(pen, 20).get("slow", 0.0) == slow


def test_warm_up_steps_and_slow_ones_teach_nothing_and_scale_starts_afresh() -> None:
    times = StepTime()
    times.begin_attempt((8, 8, None), None)
    times.executed(10 * 999, 10)
    times.executed(99 * 100, 99)
    assert times.ideal_ns() is None
    assert times.cut_ns() == 100
    times.executed(100, 1)
    assert times.ideal_ns() == 100
    for _ in range(200):
        times.executed(200, 1)
    assert times.ideal_ns() == 100
    times.begin_attempt((8, 8, None), None)
    assert times.ideal_ns() == 100
    times.begin_attempt((7, 8, None), 500)
    assert times.ideal_ns() == 500
    assert times.cut_ns() == 500


def test_a_block_of_many_steps_teaches_as_if_each_were_alone() -> None:
    one, many = StepTime(), StepTime()
    for times in (one, many):
        times.begin_attempt("x", None)
    for _ in range(150):
        one.executed(70, 1)
    many.executed(150 * 70, 150)
    assert one.ideal_ns() == many.ideal_ns() == 70
    assert sum(count for count, _ in many.executed(7_000_000_000, 100_000_000)) == 100_000_000


def test_usual_lengths_before_the_first() -> None:
    usual = UsualLength()
    assert [usual.ns(phase) // MINUTE for phase in ("init", "checkpoint", "evaluate")] == [30, 10, 60]


def test_a_job_without_heartbeats_is_unknown() -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.end("1", 30, "exit0")
    found = partition(pen.lines, at(30))
    assert [(one.category, one.cause) for one in found] == [("unknown", "no_step_evidence")]


def test_an_attempt_without_step_evidence_ends_a_recovery_at_its_start() -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 1, 6)
    pen.end("1", 6, fault="F")
    pen.start("2", 12, ["n"])
    assert minutes(pen, 30) == {"productive": 6.0, "recovery": 6.0, "unknown": 18.0}


def test_attempts_that_never_start_an_execution_lie_inside_the_recovery() -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 1, 6)
    pen.end("1", 6, fault="F1")
    pen.start("2", 9, ["n"])
    pen.phase("2", "init", 9)
    pen.end("2", 15, fault="F2")
    pen.start("3", 18, ["n"])
    pen.phase("3", "init", 18, 24, resumed=1)
    pen.step("3", 2, 30)
    found = partition(pen.lines, at(30))
    recovery = {(one.start_unix_ns, one.end_unix_ns, one.fault) for one in found if one.category == "recovery"}
    assert (at(6), at(9), "F1") in recovery
    assert max(end for _, end, _ in recovery) == at(24)
    assert {fault for start, _, fault in recovery if start >= at(15)} == {"F2"}  # its own stop, its own fault
    assert minutes(pen, 30) == {"productive": 12.0, "recovery": 18.0}


def test_an_init_phase_in_mid_attempt_is_a_restart_in_place() -> None:
    pen = alone()
    pen.start("1", 0, ["n"], expected_step_s=180.0)
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.steps("1", 1, 4, 0, 3)
    pen.fault("F", 12, 13, run="train", kind="run_stalled")
    pen.phase("1", "init", 18, 21, resumed=2)
    pen.steps("1", 3, 3, 21, 3)
    found = partition(pen.lines, at(30))
    lost = [one for one in found if one.category == "lost_work"]
    assert {one.fault for one in lost} == {"F"}
    assert minutes(pen, 30) == {"productive": 6 + 9.0, "lost_work": 6.0 + 3.0, "hung": 3.0, "recovery": 3.0}


def test_the_next_attempt_ends_the_one_before() -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 1, 6)
    pen.start("2", 12, ["n"])
    pen.phase("2", "init", 12, 15, resumed=1)
    pen.end("1", 24, "unplanned")
    assert account(pen.lines, at(30)).runs["train"].deeds[0].part.end == at(12)


@pytest.mark.parametrize(
    ("save", "suspect", "kept"), [(None, False, 12.0), (2, False, 6.0), (2, True, 0.0), (4, False, 12.0)]
)
def test_given_up_loses_the_tail_after_the_last_durable_save(save: int | None, suspect: bool, kept: float) -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.steps("1", 1, 4, 0, 3)
    if save is not None:
        pen.saved("1", save, 3 * save)
    if suspect:
        pen.saved("1", 2, 11, suspect=True)
    pen.end("1", 12, "planned")
    pen.close(13, "given_up")
    known = account(pen.lines, at(13))
    found = minutes(pen, 13)
    assert found.get("productive", 0.0) == kept
    assert found.get("lost_work", 0.0) == 12 - kept
    assert bool(known.findings) == (save is None)  # no save was ever reported: the tail is not known, and that is said


def test_a_run_is_given_up_a_week_after_its_last_attempt() -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.steps("1", 1, 4, 0, 3)
    pen.saved("1", 2, 6)
    pen.end("1", 12, "planned")
    week = 12 + 7 * 24 * 60
    assert minutes(pen, week - 1)["productive"] == 12
    assert minutes(pen, week)["lost_work"] == 6


def test_a_step_repeated_in_the_same_attempt_is_a_rollback() -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.steps("1", 1, 4, 0, 3)
    pen.steps("1", 3, 4, 12, 3)
    assert minutes(pen, 24) == {"productive": 18.0, "lost_work": 6.0}


def test_the_first_step_after_a_resume_is_taken_from_the_last_save_where_nobody_says() -> None:
    pen = alone()
    pen.start("1", 0, ["n"])
    pen.phase("1", "init", 0, 0)
    pen.steps("1", 1, 6, 0, 3)
    pen.saved("1", 3, 9)
    pen.end("1", 18, fault="F")
    pen.start("2", 18, ["n"])
    pen.phase("2", "init", 18, 18)
    pen.step("2", 5, 24)  # the first record after the restart
    assert minutes(pen, 24) == {"productive": 9.0 + 6.0, "lost_work": 9.0}


def test_a_stop_with_a_fault_is_no_planned_one() -> None:
    pen = alone()
    pen.start("1", 0, ["n"], expected_step_s=180.0)
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 1, 3)
    pen.end("1", 30, "planned", fault="F")
    assert minutes(pen, 30) == {"productive": 3.0, "lost_work": 3.0, "hung": 24.0}


def test_a_stop_finds_its_fault_where_its_end_names_none() -> None:
    pen = alone()
    pen.node("peer", 0)
    pen.hold(["peer"], 0)
    pen.start("1", 0, ["n", "peer"], expected_step_s=60.0)
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.step("1", 1, 3)
    pen.fault("old", -100, -99, "peer")
    pen.fault("F", 3.5, 5, "n")
    pen.fault("follows", 4, 6, "peer")
    pen.end("1", 9)
    found = {one.fault for one in partition(pen.lines, at(12)) if one.category in ("lost_work", "hung", "recovery")}
    assert found == {"F"}


def test_members_that_nobody_bills_cost_nothing_and_are_told_of() -> None:
    pen = alone()
    pen.start("1", 0, ["n", "stranger"])
    known = account(pen.lines, at(30))
    assert {one.machine for one in known.intervals} == {"n"}
    assert any("stranger" in finding for finding in known.findings)


@pytest.mark.parametrize(
    ("now", "fault", "hung"), [(4.5, False, 0.0), (4.9, False, 0.0), (5.1, False, 1.1), (4.5, True, 0.5)]
)
def test_a_live_step_is_no_hang_while_its_end_may_only_be_on_its_way(now: float, fault: bool, hung: float) -> None:
    pen = alone()
    pen.start("1", 0, ["n"], expected_step_s=60.0)
    pen.phase("1", "init", 0, 0, resumed=0)
    pen.steps("1", 1, 3, 0, 1)
    if fault:
        pen.fault("F", 4, 4.2, run="train", kind="run_stalled")
    found = minutes(pen, now)
    assert found.get("hung", 0.0) == hung
    assert found["productive"] == round(now - hung, 3)
