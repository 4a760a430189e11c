"""The ledger on disk: in order, all or none, one writer, and clear words when it cannot."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.errors import StoreError
from gpuwatch.model.facts.kernel_log import KernelEvent
from gpuwatch.model.ledger import FaultNote, FaultOpened, HealthChanged, HoldNoted, HumanAct, LedgerLine
from gpuwatch.model.money import BillRow
from gpuwatch.model.wire import Goodbye
from gpuwatch.store.records import Approval, HumanHold, LastSeen, SagaRow, StoredEvent
from gpuwatch.store.sqlite import Store
from gpuwatch.store.tables import SCHEMA_VERSION


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def note(at: int, text: str = "x") -> FaultNote:
    return FaultNote(at_unix_ns=at, fault="f1", text=text)


def xid(event_id: str, at: int = 5) -> StoredEvent:
    event = KernelEvent(id=event_id, at_unix_ns=at, kind="xid", text="NVRM: Xid", xid=79, boot_id="b1")
    return StoredEvent(machine="m1", slot="gpu01", boot_id="b1", happened_unix_ns=at + 1, event=event)


def test_lines_come_back_as_they_were_written_ordered_by_time_then_writing(path: Path) -> None:
    opened = FaultOpened(at_unix_ns=20, fault="f1", kind="xid", onset_unix_ns=10, cause="xid_79", because="fell off")
    sick = HealthChanged(at_unix_ns=10, machine="m1", slot="s1", health="dead", because="two witnesses")
    act = HumanAct(at_unix_ns=20, who="kim", what="approve", subject="a1")
    store = Store(path)
    store.append([opened, act])
    store.append([sick])
    assert store.lines() == [sick, opened, act]
    assert store.lines(until_unix_ns=19) == [sick]
    assert store.lines_of("fault_opened", "human_act") == [opened, act]
    assert Store(path).lines() == [sick, opened, act]


@settings(max_examples=25, deadline=None)
@given(batches=st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=5))
def test_a_follower_sees_every_line_once(batches: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    store = Store(tmp_path_factory.mktemp("follow") / "l.db")
    written: list[LedgerLine] = []
    followed: list[LedgerLine] = []
    row = 0
    for batch in batches:
        lines = [note(at, str(len(written) + i)) for i, at in enumerate(batch)]
        store.append(lines)
        written += lines
        row, new = store.lines_after(row)
        followed += new
    assert followed == written
    assert store.lines() == sorted(written, key=lambda line: line.at_unix_ns)  # stable: writing order within a moment
    store.close()


def test_a_failed_batch_leaves_nothing(path: Path) -> None:
    store = Store(path)
    broken = HoldNoted(at_unix_ns=1, slot="s", machine="m", reason="r", because="b")
    with pytest.raises(AttributeError):
        store.append([note(1), object(), broken])  # type: ignore[list-item]
    assert store.lines() == []


def test_an_event_is_counted_once(path: Path) -> None:
    store = Store(path)
    assert store.keep([xid("e1"), xid("e2")]) == {("m1", "e1"), ("m1", "e2")}
    assert store.keep([xid("e2"), xid("e3")]) == {("m1", "e3")}
    assert [item.event.id for item in Store(path).events_since(0)] == ["e1", "e2", "e3"]


class _Blind(sqlite3.Cursor):
    @property
    def rowcount(self) -> int:
        return -1


class _BlindConnection(sqlite3.Connection):
    def cursor(self, factory: Any = _Blind) -> Any:
        return super().cursor(factory)


def test_an_event_is_counted_once_where_a_cursor_does_not_tell(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python 3.11 in a Turkish locale, whose lower-case I is another letter: it does not know the word INSERT."""
    monkeypatch.setattr("gpuwatch.store.connection.sqlite3.connect", partial(sqlite3.connect, factory=_BlindConnection))
    store = Store(path)
    assert store.keep([xid("e1"), xid("e2")]) == {("m1", "e1"), ("m1", "e2")}
    assert store.keep([xid("e2"), xid("e3"), xid("e3")]) == {("m1", "e3")}
    assert (store.forget_events(0), len(store.events_since(0))) == (0, 3)


def test_no_machine_can_use_up_the_event_ids_of_another(path: Path) -> None:
    store = Store(path)
    mine = xid("e1")
    forged = msgspec.structs.replace(mine, machine="m2")
    assert store.keep([forged]) == {("m2", "e1")}
    assert store.keep([mine, forged]) == {("m1", "e1")}
    assert sorted(item.machine for item in Store(path).events_since(0)) == ["m1", "m2"]


