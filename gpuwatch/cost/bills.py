"""Lays what a bill says (how much) on what the lives say (when): each machine's billed time, piece by piece."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpuwatch.cost.lives import BillingRule, Life, roundup_ns
from gpuwatch.cost.spans import Span, clip, length_ns, take, united, without
from gpuwatch.model.ledger import TICK_NS, snap_ns
from gpuwatch.model.money import BillRow, Category, Terms


@dataclass(slots=True, frozen=True)
class Piece:
    """Billed time of one machine. `forced`: its category follows from the billing alone."""

    start: int
    end: int
    terms: Terms
    life: Life | None
    forced: Category | None = None
    cause: str = ""


class Ghost(msgspec.Struct, frozen=True, kw_only=True):
    """Life that a bill covers and does not charge: cost 0, listed."""

    machine: str
    start_unix_ns: int
    end_unix_ns: int


class UnplacedTime(msgspec.Struct, frozen=True, kw_only=True):
    """Billed machine time without a place on the clock: `billing_roundup`.

    The charge period has no room for it, or it is negative: a correction of what was billed before.
    """

    bill_row: int
    ticks: int


@dataclass(slots=True)
class BilledTime:
    """Everything billed that has a place on the clock, and what has none."""

    pieces: dict[str, list[Piece]]
    ghosts: list[Ghost]
    unplaced: list[UnplacedTime]


def billed_time(
    lives: Mapping[str, Sequence[Life]], bills: Sequence[BillRow], rules: Mapping[str, BillingRule]
) -> BilledTime:
    """The first source that exists, per machine and period: bill rows, then the lives with their provider's rounding.

    Pieces of a machine are sorted and do not overlap.
    """
    by_machine: defaultdict[str, list[tuple[int, BillRow]]] = defaultdict(list)
    for index, row in enumerate(bills):
        if row.kind == "usage" and row.machine:
            by_machine[row.machine].append((index, row))
    result = BilledTime(pieces={}, ghosts=[], unplaced=[])
    for machine in sorted(set(lives) | set(by_machine)):
        own = lives.get(machine, ())
        pieces, covered = _from_bill(machine, own, by_machine.get(machine, []), result)
        pieces += _from_lives(own, covered, rules)
        pieces.sort(key=lambda piece: piece.start)
        if pieces:
            result.pieces[machine] = pieces
    return result


def _from_lives(lives: Sequence[Life], covered: Sequence[Span], rules: Mapping[str, BillingRule]) -> list[Piece]:
    pieces: list[Piece] = []
    for index, life in enumerate(lives):
        pieces += [Piece(a, b, life.terms, life) for a, b in without(life.billed(), covered)]
        rest = roundup_ns(life, rules)
        limit = lives[index + 1].start if index + 1 < len(lives) else life.end + rest
        after = without(clip([(life.end, life.end + rest)], life.end, limit), covered)
        pieces += [Piece(a, b, life.terms, life, Category.BILLING_ROUNDUP, "granularity") for a, b in after]
    return pieces


def _from_bill(
    machine: str, lives: Sequence[Life], rows: Sequence[tuple[int, BillRow]], result: BilledTime
) -> tuple[list[Piece], list[Span]]:
    """Its pieces, and the time that the bill speaks for: a row that is open says nothing of what comes after it."""
    pieces: list[Piece] = []
    free_life = united(span for life in lives for span in life.billed())
    free_gone = united(span for life in lives if not life.provider_end for span in life.gone)
    laid_before: list[Span] = []  # by rows whose period may still overlap the next one's
    all_laid: list[Span] = []
    periods: list[Span] = []
    for index, row in sorted(
        rows, key=lambda item: (item[1].period_start_unix_ns, item[1].period_end_unix_ns, item[0])
    ):
        period = (snap_ns(row.period_start_unix_ns), snap_ns(row.period_end_unix_ns))
        known = [life for life in lives if life.start < period[1] and period[0] < life.end]
        terms = _terms(row, index, known)
        due = row.quantity_ticks * TICK_NS
        reach = period[0]
        laid_before = [span for span in laid_before if span[1] > period[0]]
        for spans, forced, cause in _places(period, known, free_life, free_gone):
            laid, _ = take(without(clip(united(spans), *period), laid_before), due)
            due -= length_ns(laid)
            laid_before = united([*laid_before, *laid])
            all_laid += laid
            reach = max([reach, *(end for _, end in laid)])
            for start, end in laid:
                pieces += _by_life(start, end, known, terms, forced, cause)
        if due:  # negative: a correction, which takes no time from the clock
            result.unplaced.append(UnplacedTime(bill_row=index, ticks=due // TICK_NS))
        periods.append((period[0], reach if row.open else period[1]))
    covered = united(periods)
    inside = without(free_life, without(free_life, covered))
    for start, end in without(inside, united(all_laid)):
        result.ghosts.append(Ghost(machine=machine, start_unix_ns=start, end_unix_ns=end))
    return pieces, covered


def _places(
    period: Span, known: Sequence[Life], free_life: list[Span], free_gone: list[Span]
) -> Iterable[tuple[list[Span], Category | None, str]]:
    """Where a row's quantity goes, in this order: on the life, on an absence, then where no life is recorded."""
    yield free_life, None, ""
    yield free_gone, Category.UNKNOWN, "billed_while_absent"
    if not known:
        yield [period], Category.UNKNOWN, "orphan"
    elif all(life.exact for life in known):
        last = max(life.end for life in known)
        yield [(last, period[1])], Category.BILLING_ROUNDUP, "granularity"
        yield [period], Category.BILLING_ROUNDUP, "granularity"
    else:
        first = min(life.start for life in known)
        yield [(period[0], first)], Category.UNKNOWN, "no_life_record"
        yield [period], Category.UNKNOWN, "no_life_record"


def _by_life(
    start: int, end: int, known: Sequence[Life], terms: Terms, forced: Category | None, cause: str
) -> list[Piece]:
    if forced is not None:
        nearest = min(known, key=lambda life: (max(life.start - start, start - life.end, 0), life.start), default=None)
        return [Piece(start, end, terms, nearest, forced, cause)]
    return [
        Piece(max(start, life.start), min(end, life.end), terms, life)
        for life in known
        if max(start, life.start) < min(end, life.end)
    ]


def _terms(row: BillRow, index: int, known: Sequence[Life]) -> Terms:
    own = known[0].terms if known else Terms()
    return Terms(
        provider=row.provider or own.provider,
        region=own.region,
        sku=row.sku or own.sku,
        price_kind=own.price_kind,
        source="bill",
        bill_row=index,
    )
