"""Which attempt a record belongs to, and when attempts begin and end.

The scheduler's word counts where it knows the run. Where none does, an attempt goes from its first heartbeat to the
moment when its last rank is gone. A new attempt's first lines wait until the scheduler has spoken or a grace is over,
so that no attempt is begun twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gpuwatch.model.ledger import (
    AttemptEnded,
    AttemptStarted,
    LedgerLine,
    Member,
    MemberLeft,
    RunClosed,
    snap_ns,
)
from gpuwatch.model.moment import Moment
from gpuwatch.model.run import JobFact, Sighting
from gpuwatch.runs.book import COMPLETE_GRACE_NS, LINGER_NS, Attempt, Book, Run

Ended = Literal["exit0", "planned", "unplanned"]
WHOLE_GPU = 1000
LATE_MEMBER_NS = 60 * 10**9  # a member told this soon after the start was there from the start
FORGET_NS = 2 * 24 * 3600 * 10**9  # ended attempts; schedulers list theirs for a day
GIVE_UP_NS = 7 * 24 * 3600 * 10**9  # then a run without a successor is given up
MAX_ENDED_RUNS = 10_000


def take_job(book: Book, fact: JobFact, now: Moment, faults: Mapping[str, str]) -> list[LedgerLine]:
    """The scheduler's word on one attempt."""
    run = book.runs.get(fact.run)
    if run is None:
        run = book.runs[fact.run] = Run(fact.run)
    run.by_scheduler = True
    if fact.state == "pending":
        return []
    attempt = run.attempts.get(fact.attempt)
    if attempt is None:
        if fact.state == "ended" and not _watched(book, fact):
            return []  # history from before our time
        attempt = run.attempts[fact.attempt] = Attempt(fact.run, fact.attempt, True, now.monotonic_ns)
    attempt.by_scheduler = True
    if attempt.ended_unix_ns is not None:
        return []
    lines: list[LedgerLine] = []
    attempt.team, attempt.user = fact.team or attempt.team, fact.user or attempt.user
    if attempt.started_unix_ns is None:
        started_ns = fact.started_unix_ns if fact.started_unix_ns is not None else now.unix_ns
        lines += start(run, attempt, {m.machine: m.gpu_thousandths for m in fact.members}, started_ns)
    elif fact.state == "running" and fact.members:
        if fact.suspended:
            attempt.moved_monotonic_ns = now.monotonic_ns  # how long it stands still counts from when it may go on
        lines += _members(attempt, {m.machine: m.gpu_thousandths for m in fact.members}, now)
    if fact.state == "ended":
        ended: Ended = "exit0" if fact.ended == "exit0" else "planned" if fact.ended == "planned" else "unplanned"
        at_ns = fact.ended_unix_ns if fact.ended_unix_ns is not None else now.unix_ns
        lines += end(run, attempt, ended, fact.cause, at_ns, now, faults)
    return lines


def _watched(book: Book, fact: JobFact) -> bool:
    known = fact.started_unix_ns is not None and book.since_unix_ns is not None
    return known and (fact.started_unix_ns or 0) >= (book.since_unix_ns or 0)


def start(run: Run, attempt: Attempt, members: Mapping[str, int], started_unix_ns: int) -> list[LedgerLine]:
    """Begin it, and let out the lines that waited for it."""
    attempt.started_unix_ns = snap_ns(started_unix_ns)
    attempt.members = dict(members)
    run.closed = False
    scale = (len(members), attempt.world_size)
    if run.scale is not None and run.scale != scale:  # other steps, other ranks that save
        run.step_ns, run.early_ns, run.savers = (), (), frozenset()
    run.scale = scale
    first: LedgerLine = AttemptStarted(
        at_unix_ns=attempt.started_unix_ns,
        run=attempt.run,
        attempt=attempt.attempt,
        members=_as_members(members),
        world_size=attempt.world_size,
        team=attempt.team,
        user=attempt.user,
    )
    waited, attempt.waiting = attempt.waiting, []
    return [first, *waited]


def _as_members(members: Mapping[str, int]) -> tuple[Member, ...]:
    return tuple(Member(machine=name, gpu_thousandths=share) for name, share in sorted(members.items()))