def test_a_number_that_the_file_cannot_hold_is_told_like_any_other_trouble(path: Path) -> None:
    store = Store(path)
    for bad in (1 << 63, -(1 << 70)):
        with pytest.raises(StoreError, match="larger than the ledger can hold"):
            store.keep([xid("e1", at=bad)])
    assert store.keep([xid("e1")]) == {("m1", "e1")}


def test_a_cleared_event_stays_counted_but_is_not_given_out(path: Path) -> None:
    store = Store(path)
    store.keep([xid("e1")])
    store.clear_events("m1", [HumanAct(at_unix_ns=9, who="kim", what="clear", subject="gpu01")])
    assert store.events_since(0) == []
    assert store.keep([xid("e1")]) == set()
    assert len(store.lines_of("human_act")) == 1


def test_retention_drops_old_events_only(path: Path) -> None:
    store = Store(path)
    store.keep([xid("old", at=5), xid("new", at=500)])
    assert store.forget_events(before_unix_ns=100) == 1
    assert [item.event.id for item in store.events_since(0)] == ["new"]


def test_last_seen_is_one_row_a_machine(path: Path) -> None:
    store = Store(path)
    first = LastSeen(machine="m1", slot="s1", lifecycle="in_service", boot_id="b1", sequence=4)
    store.keep(seen=[first])
    later = LastSeen(machine="m1", slot="s1", lifecycle="drained", boot_id="b2", goodbye=Goodbye("upgrade", 7))
    store.keep(seen=[later])
    assert Store(path).last_seen() == [later]


def test_actions_approvals_and_holds_survive(path: Path) -> None:
    store = Store(path)
    store.save_saga(SagaRow(action_id="a1", ended=False, started_unix_ns=5, body=b"one"), [note(5)])
    store.save_saga(SagaRow(action_id="a1", ended=True, started_unix_ns=5, body=b"two"))
    store.save_saga(SagaRow(action_id="a2", ended=False, started_unix_ns=3, body=b"open"))
    approval = Approval(action_id="a1", who="kim", approved_unix_ns=1, expires_unix_ns=2)
    store.save_approval(approval)
    hold = HumanHold(slot="s1", who="kim", because="debugging", at_unix_ns=4)
    store.save_human_hold(hold)
    again = Store(path)
    assert [(row.action_id, row.ended, row.body) for row in again.sagas()] == [
        ("a2", False, b"open"),
        ("a1", True, b"two"),
    ]
    assert [row.action_id for row in again.sagas(since_unix_ns=6)] == ["a2"]  # open ones are never too old
    assert again.approvals() == [approval]
    assert again.human_holds() == [hold]
    again.drop_human_hold("s1")
    assert again.human_holds() == []


def test_a_bill_is_replaced_provider_by_provider(path: Path) -> None:
    def row(machine: str, cost: str) -> BillRow:
        return BillRow(
            machine=machine,
            period_start_unix_ns=0,
            period_end_unix_ns=3_600_000_000_000,
            quantity_ticks=10**9,
            cost_usd=Decimal(cost),
        )

    store = Store(path)
    store.set_bill("azure", [row("m1", "27.197")])
    store.set_bill("gcp", [row("m2", "1.10")])
    store.set_bill("azure", [row("m1", "27.1970000000000000000000000000001")])
    assert [(r.machine, str(r.cost_usd)) for r in store.bill_rows()] == [
        ("m2", "1.10"),
        ("m1", "27.1970000000000000000000000000001"),
    ]


def test_small_state_is_replaced_whole(path: Path) -> None:
    store = Store(path)
    assert store.kept("runs") is None
    store.save_kept("runs", b"1")
    store.save_kept("runs", b"2", [note(1)])
    assert Store(path).kept("runs") == b"2"


def test_a_second_aggregator_is_refused_and_a_reader_is_not(path: Path) -> None:
    first = Store(path, sole=True)
    with pytest.raises(StoreError, match="another aggregator") as refusal:
        Store(path, sole=True)
    assert str(os.getpid()) in refusal.value.why
    Store(path).lines()
    first.close()
    Store(path, sole=True).close()


def test_a_ledger_behind_a_link_is_the_same_ledger(path: Path, tmp_path: Path) -> None:
    """SQLite keeps its write-ahead log beside the file itself: who looks beside the link takes it for an idle one."""
    first = Store(path, sole=True)
    first.append([note(1)])
    for number, folder in enumerate((tmp_path / "links", tmp_path)):
        folder.mkdir(exist_ok=True)
        link = folder / f"link-{number}.db"
        link.symlink_to(path)
        with pytest.raises(StoreError, match="another aggregator"):
            Store(link, sole=True)
        assert len(Store(link, reads_only=True).lines()) == 1
    (tmp_path / "folder").symlink_to(path.parent)
    with pytest.raises(StoreError, match="another aggregator"):
        Store(tmp_path / "folder" / path.name, sole=True)
    first.close()


