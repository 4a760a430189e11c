"""The door of this room: what was seen goes in, the next book and the new ledger lines come out.

    book, lines = absorb(book, sightings, jobs, now)
    runs = views(book, now)

The book that is handed in is not changed. The same inputs give the same lines; a line is given once, also when records
come late, twice or out of order, and also after a restart (`from_ledger`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuwatch.model.ledger import EvidenceBack, EvidenceLost, LedgerLine, snap_ns
from gpuwatch.model.moment import Moment
from gpuwatch.model.run import JobFact, RunView, Sighting
from gpuwatch.runs.attempts import attempt_of, forget, keep_up, take_job
from gpuwatch.runs.book import PHASES, Attempt, Book, Run
from gpuwatch.runs.learned import lower_median, usual_ns
from gpuwatch.runs.progress import advance, counted, gang_step, usual_step_ns
from gpuwatch.runs.ranks import take
from gpuwatch.runs.rebuilt import from_ledger
from gpuwatch.runs.saves import saved

__all__ = ["absorb", "from_ledger", "new_book", "views"]

LOST_NS = 60 * 10**9
"""Nobody has spoken of an attempt for so long: what follows is unknown, no hang."""


def new_book() -> Book:
    """Nothing is known yet."""
    return Book()


def absorb(
    book: Book,
    sightings: Iterable[Sighting],
    jobs: Iterable[JobFact],
    now: Moment,
    faults: Mapping[str, str] | None = None,
) -> tuple[Book, list[LedgerLine]]:
    """The next book, and the lines that are new, in order within each attempt.

    `jobs`: what the scheduler lists, where it was asked since the last call. `faults`: open faults by machine or
    `run:<id>`, so that an end can name what caused it.
    """
    since = book.since_unix_ns if book.since_unix_ns is not None else now.unix_ns
    book = Book(since, {name: run.copy() for name, run in book.runs.items()})
    for run in book.runs.values():
        for attempt in run.live():
            _greet(attempt, now)
    known = faults or {}
    lines: list[LedgerLine] = []
    ended: list[JobFact] = []
    for fact in jobs:
        if fact.state == "ended":
            ended.append(fact)  # after the records of this call: the last steps belong before the end
        else:
            lines += take_job(book, fact, now, known)
    for sighting in sightings:
        whose = attempt_of(book, sighting)
        if whose is not None:
            take(whose, sighting)
            lines += _back(whose, sighting.received)
    for run in book.runs.values():
        for attempt in list(run.attempts.values()):
            lines += _advance(run, attempt, now)
    for fact in ended:
        known_run = book.runs.get(fact.run)
        last = known_run.attempts.get(fact.attempt) if known_run is not None else None
        if known_run is not None and last is not None and last.ended_unix_ns is None:
            lines += _last_save(known_run, last)
        lines += take_job(book, fact, now, known)
    for run in book.runs.values():
        lines += keep_up(run, now, known)
        for attempt in run.live():
            lines += _lost(attempt, now)
    lines += forget(book, now)
    return book, lines


def _greet(attempt: Attempt, now: Moment) -> None:
    """An attempt out of the ledger: from now on its ranks have time to speak again."""
    if attempt.first_seen_monotonic_ns == 0:
        attempt.first_seen_monotonic_ns = now.monotonic_ns
        if attempt.last_line_ns:
            attempt.heard_monotonic_ns = now.monotonic_ns


def _advance(run: Run, attempt: Attempt, now: Moment) -> list[LedgerLine]:
    lines = advance(run, attempt, now)
    if attempt.started_unix_ns is None:
        attempt.waiting += lines
        return []
    if attempt.ended_unix_ns is not None:  # spooled on the way, and still news
        return [line for line in lines if line.at_unix_ns <= attempt.ended_unix_ns]
    return lines


def _last_save(run: Run, attempt: Attempt) -> list[LedgerLine]:
    """At an end nobody else will report: a save whose ranks have all left the phase is taken as they told it."""
    lines: list[LedgerLine] = []
    if attempt.saving and not run.savers and attempt.episode is None:
        step = max(attempt.saving)
        saved(run, attempt, step, frozenset(attempt.saving[step]), lines)
        run.savers = frozenset()  # not learned from this
    return lines


def _lost(attempt: Attempt, now: Moment) -> list[LedgerLine]:
    heard_ns = attempt.heard_monotonic_ns
    if attempt.started_unix_ns is None or attempt.lost or heard_ns is None:
        return []
    silent_ns = now.monotonic_ns - heard_ns
    if silent_ns <= LOST_NS:
        return []
    attempt.lost = True
    since_ns = snap_ns(now.unix_ns - silent_ns) if attempt.ranks else 0  # without ranks: since before our start
    return [EvidenceLost(at_unix_ns=max(since_ns, attempt.last_line_ns), run=attempt.run, attempt=attempt.attempt)]


def _back(attempt: Attempt, received: Moment) -> list[LedgerLine]:
    if not attempt.lost:
        return []
    attempt.lost = False
    return [EvidenceBack(at_unix_ns=snap_ns(received.unix_ns), run=attempt.run, attempt=attempt.attempt)]


def views(book: Book, now: Moment) -> tuple[RunView, ...]:  # noqa: ARG001
    """Every live attempt that any rank speaks of, by run and attempt."""
    found = []
    for run in book.runs.values():
        for attempt in run.live():
            if attempt.ranks:
                found.append(_view(run, attempt))
    return tuple(sorted(found, key=lambda view: (view.run, view.attempt)))


def _view(run: Run, attempt: Attempt) -> RunView:
    ranks = counted(attempt)
    phase = _phase(attempt)
    step_ns = usual_step_ns(run)
    phase_ns = usual_ns(run.phase_ns.get(phase, ()))
    by_rank = [attempt.ranks[number].view for number in sorted(attempt.ranks)]
    machines = tuple(dict.fromkeys([rank.machine for rank in by_rank] + sorted(attempt.members)))
    step = gang_step(ranks)
    ends = [end for rank in ranks for number, end in rank.ends if number == step]
    return RunView(
        run=attempt.run,
        attempt=attempt.attempt,
        machines=machines,
        ranks=tuple(by_rank),
        world_size=attempt.world_size or len(by_rank),
        step=step,
        phase=phase,
        moved_monotonic_ns=attempt.moved_monotonic_ns,
        step_end_unix_ns=max(ends) if ends else None,
        usual_step_s=step_ns / 1e9 if step_ns is not None else None,
        usual_phase_s=phase_ns / 1e9 if phase_ns is not None else None,
        checkpoint_step=attempt.saved_step,
        checkpoint_unix_ns=attempt.saved_unix_ns,
        team=attempt.team,
        user=attempt.user,
        checkpoint_every_steps=lower_median(run.save_steps) if run.save_steps else None,
    )


def _phase(attempt: Attempt) -> str:
    """A phase that is no step as soon as any rank is in it: a pause must not look like a hang."""
    seen = {rank.beat.phase for rank in attempt.ranks.values()}
    for phase in PHASES:
        if phase in seen:
            return phase
    if seen == {"done"} or seen == {"data_wait"}:
        return seen.pop()
    return "train"
