"""What the gang did, from its ranks' records: steps, phases and saves, each once, at the moment the last rank did it.

Stamps come from the training processes. A rank is seen every few seconds, not at each step: the gang's step is the
lowest that its ranks have reached, and its end the latest stamp of those that were seen exactly there (in synchronous
training they end together). Steps between two recorded ones are spread evenly by whoever reads the ledger.
A rank whose node has not been heard for a while, though others have, is left out: they could not go on without it.
"""

from __future__ import annotations

from statistics import median_low

from gpuwatch.model.facts.training import Beat
from gpuwatch.model.ledger import LedgerLine, PhaseBegan, PhaseEnded, StepEnded, snap_ns
from gpuwatch.model.moment import Moment
from gpuwatch.runs.book import COMPLETE_GRACE_NS, PHASES, Attempt, Episode, Phase, Rank, Run
from gpuwatch.runs.learned import WARM_UP, appended, executed, usual_ns
from gpuwatch.runs.saves import SETTLED_NS, follow_saves

STALE_NS = 30 * 10**9  # beside the newest record of the gang
CLOCK_OFF_NS = 2 * 10**9  # a node whose clock is further ahead of the gang's middle is corrected


def advance(run: Run, attempt: Attempt, now: Moment) -> list[LedgerLine]:
    """The lines that are new since the last call, in order."""
    if not attempt.ranks or not _complete(attempt, now):
        return []
    ranks = counted(attempt)
    ahead = _clocks_ahead(attempt)
    lines: list[LedgerLine] = []
    _phase(run, attempt, ranks, ahead, lines)
    step = gang_step(ranks)
    if step is not None:
        _step(run, attempt, step, ranks, ahead, lines)
    follow_saves(run, attempt, ranks, ahead, now, lines)
    return lines


def counted(attempt: Attempt) -> list[Rank]:
    """The ranks that speak, as far as anybody does."""
    newest_ns = attempt.heard_monotonic_ns or 0
    return [rank for rank in attempt.ranks.values() if newest_ns - rank.view.received_monotonic_ns <= STALE_NS]


def gang_step(ranks: list[Rank]) -> int | None:
    """The last step that all of them have finished."""
    lowest: int | None = None
    for rank in ranks:
        step = rank.beat.step
        if step is None:
            return None
        if lowest is None or step < lowest:
            lowest = step
    return lowest


def _complete(attempt: Attempt, now: Moment) -> bool:
    if attempt.world_size is not None and len(attempt.ranks) >= attempt.world_size:
        return True
    return now.monotonic_ns - attempt.first_seen_monotonic_ns >= COMPLETE_GRACE_NS


def _clocks_ahead(attempt: Attempt) -> dict[str, int]:
    """Machine -> by how much its stamps must be set back. Only clocks that run ahead of the gang's middle."""
    clocks = attempt.clocks_ns
    if len(clocks) < 2 or max(clocks.values()) - min(clocks.values()) <= CLOCK_OFF_NS:
        return {}
    middle_ns = median_low(clocks.values())
    return {machine: off - middle_ns for machine, off in clocks.items() if off - middle_ns > CLOCK_OFF_NS}


def _at(rank: Rank, stamp_ns: int, ahead: dict[str, int]) -> int:
    return stamp_ns - ahead.get(rank.view.machine, 0) if ahead else stamp_ns


def _step(
    run: Run, attempt: Attempt, step: int, ranks: list[Rank], ahead: dict[str, int], lines: list[LedgerLine]
) -> None:
    """One more step of the gang, if it is new: a higher number, or, after a rollback, a lower one that ended later."""
    if step == attempt.last_step:
        return
    stamps = [_at(rank, end, ahead) for rank in ranks for number, end in rank.ends if number == step]
    if not stamps:
        return
    at_ns = snap_ns(max(stamps))
    if attempt.last_step is not None and step < attempt.last_step and at_ns <= attempt.last_line_ns:
        return  # an old record, not a rollback
    at_ns = max(at_ns, attempt.last_line_ns)
    episode = attempt.episode
    if attempt.last_step is None and episode is not None and episode.phase == "init":
        _init_ended(run, attempt, episode, ranks, ahead, lines)
    lines.append(StepEnded(at_unix_ns=at_ns, run=attempt.run, attempt=attempt.attempt, step=step))
    _learn_step(run, attempt, step, at_ns)
    attempt.last_step, attempt.last_step_ns, attempt.last_line_ns = step, at_ns, at_ns
    attempt.steps_apart = False


