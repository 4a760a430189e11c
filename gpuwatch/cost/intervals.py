"""LEDGER -> INTERVALS: every billed tick of every machine in exactly one category.

`partition` is the whole of it; `account` also returns what the reports need beside the intervals. Pure integers; any
permutation of the same lines gives the same result; late evidence moves time between categories, never the total.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuwatch.cost.attempts import GIVE_UP_NS
from gpuwatch.cost.bills import BilledTime, billed_time
from gpuwatch.cost.faults import FaultBook
from gpuwatch.cost.history import History, arrange
from gpuwatch.cost.lives import BillingRule, Life, lives_of
from gpuwatch.cost.node_time import Label, Stretch, Usage, stretches_of
from gpuwatch.cost.quota import Free, PoolKey, decide, pool_key, quotas_by_pool
from gpuwatch.cost.timeline import RunTimeline, timeline_of
from gpuwatch.model.ledger import LedgerLine, StepEnded, snap_ns
from gpuwatch.model.money import BillRow, Category, Interval


@dataclass(slots=True)
class Account:
    """The partition, and what stands beside it."""

    now: int
    intervals: list[Interval]
    runs: dict[str, RunTimeline]
    faults: FaultBook
    history: History
    billed: BilledTime
    bills: Sequence[BillRow]
    findings: list[str]


def partition(
    lines: Sequence[LedgerLine],
    now_unix_ns: int,
    *,
    bills: Sequence[BillRow] = (),
    billing_rules: Mapping[str, BillingRule] | None = None,
) -> list[Interval]:
    """Every billed tick of every machine, as known at `now`, in exactly one category.

    `lines`: the ledger, in any order. `bills`: imported bill rows; where they cover a machine they say how much was
    billed. `billing_rules`: by provider, how a life is rounded up where there is no bill. Sorted by machine and time.
    """
    return account(lines, now_unix_ns, bills=bills, billing_rules=billing_rules).intervals


def account(
    lines: Sequence[LedgerLine],
    now_unix_ns: int,
    *,
    bills: Sequence[BillRow] = (),
    billing_rules: Mapping[str, BillingRule] | None = None,
    give_up_ns: int = GIVE_UP_NS,
) -> Account:
    """The partition with its runs, faults, ghosts and findings."""
    now = snap_ns(now_unix_ns)
    history = arrange(lines, now_unix_ns)
    faults = FaultBook(history.faults)
    runs: dict[str, RunTimeline] = {}
    for run in sorted(history.runs):
        timeline = timeline_of(run, history.runs[run], faults, now, give_up_ns)
        if timeline is not None:
            runs[run] = timeline
    lives = {machine: lives_of(own, now) for machine, own in sorted(history.machines.items())}
    billed = billed_time(lives, bills, billing_rules or {})
    usage = _usage(runs, history)
    intervals = _intervals(history, lives, billed, usage, _Writer(runs, faults, bills))
    return Account(
        now=now,
        intervals=intervals,
        runs=runs,
        faults=faults,
        history=history,
        billed=billed,
        bills=bills,
        findings=_findings(runs, lives, usage),
    )


def _usage(runs: Mapping[str, RunTimeline], history: History) -> defaultdict[str, Usage]:
    usage: defaultdict[str, Usage] = defaultdict(Usage)
    closed = {run: snap_ns(own.closed[0].at_unix_ns) for run, own in history.runs.items() if own.closed}
    for run, timeline in runs.items():
        if timeline.closing.at is not None:
            closed[run] = timeline.closing.at
        else:
            closed.pop(run, None)
        for deed, segments in zip(timeline.deeds, timeline.segments, strict=True):
            step_ends = [snap_ns(line.at_unix_ns) for line in deed.part.lines if isinstance(line, StepEnded)]
            for member in deed.part.members:
                usage[member.machine].members.append((member, deed.part, segments, step_ends))
        for claim, window in timeline.claims:
            usage[claim.machine].claims.append((claim, window, run))
    for machine, own in history.machines.items():
        usage[machine].closed = {hold.run: closed[hold.run] for hold in own.holds if hold.run in closed}
    return usage


def _intervals(
    history: History,
    lives: Mapping[str, Sequence[Life]],
    billed: BilledTime,
    usage: Mapping[str, Usage],
    writer: _Writer,
) -> list[Interval]:
    """Machine by machine; what is healthy and free waits until all are known, because a quota is the pool's."""
    intervals: dict[str, list[Interval]] = {}
    free: defaultdict[PoolKey, list[Free]] = defaultdict(list)
    source: defaultdict[PoolKey, list[Stretch]] = defaultdict(list)
    for machine, pieces in billed.pieces.items():
        own = lives.get(machine, [])
        told: list[tuple[Stretch, Label]] = []
        for stretch in stretches_of(machine, history.machines[machine], own, pieces, usage[machine], writer.faults):
            if stretch.label is not None:
                told.append((stretch, stretch.label))
                continue
            life = stretch.piece.life
            assert life is not None  # only a life can be healthy and free
            key = pool_key(life.pool, life.terms, life.capacity)
            free[key].append(Free(stretch.start, stretch.end, machine, stretch.gpu_thousandths))
            source[key].append(stretch)
        intervals[machine] = writer.write(machine, told)
    quotas = quotas_by_pool(history.quotas)
    decided: defaultdict[str, list[tuple[Stretch, Label]]] = defaultdict(list)
    for key, spans in free.items():
        for part in decide(spans, quotas.get(key[0], []), key[5]):
            stretch = source[key][part.free_index]._replace(
                start=part.start, end=part.end, gpu_thousandths=part.gpu_thousandths
            )
            label = Label(Category.SPARE if part.spare else Category.IDLE)
            decided[spans[part.free_index].machine].append((stretch, label))
    for machine, waiting in decided.items():
        intervals[machine] += writer.write(machine, sorted(waiting, key=lambda item: item[0].start))
    result: list[Interval] = []
    for machine in sorted(intervals):
        result += sorted(intervals[machine], key=_order)
    return result


