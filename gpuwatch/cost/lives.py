"""From when to when each machine was billed, as its own records say (where there is no bill)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from gpuwatch.cost.history import MachineHistory
from gpuwatch.cost.spans import Span, without
from gpuwatch.model.ledger import LifeEnded, LifeStarted, snap_ns
from gpuwatch.model.money import Terms


class BillingRule(msgspec.Struct, frozen=True, kw_only=True):
    """How a provider rounds a life up. From the config: no rule is assumed where none is given."""

    granularity_s: int = 0  # 0: to the tick
    minimum_s: int = 0


@dataclass(slots=True, kw_only=True)
class Life:
    """One stretch of one machine's existence under one set of terms."""

    machine: str
    slot: str
    pool: str
    gpu_count: int
    start: int
    end: int
    ended: bool  # False: still alive at `now`
    provider_start: bool
    provider_end: bool
    terms: Terms
    fault: str | None = None
    gone: list[Span] = field(default_factory=list)  # absent from the provider's list while this life was open

    @property
    def exact(self) -> bool:
        """The provider's own records say when (source 2); otherwise it is an estimate."""
        return self.provider_start and (self.provider_end or not self.ended)

    @property
    def capacity(self) -> int:
        """Thousandths of a GPU; a machine without GPUs counts as one."""
        return 1000 * max(self.gpu_count, 1)

    def billed(self) -> list[Span]:
        """Billed time without a bill: absence ends it, unless the provider's own stop record says otherwise."""
        whole = [(self.start, self.end)] if self.start < self.end else []
        return whole if self.provider_end else without(whole, self.gone)


def lives_of(history: MachineHistory, now: int) -> list[Life]:
    """The machine's lives in order, without overlap. `now` is snapped."""
    lives: list[Life] = []
    for line in history.life:
        at = min(snap_ns(line.at_unix_ns), now)
        last = lives[-1] if lives else None
        if isinstance(line, LifeEnded):
            if last is None:
                continue
            if not last.ended:
                last.end, last.ended, last.provider_end = at, True, line.source == "provider"
            elif line.source == "provider" and not last.provider_end:
                last.end, last.provider_end = at, True  # the provider's word replaces the estimate
        elif last is not None and not last.ended and _says_nothing_new(last, line):
            last.provider_start = last.provider_start or (line.source == "provider" and at <= last.start)
        else:
            if last is not None and not last.ended:
                last.end, last.ended, last.provider_end = at, True, True  # it lives on, under other terms
            start = max(at, last.end) if last is not None else at
            lives.append(_begin(line, start, now))
    _add_absences(lives, history, now)
    for life in lives:
        source = "provider" if life.exact else "seen"
        life.terms = msgspec.structs.replace(life.terms, source=source)
    return [life for life in lives if life.start < life.end]


def _begin(line: LifeStarted, start: int, now: int) -> Life:
    terms = Terms(provider=line.provider, region=line.region, sku=line.sku, price_kind=line.price_kind)
    return Life(
        machine=line.machine,
        slot=line.slot,
        pool=line.pool,
        gpu_count=line.gpu_count,
        start=start,
        end=now,
        ended=False,
        provider_start=line.source == "provider",
        provider_end=False,
        terms=terms,
        fault=line.fault,
    )


def _says_nothing_new(life: Life, line: LifeStarted) -> bool:
    """An open life goes on: the same terms again, or a mere sighting of what the provider has already told."""
    if life.provider_start and line.source == "seen":
        return True
    terms = life.terms
    return (life.slot, life.pool, life.gpu_count, terms.provider, terms.region, terms.sku, terms.price_kind) == (
        line.slot,
        line.pool,
        line.gpu_count,
        line.provider,
        line.region,
        line.sku,
        line.price_kind,
    )


def _add_absences(lives: list[Life], history: MachineHistory, now: int) -> None:
    since: int | None = None
    gone: list[Span] = []
    for line in history.health:
        if line.health == "absent" and since is None:
            since = snap_ns(line.at_unix_ns)
        elif line.health != "absent" and since is not None:
            gone.append((since, snap_ns(line.at_unix_ns)))
            since = None
    if since is not None:
        gone.append((since, now))
    for life in lives:
        life.gone = [(max(a, life.start), min(b, life.end)) for a, b in gone if max(a, life.start) < min(b, life.end)]


def roundup_ns(life: Life, rules: Mapping[str, BillingRule]) -> int:
    """How much longer than this ended life its provider bills; 0 where no rule is configured or the life is a guess."""
    rule = rules.get(life.terms.provider)
    if rule is None or not (life.ended and life.exact):
        return 0
    lived = life.end - life.start
    grain = rule.granularity_s * 1_000_000_000
    billed = max(lived, rule.minimum_s * 1_000_000_000)
    if grain:
        billed = -(-billed // grain) * grain
    return billed - lived
