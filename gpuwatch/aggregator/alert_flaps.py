"""A fault that comes and goes is one alert that stays, not a page for each time. Pure.

What comes back within ten minutes of its end is told anew once; from the third time on it is one alert, which ends when
it has stayed away for ten minutes. That is read from the incidents alone, so a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from gpuwatch.aggregator.money import IncidentMoney

AGAIN_S = 600.0  # back within so long: it had not been mended
TOLD_EACH = 2  # times that are told by themselves

Incident = Mapping[str, Any]


def without_flaps(incidents: Iterable[Incident], now_unix_ns: int) -> list[Incident]:
    """The same incidents as the overview tells them, those that came back again and again made one."""
    rows: dict[tuple[str, str], list[Incident]] = {}
    for incident in incidents:
        rows.setdefault((incident["kind"], incident["slot"] or f"run:{incident['run']}"), []).append(incident)
    found: list[Incident] = []
    for row in rows.values():
        for chain in _chains(sorted(row, key=lambda one: int(one["detected_unix_ns"]))):
            found += chain[:TOLD_EACH]
            if len(chain) > TOLD_EACH:
                found.append(_one(chain, now_unix_ns))
    return sorted(found, key=lambda one: (one["closed_unix_ns"] is not None, -one["detected_unix_ns"]))


def _chains(row: list[Incident]) -> Iterable[list[Incident]]:
    """Oldest first, each begun soon after the end of the one before."""
    chain: list[Incident] = []
    for incident in row:
        ended_ns = chain[-1]["closed_unix_ns"] if chain else None
        if chain and (ended_ns is None or incident["detected_unix_ns"] - ended_ns > AGAIN_S * 1e9):
            yield chain
            chain = []
        chain.append(incident)
    if chain:
        yield chain


def _one(chain: list[Incident], now_unix_ns: int) -> Incident:
    first, last = chain[TOLD_EACH], chain[-1]
    ended_ns = last["closed_unix_ns"]
    lasting = ended_ns is None or 0 <= now_unix_ns - ended_ns < AGAIN_S * 1e9
    words = f"it came and went {len(chain)} times; {last['now'] or 'watched'}"
    if lasting and ended_ns is not None:
        words += f"; told as over when it has stayed away for {AGAIN_S / 60:.0f} minutes"
    prices = [one["price"] for one in chain[TOLD_EACH:] if one["price"] is not None]
    price = IncidentMoney(
        usd=sum((one.usd for one in prices), Decimal(0)),
        by_category={},
        usd_per_hour_now=sum((one.usd_per_hour_now for one in prices), Decimal(0)),
    )
    return {
        **last,
        **{name: first[name] for name in ("fault", "cause", "pool", "onset_unix_ns", "detected_unix_ns")},
        "closed_unix_ns": None if lasting else ended_ns,
        "now": words,
        "price": price if prices else None,
    }
