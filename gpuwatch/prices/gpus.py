"""How many GPUs a machine of the price book has, and where it is sold: to know what one GPU of it costs."""

from __future__ import annotations

import csv
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from gpuwatch.errors import UsageError


class Offer(NamedTuple):
    """One machine type of one provider in one region, as the book writes it."""

    provider: str
    region: str
    sku: str
    gpus: int


@cache
def offers() -> tuple[Offer, ...]:
    """Every on-demand offer of the bundled book."""
    text = files("gpuwatch.prices").joinpath("data/prices.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    found = {
        Offer(row["provider"], row["region"], row["sku"], int(row["gpus"]))
        for row in rows
        if row["kind"] == "ondemand" and row["gpus"].isdecimal() and int(row["gpus"])
    }
    return tuple(sorted(found))


def offer_of(sku: str, provider: str = "", region: str = "") -> Offer:
    """The one offer that these words name. Raises `UsageError` with the choice where they name none or several."""
    name = sku.lower().removeprefix("standard_")
    same = [offer for offer in offers() if offer.sku.lower().removeprefix("standard_") == name]
    if not same:
        like = get_close_matches(sku, sorted({offer.sku for offer in offers()}), 5, 0.5)
        raise UsageError(
            f"the price book has no machine type {sku!r} with GPUs",
            next_step=(f"did you mean {', '.join(like)}? Or " if like else "") + "give --usd-per-gpu-hour",
        )
    fit = [offer for offer in same if provider.lower() in ("", offer.provider.lower())]
    place = region.replace(" ", "").lower()
    fit = [offer for offer in fit if place in ("", offer.region.lower())]
    if len(fit) != 1:
        places = ", ".join(f"--provider {offer.provider} --region {offer.region}" for offer in (fit or same)[:12])
        raise UsageError(
            f"the price book has {sku} in {len(fit)} places that fit"
            if fit
            else f"the price book has {sku} elsewhere only",
            next_step=f"name one: {places}; or give --usd-per-gpu-hour",
        )
    return fit[0]
