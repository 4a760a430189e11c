"""What it costs, in words: a sentence, the line that is read first, and what stands behind it. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from gpuwatch.aggregator.money import WASTE, Money

MUCH = Decimal("0.25")  # of the bill wasted is too much to be shown as all well; GpuwatchDollarsBurning has the same
_NAMED = 3  # categories of the waste


def cost_words(money: Money, *, uncounted: int = 0) -> dict[str, Any]:
    """`sentence`, `big`, `lines` of (figure, words), `tone` (plain | warn). `uncounted`: newer incidents."""
    if money.empty_because:
        return _words("No money has been counted yet.", "Nothing counted yet.", [])
    if money.unpriced_node_hours and not money.total_usd:
        hours = f"{money.unpriced_node_hours:.2f}"
        more = "node-hours so far; set usd_per_hour of the pool, or its provider, region and sku"
        return _words(
            "No price is known: set `usd_per_hour` of the pool.", "No price is known.", [(hours, more)], "warn"
        )
    lost = dollars(money.incidents_usd)
    big = f"{lost} lost to incidents"
    sentence = f"Burning {dollars(money.waste_usd_per_hour_now)}/h of waste; {lost} lost to incidents so far"
    if uncounted:
        newest = "the newest is" if uncounted == 1 else f"the {uncounted} newest are"
        big = f"{big}; {newest} being worked out" if money.incidents_usd else "What it costs is being worked out."
        sentence += f"; {newest} being worked out"
    return _words(f"{sentence}.", big, _lines(money), "warn" if wasteful(money) else "plain")


def wasteful(money: Money) -> bool:
    """So much of the bill buys nothing that it must not look as if all were well."""
    return money.waste_usd_per_hour_now > MUCH * money.usd_per_hour_now > 0


def waste_split(money: Money) -> str:
    """`idle $1,474.80, dead $98.32`: what the waste is, an hour, the dearest first; of one kind, its name alone."""
    rows = [row for row in money.categories if row.group in WASTE and row.usd_per_hour_now > 0]
    rows.sort(key=lambda row: -row.usd_per_hour_now)
    if len(rows) == 1:
        return rows[0].category.replace("_", " ")
    named = [f"{row.category.replace('_', ' ')} {dollars(row.usd_per_hour_now)}" for row in rows[:_NAMED]]
    return ", ".join(named) + (" and more" if len(rows) > _NAMED else "")


def dollars(amount: Decimal) -> str:
    """`$1,474.80`."""
    return f"${amount:,.2f}"


def _lines(money: Money) -> list[tuple[str, str]]:
    waste, open_now = money.waste_usd_per_hour_now, money.incidents_usd_per_hour_now
    of_incidents = money.incidents_waste_usd_per_hour_now
    split = waste_split(money)
    lines = [(f"{dollars(waste)}/h", "of waste is burning now" + (f": {split}" if split else ""))]
    if open_now:
        words = "is what open incidents cost now"
        if open_now > of_incidents:
            words += f", {dollars(open_now - of_incidents)} of it machines that are made ready, which is no waste"
        if waste > of_incidents:
            words += f"; {dollars(waste - of_incidents)}/h of the waste is no incident's"
        lines.append((f"{dollars(open_now)}/h", words))
    lines.append((f"{dollars(money.usd_per_hour_now)}/h", "is the whole bill now"))
    lines.append((dollars(money.total_usd), "spent since the ledger began"))
    return lines


def _words(sentence: str, big: str, lines: list[tuple[str, str]], tone: str = "plain") -> dict[str, Any]:
    return {"sentence": sentence, "big": big, "lines": lines, "tone": tone}
