"""The SQLite store: one file, WAL, every acknowledged line on the disk before the call returns."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, create_engine, delete, event, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.pool import QueuePool

from gpuwatch.errors import StoreError
from gpuwatch.model.facts.kernel_log import KernelEvent
from gpuwatch.model.ledger import LedgerLine
from gpuwatch.model.money import BillRow
from gpuwatch.store import tables as t
from gpuwatch.store.connection import to_read, to_write
from gpuwatch.store.lock import hold
from gpuwatch.store.records import Approval, EventKey, HumanHold, LastSeen, SagaRow, StoredEvent
from gpuwatch.store.trouble import told

_LINES = msgspec.json.Decoder(LedgerLine)
_EVENT = msgspec.json.Decoder(KernelEvent)
_SEEN = msgspec.json.Decoder(LastSeen)
_BILL = msgspec.json.Decoder(BillRow)
_JSON = msgspec.json.Encoder()


class Store:
    """The ledger and its companions in one SQLite file. Safe to use from several threads.

    `sole=True` is for the aggregator: a second one on the same file is refused. `reads_only=True` is for reports: it
    needs no right to write and changes nothing. With neither, the file may be imported into beside a running
    aggregator. Raises `StoreError`.
    """

    def __init__(self, path: Path, *, sole: bool = False, reads_only: bool = False) -> None:
        self.path = path
        self._reads_only = reads_only
        self._write = threading.Lock()  # SQLite has one writer; waiting here costs no busy time-outs
        self._closed = False
        self._lock_fd = hold(path) if sole else None
        try:
            self._engine = create_engine("sqlite+pysqlite://", creator=self._connect, poolclass=QueuePool, pool_size=8)
            event.listen(self._engine, "begin", _begin)
            if reads_only:
                with told(path, "open"), self._reading() as db:
                    self._check_version(db)
            else:
                with told(path, "open"), self._writing() as db:
                    t.METADATA.create_all(db)
                    self._check_version(db)
        except BaseException:
            self._unlock()
            raise

    def close(self) -> None:
        """Close the file and let the next aggregator have it: what still tries to write here fails."""
        with self._write:
            self._closed = True
        self._engine.dispose()
        self._unlock()

    # the ledger

    def append(self, lines: Sequence[LedgerLine]) -> None:
        """Write these lines in one transaction: all or none, and on the disk when this returns."""
        if lines:
            with told(self.path, "append to"), self._writing() as db:
                _append(db, lines)

    def lines(self, until_unix_ns: int | None = None) -> list[LedgerLine]:
        """Every line up to and with this moment, by `at_unix_ns`, then in the order of writing."""
        where, args = ("", ()) if until_unix_ns is None else (" WHERE at_unix_ns <= ?", (until_unix_ns,))
        return self._scan(f"SELECT body FROM ledger{where} ORDER BY at_unix_ns, id", args)

    def lines_of(self, *kinds: str) -> list[LedgerLine]:
        """Every line of these kinds (the tags of `model.ledger`), in the order of writing."""
        marks = ", ".join("?" * len(kinds))
        return self._scan(f"SELECT body FROM ledger WHERE line IN ({marks}) ORDER BY id", kinds)

    def lines_after(self, row_id: int) -> tuple[int, list[LedgerLine]]:
        """The lines written after this row and the last row's id: for readers that follow. 0 begins."""
        with told(self.path, "read"), self._reading() as db:
            rows = db.exec_driver_sql("SELECT id, body FROM ledger WHERE id > ? ORDER BY id", (row_id,)).fetchall()
        return (rows[-1][0] if rows else row_id), [_LINES.decode(row[1]) for row in rows]

    def last_row_id(self) -> int:
        """Where a follower that knows everything so far goes on."""
        with told(self.path, "read"), self._reading() as db:
            return int(db.exec_driver_sql("SELECT COALESCE(MAX(id), 0) FROM ledger").scalar_one())

    # events and who was heard

    def keep(self, events: Sequence[StoredEvent] = (), seen: Sequence[LastSeen] = ()) -> set[EventKey]:
        """Store events (each once) and last-seen rows in one transaction. Returns the keys that were new."""
        fresh: set[EventKey] = set()
        with told(self.path, "write events to"), self._writing() as db:
            for item in events:
                statement = upsert(t.EVENTS).values(
                    event_id=item.event.id,
                    machine=item.machine,
                    slot=item.slot,
                    boot_id=item.boot_id,
                    at_unix_ns=item.event.at_unix_ns,
                    happened_unix_ns=item.happened_unix_ns,
                    cleared=0,
                    body=_JSON.encode(item.event),
                )
                db.execute(statement.on_conflict_do_nothing())
                if _changed(db):
                    fresh.add(item.key())
            _put(db, t.LAST_SEEN, [{"machine": row.machine, "body": _JSON.encode(row)} for row in seen])
        return fresh

    def events_since(self, happened_unix_ns: int) -> list[StoredEvent]:
        """Events that happened at or after this moment that nobody cleared, oldest first."""
        columns = t.EVENTS.c
        wanted = select(columns.machine, columns.slot, columns.boot_id, columns.happened_unix_ns, columns.body)
        wanted = wanted.where(columns.happened_unix_ns >= happened_unix_ns, columns.cleared == 0)
        with told(self.path, "read events from"), self._reading() as db:
            rows = db.execute(wanted.order_by(columns.happened_unix_ns)).fetchall()
        return [
            StoredEvent(machine=m, slot=s, boot_id=b, happened_unix_ns=r, event=_EVENT.decode(body))
            for m, s, b, r, body in rows
        ]

    def clear_events(self, machine: str, lines: Sequence[LedgerLine] = ()) -> None:
        """From now on this machine's events up to now are history only."""
        with told(self.path, "clear events in"), self._writing() as db:
            db.execute(update(t.EVENTS).where(t.EVENTS.c.machine == machine).values(cleared=1))
            _append(db, lines)

    def forget_events(self, before_unix_ns: int) -> int:
        """Retention: drop events that happened before this moment. Returns how many."""
        with told(self.path, "tidy"), self._writing() as db:
            db.execute(delete(t.EVENTS).where(t.EVENTS.c.happened_unix_ns < before_unix_ns))
            return _changed(db)

    def last_seen(self) -> list[LastSeen]:
        """Every machine that was ever heard of and not forgotten."""
        with told(self.path, "read"), self._reading() as db:
            return [_SEEN.decode(row[0]) for row in db.execute(select(t.LAST_SEEN.c.body))]

    # actions and people's orders

    def save_saga(self, row: SagaRow, lines: Sequence[LedgerLine] = ()) -> None:
        """Store one action's state together with the ledger lines that tell of it."""
        values = {"action_id": row.action_id, "ended": int(row.ended), "started_unix_ns": row.started_unix_ns}
        with told(self.path, "write an action to"), self._writing() as db:
            _put(db, t.SAGAS, [{**values, "body": row.body}])
            _append(db, lines)

    def sagas(self, since_unix_ns: int = 0) -> list[SagaRow]:
        """Open actions, and the ended ones that began at or after this moment, oldest first."""
        columns = t.SAGAS.c
        wanted = select(columns.action_id, columns.ended, columns.started_unix_ns, columns.body)
        wanted = wanted.where((columns.ended == 0) | (columns.started_unix_ns >= since_unix_ns))
        with told(self.path, "read actions from"), self._reading() as db:
            rows = db.execute(wanted.order_by(columns.started_unix_ns, columns.action_id)).fetchall()
        return [SagaRow(action_id=a, ended=bool(e), started_unix_ns=s, body=body) for a, e, s, body in rows]

    def save_approval(self, row: Approval, lines: Sequence[LedgerLine] = ()) -> None:
        """Store that a person agreed to an action."""
        with told(self.path, "write an approval to"), self._writing() as db:
            _put(db, t.APPROVALS, [msgspec.structs.asdict(row)])
            _append(db, lines)

    def approvals(self) -> list[Approval]:
        """Every approval, expired ones too."""
        return [Approval(**row) for row in self._rows(t.APPROVALS)]

    def save_human_hold(self, row: HumanHold, lines: Sequence[LedgerLine] = ()) -> None:
        """Store that a person wants hands off a slot."""
        with told(self.path, "write a hold to"), self._writing() as db:
            _put(db, t.HUMAN_HOLDS, [msgspec.structs.asdict(row)])
            _append(db, lines)

    def drop_human_hold(self, slot: str, lines: Sequence[LedgerLine] = ()) -> None:
        """A person lifts the hold."""
        with told(self.path, "lift a hold in"), self._writing() as db:
            db.execute(delete(t.HUMAN_HOLDS).where(t.HUMAN_HOLDS.c.slot == slot))
            _append(db, lines)

    def human_holds(self) -> list[HumanHold]:
        """Every slot that a person wants left alone."""
        return [HumanHold(**row) for row in self._rows(t.HUMAN_HOLDS)]

    # bills and small state

    def set_bill(self, provider: str, rows: Iterable[BillRow]) -> None:
        """Replace everything known of this provider's bill: a bill is restated until it closes."""
        values = [{"provider": provider, "body": _JSON.encode(row)} for row in rows]
        with told(self.path, "write a bill to"), self._writing() as db:
            db.execute(delete(t.BILLS).where(t.BILLS.c.provider == provider))
            if values:
                db.execute(insert(t.BILLS), values)

    def bill_rows(self) -> list[BillRow]:
        """Every bill row of every provider, in the order of writing."""
        with told(self.path, "read bills from"), self._reading() as db:
            return [_BILL.decode(row[0]) for row in db.execute(select(t.BILLS.c.body).order_by(t.BILLS.c.id))]

    def save_kept(self, key: str, body: bytes, lines: Sequence[LedgerLine] = ()) -> None:
        """Replace one small piece of state together with the ledger lines that belong to it."""
        with told(self.path, "write to"), self._writing() as db:
            _put(db, t.KEPT, [{"key": key, "body": body}])
            _append(db, lines)

    def kept(self, key: str) -> bytes | None:
        """That piece of state, or None if it was never saved."""
        with told(self.path, "read"), self._reading() as db:
            row = db.execute(select(t.KEPT.c.body).where(t.KEPT.c.key == key)).fetchone()
        return None if row is None else bytes(row[0])

    def optimize(self) -> None:
        """Keep the planner's statistics fresh and the write-ahead log short; cheap, once a day."""
        with told(self.path, "tidy"), self._write, self._engine.connect() as db:
            raw = db.connection.dbapi_connection
            assert raw is not None
            raw.execute("PRAGMA optimize")
            raw.execute("PRAGMA wal_checkpoint(PASSIVE)")

    # inside

    def _connect(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(
                f"the ledger {self.path} is closed", why="this process is ending", next_step="start it again"
            )
        return to_read(self.path) if self._reads_only else to_write(self.path)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._write, self._engine.connect().execution_options(gpuwatch_writes=True) as db, db.begin():
            yield db

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._engine.connect() as db:
            yield db

    def _scan(self, sql: str, args: tuple[Any, ...]) -> list[LedgerLine]:
        """A long scan goes through the driver's own cursor: Core's row objects double its time."""
        decode = _LINES.decode
        with told(self.path, "read"), self._engine.connect() as db:
            raw = db.connection.dbapi_connection
            assert raw is not None
            return [decode(body) for (body,) in raw.execute(sql, args)]

    def _rows(self, table: Any) -> list[dict[str, Any]]:
        with told(self.path, "read"), self._reading() as db:
            return [dict(row) for row in db.execute(select(table)).mappings()]

    def _check_version(self, db: Connection) -> None:
        row = db.execute(select(t.META.c.value).where(t.META.c.key == "schema_version")).fetchone()
        if row is None:
            if self._reads_only:
                return
            db.execute(insert(t.META).values(key="schema_version", value=str(t.SCHEMA_VERSION)))
        elif int(row[0]) > t.SCHEMA_VERSION:
            raise StoreError(
                f"the ledger {self.path} was written by a newer gpuwatch",
                why=f"its schema is version {row[0]}, this program knows up to {t.SCHEMA_VERSION}",
                next_step="install the newer gpuwatch again, or name another ledger; nothing was changed",
            )

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def _begin(db: Connection) -> None:
    writes = db.get_execution_options().get("gpuwatch_writes")
    db.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _changed(db: Connection) -> int:
    """How many rows the last statement changed. A cursor's `rowcount` does not say: in a Turkish locale Python's own
    sqlite3 does not know the word INSERT (3.11 compares it by `tolower`)."""
    return int(db.exec_driver_sql("SELECT changes()").scalar_one())


def _append(db: Connection, lines: Sequence[LedgerLine]) -> None:
    if lines:
        rows = [
            {
                "at_unix_ns": line.at_unix_ns,
                "line": line.__struct_config__.tag,
                "machine": getattr(line, "machine", None),
                "run": getattr(line, "run", None),
                "fault": getattr(line, "fault", None),
                "body": _JSON.encode(line),
            }
            for line in lines
        ]
        db.execute(insert(t.LEDGER), rows)


def _put(db: Connection, table: Any, rows: list[dict[str, Any]]) -> None:
    """Insert or replace by primary key."""
    if rows:
        statement = upsert(table)
        keys = [column.name for column in table.primary_key]
        rest = {name: statement.excluded[name] for name in rows[0] if name not in keys}
        db.execute(statement.on_conflict_do_update(index_elements=keys, set_=rest), rows)