def test_a_lock_that_cannot_be_had_is_not_another_aggregator(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("gpuwatch.store.lock.fcntl.flock", no_locks)
    with pytest.raises(StoreError, match="cannot be locked") as refusal:
        Store(path, sole=True)
    assert "No locks available" in refusal.value.why


def test_a_full_disk_keeps_nobody_from_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gpuwatch.store.lock.os.write", full)
    held = Store(path, sole=True)
    with pytest.raises(StoreError, match="another aggregator"):
        Store(path, sole=True)
    held.close()


def test_a_closed_ledger_takes_nothing_more(path: Path) -> None:
    store = Store(path, sole=True)
    store.append([note(1)])
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.append([note(2)])
    assert len(Store(path, sole=True).lines()) == 1


def test_threads_write_and_read_at_once(path: Path) -> None:
    store = Store(path)

    def write(start: int) -> None:
        for at in range(start, start + 20):
            store.append([note(at)])
            store.lines_after(0)

    threads = [threading.Thread(target=write, args=(n * 100,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.lines()) == 80


@pytest.mark.parametrize(
    ("bytes_", "why"),
    [
        pytest.param(b"this is no database, only text " * 40, "no SQLite database", id="not-a-database"),
        pytest.param(None, "cannot be opened", id="folder-instead-of-file"),
    ],
)
def test_a_file_that_is_no_ledger_is_named_with_a_next_step(path: Path, bytes_: bytes | None, why: str) -> None:
    path.mkdir() if bytes_ is None else path.write_bytes(bytes_)
    with pytest.raises(StoreError) as trouble:
        Store(path)
    assert why in trouble.value.why
    assert str(path) in trouble.value.next_step


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as trouble:
        Store(tmp_path / "nowhere" / "l.db", sole=True)
    assert "create the folder" in trouble.value.next_step


def test_a_newer_ledger_is_refused_untouched(path: Path) -> None:
    Store(path).close()
    raw = sqlite3.connect(path)
    raw.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(SCHEMA_VERSION + 1),))
    raw.commit()
    with pytest.raises(StoreError, match="newer gpuwatch"):
        Store(path)


def test_a_full_disk_is_said_and_passes_when_there_is_room(path: Path) -> None:
    store = Store(path)
    store.append([note(1)])
    with store._engine.connect() as db:  # the page limit of this one connection stands in for the disk's
        raw = db.connection.dbapi_connection
        assert raw is not None
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreError) as trouble:
        store.append([note(2, "x" * 100_000)])
    assert trouble.value.why.startswith("the disk is full")
    assert "free space" in trouble.value.next_step
    with store._engine.connect() as db:
        raw = db.connection.dbapi_connection
        assert raw is not None
        raw.execute("PRAGMA max_page_count=1000000")
    store.append([note(3)])
    assert [line.at_unix_ns for line in store.lines()] == [1, 3]


def test_a_locked_file_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatch.store.connection.BUSY_MS", 10)
    store = Store(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError) as trouble:
        store.append([note(1)])
    assert "another process" in trouble.value.why
    other.execute("ROLLBACK")
    store.append([note(1)])


def test_kill_9_loses_no_line_that_append_returned_for(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from gpuwatch.store.sqlite import Store;"
        "from gpuwatch.model.ledger import FaultNote; store = Store(Path(sys.argv[1]), sole=True);"
        "[(store.append([FaultNote(at_unix_ns=n, fault='f', text='t')]), print(n, flush=True)) for n in range(10**6)]"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    acknowledged = [int(child.stdout.readline()) for _ in range(20)]
    child.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in child.stdout.read().split("\n") if line]
    child.wait()
    stored = [line.at_unix_ns for line in Store(path, sole=True).lines()]  # the dead process's lock is gone too
    assert stored[: len(acknowledged)] == acknowledged


def test_a_reader_changes_nothing_and_needs_no_right_to_write(path: Path) -> None:
    store = Store(path)
    store.append([note(1)])
    beside = Store(path, reads_only=True)  # while it is being written
    store.append([note(2)])
    assert [line.at_unix_ns for line in beside.lines()] == [1, 2]
    with pytest.raises(StoreError, match="may not be written"):
        beside.append([note(3)])
    beside.close()
    store.close()
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    alone = Store(path, reads_only=True)
    assert len(alone.lines()) == 2
    alone.close()
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_an_empty_file_is_no_ledger_and_stays_empty(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreError, match="there is no ledger in the file"):
        Store(path, reads_only=True)
    assert path.stat().st_size == 0
