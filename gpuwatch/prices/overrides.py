"""The user's own prices, from the settings: by pool or by machine type, each with its source and its day."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import msgspec

from gpuwatch.errors import PriceError


class DatedPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One price and the day from which it is known."""

    usd_per_hour: Decimal
    as_of: str  # ISO day


class PriceOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a whole machine costs an hour, for this owner."""

    usd_per_hour: Decimal
    source: str = "settings"
    as_of: str = ""  # ISO day from which it holds; empty: always
    earlier: tuple[DatedPrice, ...] = ()  # the owner's own history, e.g. of a spot price

    def dated(self) -> list[tuple[date, Decimal]]:
        """All its prices by day, sorted. Raises `PriceError` for a day or a price that cannot be."""
        rows = [(self.as_of or "1970-01-01", self.usd_per_hour)]
        rows += [(price.as_of, price.usd_per_hour) for price in self.earlier]
        return sorted((_day(day), _price(usd, self.source)) for day, usd in rows)


class PriceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[prices.pools.NAME]` and `[prices.skus.NAME]`; a pool's price goes before its machine type's."""

    pools: dict[str, PriceOverride] = {}
    skus: dict[str, PriceOverride] = {}


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise PriceError(
            f"as_of = {text!r} is no day", why="a price holds from a day on", next_step="write it as 2026-11-30"
        ) from None


def _price(usd_per_hour: Decimal, source: str) -> Decimal:
    if not usd_per_hour.is_finite() or usd_per_hour < 0:
        raise PriceError(
            f"a price of {usd_per_hour} USD an hour ({source}) cannot be",
            next_step="give the price of one whole machine an hour, as a number of 0 or more",
        )
    return usd_per_hour