class _Writer:
    """Joins touching stretches that say the same, and writes them as intervals."""

    def __init__(self, runs: Mapping[str, RunTimeline], faults: FaultBook, bills: Sequence[BillRow]) -> None:
        self.runs = runs
        self.faults = faults
        self.bills = bills

    def write(self, machine: str, labelled: Sequence[tuple[Stretch, Label]]) -> list[Interval]:
        """One machine's stretches, in order of their start."""
        written: list[Interval] = []
        open_now: dict[tuple[Label, int, int, int], tuple[int, int, Stretch]] = {}
        for stretch, label in labelled:
            # Pieces of one life under one set of terms share these two objects.
            key = (label, stretch.gpu_thousandths, id(stretch.piece.terms), id(stretch.piece.life))
            known = open_now.get(key)
            if known is not None and known[1] == stretch.start:
                open_now[key] = (known[0], stretch.end, known[2])
                continue
            if known is not None:
                written.append(self._interval(machine, label, known))
            open_now[key] = (stretch.start, stretch.end, stretch)
        written += [self._interval(machine, key[0], known) for key, known in open_now.items()]
        return written

    def _interval(self, machine: str, label: Label, known: tuple[int, int, Stretch]) -> Interval:
        start, end, stretch = known
        piece = stretch.piece
        life, row = piece.life, piece.terms.bill_row
        run = self.runs.get(label.run) if label.run is not None else None
        return Interval(
            machine=machine,
            slot=life.slot if life is not None else "",
            pool=life.pool if life is not None else "",
            start_unix_ns=start,
            end_unix_ns=end,
            gpu_thousandths=stretch.gpu_thousandths,
            machine_gpu_thousandths=life.capacity if life is not None else 1000,
            category=label.category,
            run=label.run,
            attempt=label.attempt,
            team=run.team if run is not None else None,
            user=run.user if run is not None else None,
            fault=label.fault,
            blame=self.faults.blame(label.fault),
            cause=label.cause,
            provisional=label.provisional or (row is not None and self.bills[row].open),
            terms=piece.terms,
        )


def _order(interval: Interval) -> tuple[int, str, str, str, int, str]:
    own = interval
    return (
        own.start_unix_ns,
        own.run or "",
        own.attempt or "",
        own.category.value,
        own.end_unix_ns,
        own.fault or "",
    )


def _findings(
    runs: Mapping[str, RunTimeline], lives: Mapping[str, Sequence[Life]], usage: Mapping[str, Usage]
) -> list[str]:
    findings = [finding for timeline in runs.values() for finding in timeline.findings]
    homeless = sorted(machine for machine, own in usage.items() if own.members and not lives.get(machine))
    if homeless:
        names = ", ".join(homeless[:5]) + (" …" if len(homeless) > 5 else "")
        findings.append(f"{len(homeless)} members of runs have no record of being billed: they cost nothing: {names}")
    return findings
