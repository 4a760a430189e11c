"""COST REPORT as a record: what `cost` adds up and `reports` prints. Its amounts are rounded and add up as printed."""

from __future__ import annotations

from decimal import Decimal

import msgspec


class ReportRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line: its keys in the order of `CostReport.by`, its time, its money."""

    keys: tuple[str, ...]
    detail: str = ""  # what the key is, e.g. an incident's kind, machine and cause
    node_hours: Decimal = Decimal(0)
    gpu_hours: Decimal = Decimal(0)
    usd: Decimal = Decimal(0)  # rounded so that the rows add up to the total
    provisional_usd: Decimal = Decimal(0)  # the part of it that may still move to another category
    unpriced_node_hours: Decimal = Decimal(0)  # "unknown $": in no sum
    lifetime_usd: Decimal | None = None  # an incident's price over its whole life, inside and outside the period
    share_percent: Decimal | None = None  # of the total; not forced to add up to 100


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One ratio or time with its words: `text` is for people, `value` for programs."""

    name: str
    text: str
    value: float | None = None
    low: float | None = None  # where some time is not known: a range
    high: float | None = None
    unit: str = ""


class PriceUsed(msgspec.Struct, frozen=True, kw_only=True):
    """One price that the report multiplied by, or one whose lack it confesses (`usd_per_hour` None)."""

    what: str
    usd_per_hour: Decimal | None
    kind: str = ""
    as_of: str = ""
    source: str = ""
    older_than_book: bool = False
    node_hours: Decimal = Decimal(0)


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a format needs."""

    by: tuple[str, ...]
    since_unix_ns: int | None  # None: from the first line of the ledger
    until_unix_ns: int
    made_unix_ns: int
    currency: str = "USD"
    basis: str = "list"  # billed | list | contracted | effective
    rows: tuple[ReportRow, ...] = ()
    total: ReportRow = ReportRow(keys=())
    sum_line: str = ""  # the categories add up to the bill, or to the estimate, and which
    sums_to: str = ""  # bill | estimate | part_bill
    categories_usd: dict[str, Decimal] = {}  # always there, whatever the report is split by
    figures: tuple[Figure, ...] = ()
    prices: tuple[PriceUsed, ...] = ()
    below: dict[str, Decimal] = {}  # tax, credit, purchase, adjustment: not in the total
    findings: tuple[str, ...] = ()
    empty_because: str = ""  # nothing to report, why, and what to do next
