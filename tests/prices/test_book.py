"""The price book: look-up by day, overrides, and a table that cannot be read."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from gpuwatch.errors import PriceError
from gpuwatch.model.money import Terms
from gpuwatch.prices.book import BEFORE_ALL_TIME, PriceBook, read_rows
from gpuwatch.prices.overrides import DatedPrice, PriceOverride, PriceSettings

BOOK = PriceBook.bundled()
DAY_NS = 24 * 3600 * 10**9
HEAD = "provider,region,sku,gpus,gpu_model,kind,usd_per_hour,as_of,source\n"


@pytest.mark.parametrize(
    ("day", "usd", "older"),
    [
        ("2023-01-01", "98.32", True),
        ("2023-09-17", "98.32", True),
        ("2023-09-18", "98.32", False),
        ("2025-06-22", "98.32", False),
        ("2025-06-23", "55.04", False),
        ("2099-01-01", "55.04", False),
    ],
)
def test_the_latest_observation_on_or_before_the_day(day: str, usd: str, older: bool) -> None:
    price = BOOK.price_on("aws", "us-east-1", "p5.48xlarge", "ondemand", date.fromisoformat(day))
    assert price is not None
    assert (str(price.usd_per_hour), price.older_than_book) == (usd, older)
    assert price.source
    assert price.as_of


@pytest.mark.parametrize(
    ("provider", "region", "sku", "kind"),
    [
        ("aws", "us-west-1", "p5.48xlarge", "ondemand"),  # never from another region
        ("aws", "us-east-1", "p5.48xlarge", "reserved"),  # never from another kind
        ("aws", "us-east-1", "p9.huge", "ondemand"),
        ("nobody", "us-east-1", "p5.48xlarge", "ondemand"),
        ("", "", "", ""),
        ("gcp", "us-central1", "a4-highgpu-8g", "ondemand"),
        ("gcp", "us-central1", "a4-highgpu-8g", "spot"),  # a lone spot row is never used
    ],
)
def test_what_is_not_in_the_book_has_no_price(provider: str, region: str, sku: str, kind: str) -> None:
    assert BOOK.price_on(provider, region, sku, kind, date(2026, 11, 30)) is None
    assert BOOK.steps(Terms(provider=provider, region=region, sku=sku, price_kind=kind), "") == []


def test_names_as_the_providers_write_them() -> None:
    for region, sku in (("East US", "Standard_ND96asr_v4"), ("eastus", "nd96ASR_v4")):
        price = BOOK.price_on("Azure", region, sku, "ondemand", date(2026, 11, 30))
        assert price is not None
        assert price.usd_per_hour == Decimal("27.197")


def test_steps_are_the_same_function_of_time_as_the_look_up() -> None:
    terms = Terms(provider="aws", region="us-east-1", sku="p5.48xlarge", price_kind="ondemand")
    steps = BOOK.steps(terms, "")
    assert steps[0][0] == BEFORE_ALL_TIME
    assert steps[0][1].older_than_book
    for since, price in steps[1:]:
        day = date.fromordinal(date(1970, 1, 1).toordinal() + since // DAY_NS)
        assert since % DAY_NS == 0
        assert price == BOOK.price_on("aws", "us-east-1", "p5.48xlarge", "ondemand", day)


def test_a_year_alone_is_its_last_day() -> None:
    rows = read_rows(HEAD + "x,r,s,8,g,ondemand,1,2024,a\nx,r,s,8,g,ondemand,2,2025/2026,b\n")
    assert [row.as_of for row in rows["x", "r", "s", "ondemand"]] == [date(2024, 12, 31), date(2026, 12, 31)]


@pytest.mark.parametrize(
    "line", ["x,r,s,8,g,ondemand,free,2024,a", "x,r,s,8,g,ondemand,1,soon,a", "x,r", "x,r,s,8,g,ondemand,-1,2024,a"]
)
def test_a_damaged_table_names_its_line(line: str) -> None:
    with pytest.raises(PriceError, match="line 3"):
        read_rows(HEAD + "x,r,s,8,g,ondemand,1,2024,a\n" + line + "\n")


def test_every_bundled_price_has_a_source_and_a_day() -> None:
    rows = [row for own in BOOK._rows.values() for row in own]
    assert len(rows) == 297
    assert all(row.source and row.stated and row.usd_per_hour > 0 for row in rows)


def test_own_prices_come_first_the_pool_before_the_machine_type() -> None:
    settings = PriceSettings(
        pools={"a100": PriceOverride(usd_per_hour=Decimal("1.5"), source="our contract")},
        skus={"ND96asr_v4": PriceOverride(usd_per_hour=Decimal("2.5"), as_of="2026-01-01")},
    )
    book = PriceBook.bundled(settings)
    by_pool = book.price_on("azure", "eastus", "ND96asr_v4", "ondemand", date(2020, 1, 1), pool="a100")
    by_sku = book.price_on("azure", "eastus", "Standard_ND96asr_v4", "ondemand", date(2026, 6, 1), pool="other")
    before = book.price_on("azure", "eastus", "ND96asr_v4", "ondemand", date(2025, 6, 1))
    assert by_pool is not None
    assert by_sku is not None
    assert before is not None
    assert (by_pool.usd_per_hour, by_pool.kind, by_pool.source) == (Decimal("1.5"), "override", "our contract")
    assert not by_pool.older_than_book
    assert by_sku.usd_per_hour == Decimal("2.5")
    assert before.older_than_book


def test_own_history_of_a_spot_price() -> None:
    own = PriceOverride(
        usd_per_hour=Decimal(5), as_of="2026-02-01", earlier=(DatedPrice(usd_per_hour=Decimal(3), as_of="2026-01-01"),)
    )
    book = PriceBook.bundled(PriceSettings(skus={"a4-highgpu-8g": own}))
    price = book.price_on("gcp", "us-central1", "a4-highgpu-8g", "spot", date(2026, 1, 15))
    assert price is not None
    assert price.usd_per_hour == 3


@pytest.mark.parametrize(
    "own",
    [
        PriceOverride(usd_per_hour=Decimal(-1)),
        PriceOverride(usd_per_hour=Decimal("NaN")),
        PriceOverride(usd_per_hour=Decimal(1), as_of="yesterday"),
    ],
)
def test_own_prices_that_cannot_be(own: PriceOverride) -> None:
    with pytest.raises(PriceError) as caught:
        PriceBook.bundled(PriceSettings(pools={"p": own}))
    assert caught.value.next_step


def test_a_spot_row_of_the_book_serves_estimates_and_prices_no_nodes_past() -> None:
    terms = Terms(provider="gcp", region="us-central1", sku="a2-highgpu-8g", price_kind="spot")
    assert BOOK.price_on("gcp", "us-central1", "a2-highgpu-8g", "spot", date(2026, 9, 1)) is not None
    assert BOOK.steps(terms, "") == []
    own = PriceBook.bundled(PriceSettings(pools={"p": PriceOverride(usd_per_hour=Decimal(9))}))
    assert [price.usd_per_hour for _, price in own.steps(terms, "p")] == [9]
