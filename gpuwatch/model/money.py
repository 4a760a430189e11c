"""MONEY. Billed rows in, priced intervals out. Amounts are exact: integer ticks, one multiplication, one rounding."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum

import msgspec


class Category(StrEnum):
    """What a billed second was. Each is in exactly one; declared in the order in which ties of rounding are dealt."""

    PRODUCTIVE = "productive"
    SLOW = "slow"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    STARTUP = "startup"
    LOST_WORK = "lost_work"
    HUNG = "hung"
    RECOVERY = "recovery"
    DEAD = "dead"
    DRAINING = "draining"
    QUARANTINE = "quarantine"
    PROVISIONING = "provisioning"
    SPARE = "spare"
    IDLE = "idle"
    MAINTENANCE = "maintenance"
    UNKNOWN = "unknown"
    UNUSED_COMMITMENT = "unused_commitment"
    BILLING_ROUNDUP = "billing_roundup"
    SHARED = "shared"


class BillRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a provider's bill for one machine."""

    machine: str
    period_start_unix_ns: int
    period_end_unix_ns: int
    quantity_ticks: int  # billed machine time in ticks of 10^-9 h
    cost_usd: Decimal  # the amount on the bill
    provider: str = ""
    sku: str = ""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What one machine costs an hour, where that is known from, and how old it is."""

    usd_per_hour: Decimal
    kind: str  # ondemand | spot | reserved | committed | dws_calendar | dws_flex | override
    as_of: str  # ISO day of observation
    source: str
    older_than_book: bool = False  # the day asked for lies before the first row


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """One machine (or a share of it) in one category, half-open, snapped to ticks."""

    machine: str
    slot: str
    pool: str
    start_unix_ns: int
    end_unix_ns: int
    gpu_thousandths: int  # 8000 = eight whole GPUs; a machine without GPUs counts as one
    machine_gpu_thousandths: int  # the whole machine's
    category: Category
    run: str | None = None
    attempt: str | None = None
    team: str | None = None
    user: str | None = None
    fault: str | None = None
    blame: str | None = None  # machine
    cause: str = ""
    provisional: bool = False
