"""`gpuwatch cost-report`: reads the ledger, the bill and the prices, and prints what a period cost."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

import gpuwatch.reports
from gpuwatch import config
from gpuwatch.clock import Clock, SystemClock
from gpuwatch.cost.intervals import account
from gpuwatch.cost.report import make_report
from gpuwatch.errors import StoreError, UsageError
from gpuwatch.model.ledger import LedgerLine
from gpuwatch.model.money import Basis, BillRow
from gpuwatch.prices.book import PriceBook
from gpuwatch.prices.overrides import PriceSettings
from gpuwatch.registry import leaves
from gpuwatch.reports import ReportFormat

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_NS = {"m": 60 * 10**9, "h": 3600 * 10**9, "d": 24 * 3600 * 10**9, "w": 7 * 24 * 3600 * 10**9}

Reader = Callable[[Path], tuple[Sequence[LedgerLine], Sequence[BillRow]]]


def run(
    ledger: Path,
    *,
    by: str = "category",
    since: str | None = None,
    until: str | None = None,
    last: str | None = None,
    month: str | None = None,
    form: str = "table",
    prices: Path | None = None,
    basis: str | None = None,
    out: TextIO | None = None,
    clock: Clock | None = None,
    read: Reader | None = None,
) -> int:
    """Print the report; 0, also when there is nothing to report (it then says why, and what to do next).

    Raises `GpuwatchError` for a ledger that is missing or damaged, words that do not fit, prices that cannot be read.
    """
    now_unix_ns = (clock or SystemClock()).unix_ns()
    begin, end = period(now_unix_ns, since=since, until=until, last=last, month=month)
    formats = leaves(gpuwatch.reports, "REPORT", ReportFormat)
    if form not in formats:
        raise UsageError(f"there is no report format {form!r}", next_step=f"choose of {', '.join(sorted(formats))}")
    keys = [key.strip() for key in by.split(",") if key.strip()]
    if not 1 <= len(keys) <= 2 or len(set(keys)) != len(keys):
        raise UsageError(f"cannot split by {by!r}", next_step="name one key or two different ones: --by team,category")
    book = PriceBook.bundled(price_settings(prices) if prices is not None else None)
    lines, bills = (read or read_ledger)(ledger)
    report = make_report(
        account(lines, now_unix_ns, bills=bills),
        book,
        by=keys,
        since=begin,
        until=end,
        basis=_basis(basis),
        made_unix_ns=now_unix_ns,
    )
    page = out if out is not None else sys.stdout
    page.write(formats[form].render(report))
    if report.empty_because and form == "csv":  # the other formats say it themselves
        print(report.empty_because, file=sys.stderr)
    return 0


def read_ledger(path: Path) -> tuple[Sequence[LedgerLine], Sequence[BillRow]]:
    """Every line and every bill row of a ledger file; of a folder, its `ledger.db`. Raises `StoreError`."""
    from gpuwatch.store.sqlite import Store

    file = path / "ledger.db" if path.is_dir() else path
    if not file.exists():
        raise StoreError(
            f"there is no ledger at {file}",
            why="no aggregator has written there",
            next_step="name the aggregator's file with --ledger (its state_dir holds it), or start one",
        )
    store = Store(file, reads_only=True)
    return store.lines(), store.bill_rows()


def price_settings(path: Path) -> PriceSettings:
    """The owner's prices: `[pools.NAME]` and `[skus.NAME]`, or an aggregator's own settings file with its pools.

    Raises `ConfigError` with every fault.
    """
    raw: dict[str, Any] = config.read_toml(path, option="--prices")
    if "server" in raw:
        pools = raw.get("pools", {})
        known = {name: pool["usd_per_hour"] for name, pool in pools.items() if "usd_per_hour" in pool}
        raw = {"pools": {name: {"usd_per_hour": usd, "source": str(path)} for name, usd in known.items()}}
    settings, faults = config.convert(raw, PriceSettings, file=str(path))
    config.refuse(faults)
    assert settings is not None
    return settings


def period(
    now_unix_ns: int,
    *,
    since: str | None = None,
    until: str | None = None,
    last: str | None = None,
    month: str | None = None,
) -> tuple[int | None, int | None]:
    """[begin, end) in unix ns; None is open. Raises `UsageError` for words that do not fit together."""
    if sum((last is not None, month is not None, since is not None or until is not None)) > 1:
        raise UsageError(
            "one period, please", why="--last, --month and --since/--until each name a whole one", next_step="keep one"
        )
    if last is not None:
        found = re.fullmatch(r"(\d+)([mhdw])", last.strip())
        if found is None or int(found[1]) == 0:
            raise UsageError(f"{last!r} is no length of time", next_step="write 90m, 24h, 7d or 4w")
        return now_unix_ns - int(found[1]) * _UNITS_NS[found[2]], now_unix_ns
    if month is not None:
        found = re.fullmatch(r"(\d{4})-(\d{2})", month.strip())
        if found is None or not 1 <= int(found[2]) <= 12 or int(found[1]) < 1970:
            raise UsageError(f"{month!r} is no month", next_step="write 2026-11")
        year, number = int(found[1]), int(found[2])
        following = (year + number // 12, number % 12 + 1)
        return _unix_ns(datetime(year, number, 1, tzinfo=UTC)), _unix_ns(datetime(*following, 1, tzinfo=UTC))
    begin = _moment(since, "--since") if since is not None else None
    end = _moment(until, "--until") if until is not None else None
    if begin is not None and end is not None and begin >= end:
        raise UsageError(f"the period ends ({until}) before it begins ({since})", next_step="swap them")
    return begin, end


def _moment(text: str, option: str) -> int:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is no day or time", next_step="write 2026-11-30 or 2026-11-30T12:00:00Z (UTC)"
        ) from None
    return _unix_ns(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def _unix_ns(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def _basis(name: str | None) -> Basis | None:
    if name is None:
        return None
    try:
        return Basis(name)
    except ValueError:
        raise UsageError(f"there is no cost basis {name!r}", next_step=f"choose of {', '.join(Basis)}") from None