def _learn_step(run: Run, attempt: Attempt, step: int, at_ns: int) -> None:
    if attempt.last_step is None or attempt.last_step_ns is None or step <= attempt.last_step:
        return
    count = step - attempt.last_step
    if not attempt.steps_apart:
        each_ns = (at_ns - attempt.last_step_ns) // count
        if attempt.step_count < WARM_UP:
            run.early_ns = appended(run.early_ns, each_ns, count)
        run.step_ns = executed(run.step_ns, each_ns, count, attempt.step_count)
    attempt.step_count += count


def usual_step_ns(run: Run) -> int | None:
    """Learned from what is neither slow nor of the warm-up; before there is enough of it, from the warm-up too."""
    learned = usual_ns(run.step_ns)
    return learned if learned is not None else usual_ns(run.early_ns)


def _phase(run: Run, attempt: Attempt, ranks: list[Rank], ahead: dict[str, int], lines: list[LedgerLine]) -> None:
    """Enter and leave phases. A short one may begin and end between two looks: then both lines come at once."""
    for _ in range(len(PHASES) + 1):  # one may follow the other at once
        if attempt.episode is None:
            attempt.episode = _new_episode(attempt, ranks, ahead)
        episode = attempt.episode
        if episode is None:
            return
        inside = _follow(episode, ranks, ahead, attempt.began_ns.get(episode.phase))
        bystanders = [r for r in ranks if r.view.rank not in episode.entered and r.view.rank not in episode.left]
        if episode.began_ns is None and _all_in(episode, bystanders, ahead):
            _began(run, attempt, episode, ranks, ahead, lines)
        if inside or not episode.left or (episode.phase == "init" and attempt.last_step is None):
            return  # init ends with the gang's first step, which tells whether its end was recorded
        latest_ns = max(episode.left.values())
        if any(_at(rank, rank.beat.read_unix_ns, ahead) < latest_ns for rank in bystanders):
            return  # a rank that was not looked at since may still have been in it
        if episode.began_ns is None:
            _began(run, attempt, episode, ranks, ahead, lines)
        _ended(run, attempt, episode, ranks, lines)


def _new_episode(attempt: Attempt, ranks: list[Rank], ahead: dict[str, int]) -> Episode | None:
    first: Episode | None = None
    for rank in ranks:
        phase, start_ns = rank.beat.phase, rank.beat.phase_start_unix_ns
        if start_ns is None or phase not in PHASES:
            continue
        entered_ns = _at(rank, start_ns, ahead)
        known_ns = attempt.began_ns.get(phase)
        if known_ns is not None and snap_ns(entered_ns) <= known_ns:
            continue  # a phase that has been told of
        if phase == "init" and known_ns is not None and attempt.last_step is None and not rank.restarted:
            continue  # a rank that was slow to start; only a restart opens init again
        if first is None or entered_ns < first.since_ns:
            first = Episode(phase=_named(phase), since_ns=entered_ns)
    return first


def _named(phase: str) -> Phase:
    return next(name for name in PHASES if name == phase)


def _follow(episode: Episode, ranks: list[Rank], ahead: dict[str, int], told_ns: int | None) -> bool:
    """Note who entered and who left. True: somebody is inside. `told_ns`: entry into the last such phase, now over."""
    inside = False
    for rank in ranks:
        start_ns = rank.beat.phase_start_unix_ns
        if start_ns is None:
            continue
        at_ns = _at(rank, start_ns, ahead)
        number = rank.view.rank
        if rank.beat.phase == episode.phase:
            if episode.began_ns is not None or told_ns is None or snap_ns(at_ns) > told_ns:
                inside = True
                episode.since_ns = min(episode.since_ns, at_ns)
                episode.entered[number] = at_ns
                episode.left.pop(number, None)
                if rank.beat.step is not None:
                    episode.step = max(episode.step if episode.step is not None else -1, rank.beat.step)
        elif number not in episode.left and at_ns > episode.entered.get(number, episode.since_ns - 1):
            episode.left[number] = at_ns  # compared with its own entry where that is known: one clock
    return inside


