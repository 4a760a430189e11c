"""The tables, as SQLAlchemy Core sees them: one schema for SQLite now and PostgreSQL later.

The ledger is append-only. What else stands here is what must survive a restart and is no history: which events were
counted, open actions, what people ordered, who was last heard of.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, Table, Text

SCHEMA_VERSION = 1
"""Raised when a table changes; a newer file than this is refused, an older one is brought forward."""

METADATA = MetaData()

_ROW_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only for INTEGER

META = Table(
    "meta",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

LEDGER = Table(
    "ledger",
    METADATA,
    Column("id", _ROW_ID, primary_key=True),
    Column("at_unix_ns", BigInteger, nullable=False),
    Column("line", Text, nullable=False),  # the line's kind, as in model.ledger
    Column("machine", Text),
    Column("run", Text),
    Column("fault", Text),
    Column("body", LargeBinary, nullable=False),  # JSON of the line
    Index("ledger_at", "at_unix_ns", "id"),
    Index("ledger_line", "line", "id"),
)

EVENTS = Table(
    "events",
    METADATA,
    Column("machine", Text, primary_key=True),  # an id is its machine's own: nobody can use up another's
    Column("event_id", Text, primary_key=True),  # delivered often, counted once
    Column("slot", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("at_unix_ns", BigInteger, nullable=False),
    Column("happened_unix_ns", BigInteger, nullable=False),
    Column("cleared", Integer, nullable=False, default=0),  # a person or a repair said: counts as history only
    Column("body", LargeBinary, nullable=False),
    Index("events_happened", "happened_unix_ns"),
)

SAGAS = Table(
    "sagas",
    METADATA,
    Column("action_id", Text, primary_key=True),
    Column("ended", Integer, nullable=False),
    Column("started_unix_ns", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

APPROVALS = Table(
    "approvals",
    METADATA,
    Column("action_id", Text, primary_key=True),
    Column("who", Text, nullable=False),
    Column("approved_unix_ns", BigInteger, nullable=False),
    Column("expires_unix_ns", BigInteger, nullable=False),
)

HUMAN_HOLDS = Table(
    "human_holds",
    METADATA,
    Column("slot", Text, primary_key=True),
    Column("who", Text, nullable=False),
    Column("because", Text, nullable=False),
    Column("at_unix_ns", BigInteger, nullable=False),
)

BILLS = Table(
    "bills",
    METADATA,
    Column("id", _ROW_ID, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("bills_provider", "provider"),
)

LAST_SEEN = Table(
    "last_seen",
    METADATA,
    Column("machine", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

KEPT = Table(
    "kept",  # small state of one writer each, replaced as a whole
    METADATA,
    Column("key", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
