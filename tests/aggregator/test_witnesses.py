"""Scheduler and cloud as witnesses: an error is no answer, and no answer is never empty."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from pathlib import Path

import pytest

from gpuwatch.aggregator.clockwork import Clockwork
from gpuwatch.aggregator.committer import Committer
from gpuwatch.aggregator.guard import Guard
from gpuwatch.aggregator.people import People
from gpuwatch.aggregator.scene import Scene
from gpuwatch.aggregator.witnesses import Witness
from gpuwatch.errors import SchedulerError, StoreError
from gpuwatch.model.facts.kernel_log import KernelEvent
from gpuwatch.store.records import StoredEvent
from gpuwatch.store.sqlite import Store
from tests.fakes_hands import FakeClock, FakeCloud


class Source:
    """Answers with what the test put there."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def ask(self) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_an_error_leaves_the_last_good_answer_to_grow_old() -> None:
    clock, source = FakeClock(), Source()
    witness: Witness[object] = Witness("scheduler", source.ask, 5.0, clock)
    source.answers = ["first", SchedulerError("no socket"), ValueError("a leaf's bug"), "second"]
    witness.ask_once()
    asked = clock.monotonic_ns()
    clock.pass_s(10)
    witness.ask_once()
    assert witness.trouble() == "no socket"
    last = witness.last()
    assert last is not None
    assert (last.answer, last.asked.monotonic_ns) == ("first", asked)
    witness.ask_once()
    assert "a leaf's bug" in witness.trouble()
    witness.ask_once()
    assert (witness.trouble(), witness.answer_count, witness.error_count) == ("", 2, 2)


def test_fresh_means_asked_after() -> None:
    clock, source = FakeClock(), Source()
    witness: Witness[object] = Witness("cloud", source.ask, 5.0, clock)
    source.answers = ["before", "after"]
    witness.ask_once()
    since = clock.monotonic_ns()
    assert witness.fresh(since) is None
    clock.pass_s(1)
    witness.ask_once()
    assert witness.fresh(since) == "after"


def test_a_call_that_hangs_keeps_nobody_waiting() -> None:
    clock = FakeClock()
    let_go = threading.Event()
    witness: Witness[object] = Witness("scheduler", lambda: let_go.wait(20), 0.01, clock)
    witness.start()
    try:
        while witness._asking_since_ns is None:
            pass
        clock.pass_s(60)
        assert witness.trouble() == "has not answered for 60 s"
        assert witness.last() is None
    finally:
        let_go.set()
        witness.stop()


def event(name: str) -> StoredEvent:
    kernel = KernelEvent(id=name, at_unix_ns=1, kind="xid", text="x")
    return StoredEvent(machine="m", slot="s", boot_id="b", happened_unix_ns=1, event=kernel)


def test_many_reports_share_a_transaction_and_each_event_counts_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "l.db")
    committer = Committer(store)
    futures = [committer.keep([event(f"e{n % 20}"), event("shared")]) for n in range(60)]
    wait(futures, timeout=20)
    counted = [name for future in futures for _, name in future.result()]
    assert sorted(counted) == sorted([f"e{n}" for n in range(20)] + ["shared"])
    committer.close()
    assert len(store.events_since(0)) == 21


def test_what_cannot_be_stored_is_told_to_everyone_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "l.db")

    committer = Committer(store)
    for trouble in (StoreError("cannot write", why="the disk is full"), ZeroDivisionError("cannot write: a bug")):

        def full(*_: object, trouble: Exception = trouble) -> set[str]:
            raise trouble

        monkeypatch.setattr(store, "keep", full)
        future = committer.keep([event("e1")])
        with pytest.raises(type(trouble), match="cannot write"):
            future.result(timeout=10)
        monkeypatch.undo()
    assert committer.keep([event("e1")]).result(timeout=10) == {("m", "e1")}
    committer.close()


def test_an_approval_expires_and_a_hold_does_not(tmp_path: Path) -> None:
    clock = FakeClock()
    store = Store(tmp_path / "l.db")
    people = People(store, clock)
    people.approve("a1", "kim", 60)
    people.hold("gpu01", "kim", "debugging")
    assert people.approved() == ("a1",)
    clock.pass_s(61)
    assert people.approved() == ()
    assert People(store, clock).holds() == {"gpu01": "kim: debugging"}
    assert people.lift("gpu01", "lee")
    assert not people.lift("gpu01", "lee")
    assert People(store, clock).holds() == {}


def test_a_hold_file_that_cannot_be_read_holds(tmp_path: Path) -> None:
    scene = Scene(now=FakeClock().now())
    folder_in_place_of_a_file = tmp_path / "HOLD"
    folder_in_place_of_a_file.mkdir()
    guard = Guard(hold_file=folder_in_place_of_a_file, policies={}, human_holds=dict, scene=lambda: scene)
    assert "taken as a hold" in guard.hold_everything()


def test_the_clockwork_counts_anew_after_a_step_and_survives_errors(tmp_path: Path) -> None:
    clock = FakeClock()
    store = Store(tmp_path / "l.db")
    cloud = FakeCloud(clock)
    work = Clockwork(store=store, clock=clock, event_days=1, cloud=cloud, provider="fake", bill_every_s=3600)
    work.start()
    before = work._scheduler.get_job("import_bill").next_run_time
    work.clock_stepped()
    assert work._scheduler.get_job("import_bill").next_run_time >= before
    work.import_bill()
    work.tidy()
    store.close()
    work.stop()
    work.stop()
