"""One more record of one rank: newer, the same again, or late. Late and repeated ones do no harm."""

from __future__ import annotations

import msgspec

from gpuwatch.model.facts.training import Beat
from gpuwatch.model.run import RankView, Sighting
from gpuwatch.runs.book import Attempt, Rank

KEPT_ENDS = 4


def take(attempt: Attempt, sighting: Sighting) -> None:
    """Put the record in its place. Only what is newer than the known one moves anything."""
    beat = sighting.beat
    known = attempt.ranks.get(beat.rank)
    if known is not None and beat.pid != known.beat.pid and not _succeeds(beat, known.beat):
        return  # what an earlier process of this rank left behind
    _heard(attempt, sighting)
    if known is None or beat.pid != known.beat.pid:
        attempt.ranks[beat.rank] = _first(sighting, restarted=known is not None)
        _moved(attempt, sighting)
    elif _is_newer(beat, known.beat):
        attempt.ranks[beat.rank] = _next(known, sighting)
        _moved(attempt, sighting)
    elif beat.sequence == known.beat.sequence and beat.read_unix_ns >= known.beat.read_unix_ns:
        attempt.ranks[beat.rank] = _again(known, sighting)
    elif beat.sequence == known.beat.sequence and beat.read_unix_ns < known.first_read_unix_ns:
        attempt.ranks[beat.rank] = _again(known, sighting)  # its node's clock stepped back
    else:
        attempt.ranks[beat.rank] = msgspec.structs.replace(known, ends=_with_end(known.ends, beat))


def _succeeds(beat: Beat, known: Beat) -> bool:
    """Another process of the same rank, later than the known one."""
    if beat.alive is False:
        return False
    return known.alive is False or (beat.phase_start_unix_ns or 0) > (known.phase_start_unix_ns or 0)


def _is_newer(beat: Beat, known: Beat) -> bool:
    if beat.sequence != known.sequence:
        return beat.sequence > known.sequence
    differs = (beat.step, beat.phase, beat.step_end_unix_ns, beat.checkpoint_step) != (
        known.step,
        known.phase,
        known.step_end_unix_ns,
        known.checkpoint_step,
    )
    return differs and beat.read_unix_ns > known.read_unix_ns  # a source without sequence numbers


def _heard(attempt: Attempt, sighting: Sighting) -> None:
    beat, received = sighting.beat, sighting.received
    if attempt.heard_monotonic_ns is None or received.monotonic_ns > attempt.heard_monotonic_ns:
        attempt.heard_monotonic_ns = received.monotonic_ns
    if beat.read_unix_ns:
        attempt.clocks_ns[sighting.machine] = beat.read_unix_ns - received.unix_ns
    attempt.world_size = beat.world_size
    attempt.team = attempt.team or beat.team
    attempt.user = attempt.user or beat.user


def _moved(attempt: Attempt, sighting: Sighting) -> None:
    if sighting.received.monotonic_ns > attempt.moved_monotonic_ns:
        attempt.moved_monotonic_ns = sighting.received.monotonic_ns


def _first(sighting: Sighting, *, restarted: bool) -> Rank:
    beat = sighting.beat
    return Rank(
        view=_view(sighting, sighting.received.monotonic_ns, 0.0),
        beat=beat,
        first_read_unix_ns=beat.read_unix_ns,
        ends=_with_end((), beat),
        restarted=restarted,
        trained_before_first_step=beat.step is None and beat.phase in ("train", "data_wait"),
        dead_unix_ns=beat.read_unix_ns if beat.alive is False else None,
    )


def _next(known: Rank, sighting: Sighting) -> Rank:
    beat = sighting.beat
    trained = beat.step is None and beat.phase in ("train", "data_wait")
    return Rank(
        view=_view(sighting, sighting.received.monotonic_ns, 0.0),
        beat=beat,
        first_read_unix_ns=beat.read_unix_ns,
        ends=_with_end(known.ends, beat),
        restarted=known.restarted,
        trained_before_first_step=known.trained_before_first_step or trained,
        dead_unix_ns=None if beat.alive is not False else _dead(known, beat),
    )


def _again(known: Rank, sighting: Sighting) -> Rank:
    beat = sighting.beat
    first_ns = min(known.first_read_unix_ns, beat.read_unix_ns)  # less: its node's clock stepped back, count anew
    still_s = (beat.read_unix_ns - first_ns) / 1e9
    return msgspec.structs.replace(
        known,
        view=_view(sighting, known.view.moved_monotonic_ns, still_s),
        beat=beat,
        first_read_unix_ns=first_ns,
        dead_unix_ns=None if beat.alive is not False else _dead(known, beat),
    )


def _dead(known: Rank, beat: Beat) -> int:
    return known.dead_unix_ns if known.dead_unix_ns is not None else beat.read_unix_ns


def _view(sighting: Sighting, moved_monotonic_ns: int, still_s: float) -> RankView:
    beat = sighting.beat
    return RankView(
        rank=beat.rank,
        machine=sighting.machine,
        slot=sighting.slot,
        step=beat.step,
        phase=beat.phase,
        alive=beat.alive,
        received_monotonic_ns=sighting.received.monotonic_ns,
        moved_monotonic_ns=moved_monotonic_ns,
        step_end_unix_ns=beat.step_end_unix_ns,
        phase_start_unix_ns=beat.phase_start_unix_ns,
        step_s=beat.step_s,
        still_s=still_s,
    )


def _with_end(ends: tuple[tuple[int, int], ...], beat: Beat) -> tuple[tuple[int, int], ...]:
    if beat.step is None or beat.step_end_unix_ns is None:
        return ends
    end = (beat.step, beat.step_end_unix_ns)
    if not ends or end[1] > ends[-1][1]:  # the newest so far, as nearly always
        return (*ends[1 - KEPT_ENDS :], end)
    if end in ends:
        return ends
    return tuple(sorted((*ends, end), key=lambda pair: pair[1]))[-KEPT_ENDS:]
