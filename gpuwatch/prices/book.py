"""Looks up what a machine cost on a day.

The latest observation on or before the day, within one provider, region, machine type and kind; if there is none, the
earliest, marked as older than the price book. One kind is never filled from another, nor one region from another. A
spot row of a machine type without an on-demand row in that region is never used.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from typing import NamedTuple

from gpuwatch.errors import PriceError
from gpuwatch.model.money import Price, Terms
from gpuwatch.prices.overrides import PriceOverride, PriceSettings

Key = tuple[str, str, str, str]  # provider, region, sku, kind
_EPOCH = date(1970, 1, 1)
_DAY_NS = 24 * 3600 * 10**9
BEFORE_ALL_TIME = -(2**63)


class PriceRow(NamedTuple):
    """One observation."""

    as_of: date
    stated: str  # the day as its source wrote it
    usd_per_hour: Decimal
    source: str


class PriceBook:
    """Bundled list prices, and the owner's own prices before them."""

    def __init__(self, rows: Mapping[Key, Iterable[PriceRow]], overrides: PriceSettings | None = None) -> None:
        self._rows = {key: sorted(own) for key, own in rows.items()}
        settings = overrides or PriceSettings()
        self._pools = {name: _override_rows(own) for name, own in settings.pools.items()}
        self._skus = {_sku(name): _override_rows(own) for name, own in settings.skus.items()}

    @classmethod
    def bundled(cls, overrides: PriceSettings | None = None) -> PriceBook:
        """The list prices that come with gpuwatch. Raises `PriceError` if its table is damaged."""
        text = files("gpuwatch.prices").joinpath("data/prices.csv").read_text(encoding="utf-8")
        return cls(read_rows(text), overrides)

    def price_on(self, provider: str, region: str, sku: str, kind: str, day: date, *, pool: str = "") -> Price | None:
        """What a whole machine cost an hour on that day; None: not known."""
        found = self._series(provider, region, sku, kind, pool)
        if found is None:
            return None
        rows, kind = found
        known = [row for row in rows if row.as_of <= day]
        return _price(known[-1] if known else rows[0], kind, older=not known)

    def steps(self, terms: Terms, pool: str) -> list[tuple[int, Price]]:
        """(valid from unix ns, price) over all time, to price what was used; empty: no price is known.

        A spot row of the book is one instant's observation. It serves estimates (`price_on`) and prices no node's past:
        that takes a bill or the owner's own dated prices.
        """
        if terms.price_kind == "spot" and not self._own(terms.sku, pool):
            return []
        found = self._series(terms.provider, terms.region, terms.sku, terms.price_kind, pool)
        if found is None:
            return []
        rows, kind = found
        steps = [(_midnight_ns(row.as_of), _price(row, kind)) for row in rows]
        if steps[0][0] > 0:
            steps.insert(0, (BEFORE_ALL_TIME, _price(rows[0], kind, older=True)))
        return steps

    def _series(self, provider: str, region: str, sku: str, kind: str, pool: str) -> tuple[list[PriceRow], str] | None:
        own = self._own(sku, pool)
        if own:
            return own, "override"
        place = (provider.lower(), _region(region), _sku(sku))
        rows = self._rows.get((*place, kind))
        if not rows or (kind == "spot" and (*place, "ondemand") not in self._rows):
            return None
        return rows, kind

    def _own(self, sku: str, pool: str) -> list[PriceRow] | None:
        return self._pools.get(pool) or self._skus.get(_sku(sku))


def read_rows(text: str) -> dict[Key, list[PriceRow]]:
    """A price table in CSV. Raises `PriceError` naming the line that cannot be read."""
    rows: defaultdict[Key, list[PriceRow]] = defaultdict(list)
    for number, line in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            key = (line["provider"].lower(), _region(line["region"]), _sku(line["sku"]), line["kind"])
            usd = Decimal(line["usd_per_hour"])
            row = PriceRow(_observed(line["as_of"]), line["as_of"], usd, line["source"])
            if not usd.is_finite() or usd < 0:
                raise ValueError(f"a price of {usd}")
        except (KeyError, TypeError, AttributeError, ValueError, InvalidOperation) as error:
            raise PriceError(
                f"line {number} of the price table cannot be read",
                why=str(error),
                next_step="mend it: provider,region,sku,kind,usd_per_hour,as_of,source",
            ) from error
        rows[key].append(row)
    return dict(rows)


def _observed(text: str) -> date:
    """A day of observation. A year alone means its last day; a span of years the last day of the last."""
    if re.fullmatch(r"\d{4}(/\d{4})?", text):
        return date(int(text[-4:]), 12, 31)
    return date.fromisoformat(text)


def _override_rows(own: PriceOverride) -> list[PriceRow]:
    return [PriceRow(day, day.isoformat() if day > _EPOCH else "", usd, own.source) for day, usd in own.dated()]


def _price(row: PriceRow, kind: str, *, older: bool = False) -> Price:
    return Price(usd_per_hour=row.usd_per_hour, kind=kind, as_of=row.stated, source=row.source, older_than_book=older)


def _midnight_ns(day: date) -> int:
    return (day - _EPOCH).days * _DAY_NS


def _region(text: str) -> str:
    """Azure writes both `East US` and `eastus`."""
    return text.replace(" ", "").lower()


def _sku(text: str) -> str:
    """Azure writes both `Standard_ND96asr_v4` and `ND96asr_v4`."""
    return text.lower().removeprefix("standard_")