def _members(attempt: Attempt, members: Mapping[str, int], now: Moment) -> list[LedgerLine]:
    """Who joined a live attempt, and who left it."""
    lines: list[LedgerLine] = []
    assert attempt.started_unix_ns is not None
    joined = {machine: share for machine, share in members.items() if machine not in attempt.members}
    if joined:
        early = now.unix_ns - attempt.started_unix_ns <= LATE_MEMBER_NS
        at_ns = attempt.started_unix_ns if early else snap_ns(now.unix_ns)
        lines.append(
            AttemptStarted(
                at_unix_ns=at_ns,
                run=attempt.run,
                attempt=attempt.attempt,
                members=_as_members(joined),
                world_size=attempt.world_size,
                team=attempt.team,
                user=attempt.user,
            )
        )
    for machine in sorted(attempt.members.keys() - members.keys()):
        lines.append(
            MemberLeft(at_unix_ns=snap_ns(now.unix_ns), run=attempt.run, attempt=attempt.attempt, machine=machine)
        )
    attempt.members = dict(members)
    return lines


def end(
    run: Run, attempt: Attempt, ended: Ended, cause: str, at_unix_ns: int, now: Moment, faults: Mapping[str, str]
) -> list[LedgerLine]:
    """It is over. A stop carries the fault that is open on the run; an unplanned one, without it, that of a member.

    An owner may well stop a run while some member is a little sick: that makes the stop nobody's fault.
    """
    at_ns = snap_ns(at_unix_ns)
    fault = None
    if ended != "exit0":
        keys = [f"run:{attempt.run}"] + (sorted(attempt.members) if ended == "unplanned" else [])
        fault = next((faults[key] for key in keys if key in faults), None)
    attempt.ended_unix_ns = at_ns
    attempt.ended_monotonic_ns = now.monotonic_ns
    run.last_ended_unix_ns = max(at_ns, run.last_ended_unix_ns or 0)
    lines: list[LedgerLine] = [
        AttemptEnded(at_unix_ns=at_ns, run=attempt.run, attempt=attempt.attempt, ended=ended, cause=cause, fault=fault)
    ]
    if ended == "exit0" and not run.closed:
        run.closed = True
        lines.append(RunClosed(at_unix_ns=at_ns, run=run.run, how="exit0"))
    return lines


def attempt_of(book: Book, sighting: Sighting) -> Attempt | None:
    """The attempt that this record belongs to, a new one where it must be; None: too old, or nobody's yet."""
    beat, now = sighting.beat, sighting.received
    run = book.runs.get(beat.run)
    if run is None:
        if beat.alive is False:
            return None  # what a process left behind that ended before our time
        run = book.runs[beat.run] = Run(beat.run)
    name = run.also_called.get(beat.attempt, beat.attempt) or _unnamed(run, sighting)
    attempt = run.attempts.get(name) if name else None
    if attempt is None:
        if not name or beat.alive is False:
            return None
        attempt = run.attempts[name] = Attempt(beat.run, name, False, now.monotonic_ns)
    if attempt.by_scheduler and attempt.members and sighting.machine not in attempt.members:
        return None  # the scheduler knows who takes part; nobody else speaks for it
    ended_ns = attempt.ended_monotonic_ns
    if attempt.ended_unix_ns is not None and (ended_ns is None or now.monotonic_ns - ended_ns > LINGER_NS):
        return None
    return attempt


def _unnamed(run: Run, sighting: Sighting) -> str:
    """A process whose launcher told no attempt: the scheduler's live one on this machine, else counted by us."""
    live = run.live()
    if run.by_scheduler:
        mine = [attempt.attempt for attempt in live if sighting.machine in attempt.members]
        return mine[0] if len(mine) == 1 else ""
    beat = sighting.beat
    for attempt in live:
        rank = attempt.ranks.get(beat.rank)
        if rank is None or rank.beat.pid == beat.pid or beat.alive is False:
            return attempt.attempt
        if (beat.phase_start_unix_ns or 0) <= (rank.beat.phase_start_unix_ns or 0):
            return attempt.attempt
    for attempt in run.attempts.values():
        rank = attempt.ranks.get(beat.rank)
        if rank is not None and rank.beat.pid == beat.pid:
            return attempt.attempt  # the end of one that is over
    return f"{run.run}#{len(run.attempts) + 1}"