def _all_in(episode: Episode, bystanders: list[Rank], ahead: dict[str, int]) -> bool:
    """Everybody has entered, or those who have not were looked at long enough after the last who did."""
    if not episode.entered:
        return False
    settled_ns = max(episode.entered.values()) + SETTLED_NS
    return all(_at(rank, rank.beat.read_unix_ns, ahead) >= settled_ns for rank in bystanders)


def _began(
    run: Run,
    attempt: Attempt,
    episode: Episode,
    ranks: list[Rank],
    ahead: dict[str, int],
    lines: list[LedgerLine],
) -> None:
    step = episode.step
    lowest = gang_step(ranks)
    own = episode.phase != "init" or attempt.last_step is not None  # else it is what the process began with
    if own and step is not None and lowest is not None and step <= lowest and step > (attempt.last_step or -1):
        _step(run, attempt, step, ranks, ahead, lines)  # the step before the pause, exactly
    entered_ns = max(episode.entered.values(), default=episode.since_ns)
    at_ns = max(snap_ns(entered_ns), attempt.last_line_ns)
    episode.began_ns = at_ns
    attempt.began_ns[episode.phase] = at_ns
    attempt.last_line_ns = at_ns
    attempt.steps_apart = True
    if episode.phase == "init":  # a restart inside the attempt counts anew
        attempt.last_step, attempt.last_step_ns, attempt.step_count = None, None, 0
    lines.append(PhaseBegan(at_unix_ns=at_ns, run=attempt.run, attempt=attempt.attempt, phase=episode.phase))


def _ended(run: Run, attempt: Attempt, episode: Episode, ranks: list[Rank], lines: list[LedgerLine]) -> None:
    assert episode.began_ns is not None
    left_ns = max(episode.left.values())
    if any(left_ns == end for rank in ranks for _, end in rank.ends):
        left_ns -= usual_step_ns(run) or 0  # a step's end took it out of the phase: its own time is not the phase's
    at_ns = max(snap_ns(left_ns), episode.began_ns, attempt.last_line_ns)
    lines.append(PhaseEnded(at_unix_ns=at_ns, run=attempt.run, attempt=attempt.attempt, phase=episode.phase))
    _close(run, attempt, episode, at_ns)


def _init_ended(
    run: Run,
    attempt: Attempt,
    episode: Episode,
    ranks: list[Rank],
    ahead: dict[str, int],
    lines: list[LedgerLine],
) -> None:
    """The gang's first step is over, so init is. Its end is told only where a rank recorded it.

    A step's end takes a rank out of init too, and then its stamp is no end of init: whoever reads the ledger takes the
    first step to have been an ideal one. The first step is known by its length: it began where init ended.
    """
    if episode.began_ns is None:
        _began(run, attempt, episode, ranks, ahead, lines)
    left_ns: list[int] = []
    resumed: int | None = None
    for rank in ranks:
        beat = rank.beat
        if beat.phase_start_unix_ns is None or beat.phase not in ("train", "data_wait"):
            continue
        steps = _steps_since(beat.phase_start_unix_ns, beat)
        if steps is not None and beat.step is not None and (steps == 1 or rank.trained_before_first_step):
            resumed = beat.step - steps
        if steps == 1 or rank.trained_before_first_step:
            left_ns.append(_at(rank, beat.phase_start_unix_ns, ahead))
    assert episode.began_ns is not None
    if not left_ns:
        _close(run, attempt, episode, None)
        return
    at_ns = max(snap_ns(max(left_ns)), episode.began_ns, attempt.last_line_ns)
    lines.append(
        PhaseEnded(at_unix_ns=at_ns, run=attempt.run, attempt=attempt.attempt, phase="init", resumed_step=resumed)
    )
    _close(run, attempt, episode, at_ns)


def _steps_since(start_ns: int, beat: Beat) -> int | None:
    """How many steps of the last one's length lie between: a whole number of them, or nobody can tell."""
    if not beat.step_s or beat.step_end_unix_ns is None:
        return None
    times = (beat.step_end_unix_ns - start_ns) / (beat.step_s * 1e9)
    whole = round(times)
    return whole if whole >= 1 and abs(times - whole) <= 0.1 else None


def _close(run: Run, attempt: Attempt, episode: Episode, at_ns: int | None) -> None:
    if at_ns is not None and episode.began_ns is not None:
        attempt.last_line_ns = at_ns
        run.phase_ns[episode.phase] = appended(run.phase_ns.get(episode.phase, ()), at_ns - episode.began_ns)
    attempt.episode = None
