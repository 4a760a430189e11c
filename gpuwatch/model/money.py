"""MONEY. Billed rows in, priced intervals out. Amounts are exact: integer ticks, one multiplication, one rounding."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Literal

import msgspec

from gpuwatch.model.ledger import TICK_NS


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


Group = Literal["productive", "loss", "overhead", "unusable", "unknown"]

_GROUPS: dict[Category, Group] = {
    Category.PRODUCTIVE: "productive",
    Category.SLOW: "loss",
    Category.LOST_WORK: "loss",
    Category.HUNG: "loss",
    Category.RECOVERY: "loss",
    Category.IDLE: "loss",
    Category.UNUSED_COMMITMENT: "loss",
    Category.DEAD: "unusable",
    Category.DRAINING: "unusable",
    Category.QUARANTINE: "unusable",
    Category.UNKNOWN: "unknown",
}


def group_of(category: Category) -> Group:
    """Which of five kinds of time a category belongs to; waste is `loss` and `unusable`. The rest is `overhead`."""
    return _GROUPS.get(category, "overhead")


class Basis(StrEnum):
    """One of the four amounts that a bill states for the same time. They are never mixed."""

    EFFECTIVE = "effective"
    BILLED = "billed"
    LIST = "list"
    CONTRACTED = "contracted"


BillKind = Literal["usage", "shared", "unused_commitment", "tax", "credit", "purchase", "adjustment"]


class BillRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a provider's bill: `usage` of one machine, or money without a machine."""

    machine: str  # empty: no machine
    period_start_unix_ns: int
    period_end_unix_ns: int
    quantity_ticks: int  # billed machine time in ticks of 10^-9 h
    cost_usd: Decimal  # the amount on the bill (basis `billed`)
    provider: str = ""
    sku: str = ""
    kind: BillKind = "usage"  # a usage row without a machine counts as `shared`
    quantity_hours: Decimal | None = None  # as printed, where it is no whole number of ticks
    list_usd: Decimal | None = None
    contracted_usd: Decimal | None = None
    effective_usd: Decimal | None = None
    open: bool = False  # the provider may still change it

    def amount_usd(self, basis: Basis) -> Decimal | None:
        """The row's money on one basis; `None`: the bill does not say."""
        amounts = {
            Basis.BILLED: self.cost_usd,
            Basis.LIST: self.list_usd,
            Basis.CONTRACTED: self.contracted_usd,
            Basis.EFFECTIVE: self.effective_usd,
        }
        return amounts[basis]


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What one machine costs an hour, where that is known from, and how old it is."""

    usd_per_hour: Decimal
    kind: str  # ondemand | spot | reserved | committed | dws_calendar | dws_flex | override
    as_of: str  # ISO day of observation
    source: str
    older_than_book: bool = False  # the day asked for lies before the first row


class Terms(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a machine is charged, and where its billed time is known from. Shared by all intervals of one life."""

    provider: str = ""
    region: str = ""
    sku: str = ""
    price_kind: str = "ondemand"
    source: Literal["bill", "provider", "seen"] = "seen"  # 1, 2, 3: only the first is the bill, the last an estimate
    bill_row: int | None = None  # index of the row of the bill that gives the rate


class Interval(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    terms: Terms = Terms()

    def units(self) -> int:
        """Ticks times thousandths of a GPU: what is added up before the one multiplication by a price."""
        return (self.end_unix_ns - self.start_unix_ns) // TICK_NS * self.gpu_thousandths