def keep_up(run: Run, now: Moment, faults: Mapping[str, str]) -> list[LedgerLine]:
    """Begin and end what only time or the ranks tell: attempts without a scheduler, runs that nobody takes up again."""
    lines: list[LedgerLine] = []
    for attempt in run.live():
        if attempt.started_unix_ns is None:
            lines += _start_untold(run, attempt, now)
    alone = [
        attempt
        for attempt in run.live()
        if not attempt.by_scheduler
        and attempt.started_unix_ns is not None
        and now.monotonic_ns - attempt.first_seen_monotonic_ns >= COMPLETE_GRACE_NS
    ]
    alone.sort(key=lambda attempt: (attempt.started_unix_ns or 0, attempt.attempt))
    for attempt, successor in zip(alone, [*alone[1:], None], strict=False):
        if successor is not None:
            at_ns = successor.started_unix_ns or now.unix_ns
            lines += end(run, attempt, "unplanned", "superseded", at_ns, now, faults)
        else:
            lines += _gone(run, attempt, now, faults)
    return lines


def _start_untold(run: Run, attempt: Attempt, now: Moment) -> list[LedgerLine]:
    """The grace is over and no scheduler has named this attempt."""
    if now.monotonic_ns - attempt.first_seen_monotonic_ns < COMPLETE_GRACE_NS or not attempt.ranks:
        return []
    if run.by_scheduler:
        machines = {rank.view.machine for rank in attempt.ranks.values()}
        told = [a for a in run.live() if a.by_scheduler and machines & a.members.keys()]
        if len(told) == 1:  # the launcher and the scheduler call it by different names
            run.also_called[attempt.attempt] = told[0].attempt
            _hand_over(attempt, told[0])
            del run.attempts[attempt.attempt]
            return []
    members: dict[str, int] = {}
    for rank in attempt.ranks.values():
        members[rank.view.machine] = members.get(rank.view.machine, 0) + WHOLE_GPU
    stamps = [
        stamp
        for rank in attempt.ranks.values()
        for stamp in (rank.beat.phase_start_unix_ns, rank.beat.step_end_unix_ns)
        if stamp is not None
    ]
    return start(run, attempt, members, min(stamps) if stamps else now.unix_ns)


def _hand_over(attempt: Attempt, other: Attempt) -> None:
    for number, rank in attempt.ranks.items():
        other.ranks.setdefault(number, rank)
    other.world_size = other.world_size or attempt.world_size
    other.moved_monotonic_ns = max(other.moved_monotonic_ns, attempt.moved_monotonic_ns)
    other.heard_monotonic_ns = max(other.heard_monotonic_ns or 0, attempt.heard_monotonic_ns or 0)


def _gone(run: Run, attempt: Attempt, now: Moment, faults: Mapping[str, str]) -> list[LedgerLine]:
    """No scheduler knows it: it ends when its last rank is gone."""
    stamps: list[int] = []
    crashed = False
    for rank in attempt.ranks.values():
        if rank.beat.phase == "done":
            stamps.append(rank.beat.phase_start_unix_ns or rank.beat.read_unix_ns)
        elif rank.beat.alive is False:
            stamps.append(rank.dead_unix_ns or rank.beat.read_unix_ns)
            crashed = True
        else:
            return []
    if not stamps or (attempt.world_size or 0) > len(stamps):
        return []
    at_ns = min(max(stamps), now.unix_ns)
    ended: Ended = "unplanned" if crashed else "exit0"
    return end(run, attempt, ended, "exited" if crashed else "completed", at_ns, now, faults)


def forget(book: Book, now: Moment) -> list[LedgerLine]:
    """Give up runs that nobody took up again, and drop what nobody will ask for."""
    lines: list[LedgerLine] = []
    ended: list[tuple[int, str]] = []
    for name, run in list(book.runs.items()):
        for attempt in list(run.attempts.values()):
            if attempt.ended_unix_ns is None:
                continue
            if attempt.ranks and now.monotonic_ns - (attempt.ended_monotonic_ns or 0) > LINGER_NS:
                attempt.ranks, attempt.clocks_ns, attempt.saving = {}, {}, {}
            if now.unix_ns - attempt.ended_unix_ns > FORGET_NS:
                del run.attempts[attempt.attempt]
        if run.live() or run.last_ended_unix_ns is None:
            continue
        if not run.closed and now.unix_ns - run.last_ended_unix_ns >= GIVE_UP_NS:
            run.closed = True
            at_ns = snap_ns(run.last_ended_unix_ns + GIVE_UP_NS)
            lines.append(RunClosed(at_unix_ns=at_ns, run=name, how="given_up"))
        if run.closed and not run.attempts:
            del book.runs[name]
        else:
            ended.append((run.last_ended_unix_ns, name))
    for _, name in sorted(ended)[: max(0, len(ended) - MAX_ENDED_RUNS)]:
        del book.runs[name]
    return lines
