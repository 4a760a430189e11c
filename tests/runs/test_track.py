"""A simulated gang with known times is looked at through ranks' records; the ledger lines must tell its true times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.model.facts.training import Beat
from gpuwatch.model.ledger import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    EvidenceBack,
    EvidenceLost,
    LedgerLine,
    Member,
    PhaseBegan,
    PhaseEnded,
    RunClosed,
    StepEnded,
    snap_ns,
)
from gpuwatch.model.run import JobFact, Sighting
from gpuwatch.runs.track import absorb, from_ledger, new_book, views
from tests.fakes import T0, S, later


@dataclass
class Gang:
    """Ranks, two a machine, that step in time. `skew_s`: how late each rank is beside the first."""

    ranks: int = 4
    step_s: float = 10.0
    save_every: int = 10
    save_s: float = 30.0
    init_s: float = 60.0
    names_phases: bool = True
    attempt: str = "opt.1"
    from_step: int = 0
    start_s: float = 0.0
    skew_s: float = 0.002
    clock_s: dict[str, float] = field(default_factory=dict)  # machine -> its wall clock less ours

    def machine(self, rank: int) -> str:
        return f"m-gpu{rank // 2:02d}"

    def stamp(self, rank: int, t: float) -> int:
        wrong_s = self.clock_s.get(self.machine(rank), 0.0)
        return T0.unix_ns + round((self.start_s + t + self.skew_s * rank + wrong_s) * S)

    def timeline(self, until_s: float) -> list[tuple[float, str, int | None, int | None]]:
        """(moment, phase from then on, last finished step, last saved step)."""
        events: list[tuple[float, str, int | None, int | None]] = [(0.0, "init", None, None)]
        t, step, saved = self.init_s, self.from_step, None
        if self.names_phases:
            events.append((t, "train", None, None))
        while t <= until_s:
            t += self.step_s
            step += 1
            events.append((t, "train", step, saved))
            if step % self.save_every == 0:
                events.append((t + 0.01, "checkpoint", step, saved))
                saved = step
                t += self.save_s
                events.append((t, "train", step, saved))
        return events

    def beat(self, rank: int, at_s: float, *, alive: bool = True) -> Beat | None:
        """What the file of this rank says at that moment."""
        seen = [(n, e) for n, e in enumerate(self.timeline(at_s)) if e[0] + self.skew_s * rank <= at_s]
        if not seen:
            return None
        number, (_, phase, step, saved) = seen[-1]
        phase_s = seen[-1][1][0]
        for _, event in reversed(seen):
            if event[1] != phase:
                break
            phase_s = event[0]
        ends = [e[0] for _, e in seen if e[2] == step and step is not None]
        saves = [e[0] for _, e in seen if e[3] == saved and saved is not None]
        length_s = self.step_s if ends and step is not None else None
        return Beat(
            run="opt",
            attempt=self.attempt,
            rank=rank,
            world_size=self.ranks,
            pid=1000 + rank + int(self.start_s),
            phase=phase,
            step=step,
            step_end_unix_ns=self.stamp(rank, ends[0]) if ends else None,
            phase_start_unix_ns=self.stamp(rank, phase_s),
            checkpoint_step=saved,
            checkpoint_unix_ns=self.stamp(rank, saves[0]) if saves else None,
            step_s=length_s,
            alive=alive,
            sequence=number + 1,
            read_unix_ns=self.stamp(rank, at_s) - round(self.skew_s * rank * S),
        )

    def sightings(self, at_s: float, ranks: Sequence[int] | None = None, *, alive: bool = True) -> list[Sighting]:
        """All ranks (or these) as read and received `at_s` seconds after this attempt's start."""
        found = []
        for rank in range(self.ranks) if ranks is None else ranks:
            beat = self.beat(rank, at_s, alive=alive)
            if beat is not None:
                machine = self.machine(rank)
                received = later(T0, self.start_s + at_s)
                found.append(Sighting(machine=machine, slot=machine.removeprefix("m-"), beat=beat, received=received))
        return found

    def job(self, **changes: object) -> JobFact:
        machines = sorted({self.machine(rank) for rank in range(self.ranks)})
        usual: dict[str, object] = {
            "run": "opt",
            "attempt": self.attempt,
            "state": "running",
            "members": tuple(Member(machine=m, gpu_thousandths=2000) for m in machines),
            "started_unix_ns": self.stamp(0, 0.0),
        }
        return JobFact(**(usual | changes))  # type: ignore[arg-type]


def watch(
    gang: Gang, until_s: float, every_s: float = 5.0, look: Callable[[list[Sighting]], list[Sighting]] | None = None
) -> list[LedgerLine]:
    """The ledger lines of one attempt seen through looks at regular times."""
    book, lines = new_book(), []
    book, first = absorb(book, (), (gang.job(),), later(T0, gang.start_s))
    lines += first
    t = 0.0
    while t <= until_s:
        seen = gang.sightings(t)
        book, new = absorb(book, look(seen) if look else seen, (), later(T0, gang.start_s + t))
        lines += new
        t += every_s
    return lines


def steps(lines: Sequence[LedgerLine]) -> dict[int, int]:
    return {line.step: line.at_unix_ns for line in lines if isinstance(line, StepEnded)}


def true_end(gang: Gang, step: int) -> int:
    """When the last rank finished it."""
    t = next(event[0] for event in gang.timeline(10_000) if event[2] == step)
    return snap_ns(gang.stamp(gang.ranks - 1, t))


def test_a_steps_end_is_when_its_last_rank_ended_it() -> None:
    gang = Gang()
    found = steps(watch(gang, 400))
    assert list(found) == sorted(found)
    assert set(range(1, 25)) <= set(found)
    assert {step: at for step, at in found.items() if at != true_end(gang, step)} == {}


def test_steps_faster_than_the_looks_are_recorded_where_they_were_seen_and_never_out_of_order() -> None:
    gang = Gang(step_s=0.7, save_every=50, save_s=12)
    found = steps(watch(gang, 300))
    assert len(found) > 40
    assert list(found) == sorted(found)
    assert list(found.values()) == sorted(found.values())
    assert {step for step, at in found.items() if at > true_end(gang, step)} == set()
    late_ns = max(true_end(gang, step) - at for step, at in found.items())
    assert late_ns <= 4 * gang.skew_s * S  # whoever was seen there, the others ended together with it


def test_a_phase_begins_and_ends_with_its_last_rank() -> None:
    gang = Gang()
    lines = [line for line in watch(gang, 400) if isinstance(line, PhaseBegan | PhaseEnded)]
    last = gang.ranks - 1
    first_save = gang.init_s + 10 * gang.step_s
    told = [(type(line).__name__, line.phase, line.at_unix_ns) for line in lines[:4]]
    assert told == [
        ("PhaseBegan", "init", snap_ns(gang.stamp(last, 0.0))),
        ("PhaseEnded", "init", snap_ns(gang.stamp(last, gang.init_s))),
        ("PhaseBegan", "checkpoint", snap_ns(gang.stamp(last, first_save + 0.01))),
        ("PhaseEnded", "checkpoint", snap_ns(gang.stamp(last, first_save + gang.save_s))),
    ]


def test_the_step_before_a_save_is_recorded_exactly_even_if_the_gang_is_seen_again_only_later() -> None:
    gang = Gang(step_s=3.0, save_every=10, save_s=20)
    found = steps(watch(gang, 200, every_s=15.0))
    assert found[10] == true_end(gang, 10)


def test_a_step_that_takes_the_ranks_out_of_init_is_no_end_of_init() -> None:
    lines = watch(Gang(names_phases=False), 300)
    assert [line.phase for line in lines if isinstance(line, PhaseEnded)] == ["checkpoint"]


def test_where_the_first_step_is_seen_it_tells_what_was_loaded() -> None:
    gang = Gang(from_step=500)
    ends = [line for line in watch(gang, 200) if isinstance(line, PhaseEnded) and line.phase == "init"]
    assert [end.resumed_step for end in ends] == [500]


def test_a_checkpoint_is_saved_when_its_last_shard_is_durable() -> None:
    gang = Gang()
    saves = [line for line in watch(gang, 400) if isinstance(line, CheckpointSaved)]
    first_ns = gang.stamp(gang.ranks - 1, gang.init_s + 10 * gang.step_s + gang.save_s)
    assert [(save.step, save.at_unix_ns) for save in saves][:1] == [(10, snap_ns(first_ns))]
    assert [save.step for save in saves] == [10, 20]


def test_a_shard_that_is_missing_makes_no_checkpoint() -> None:
    """Rank 3 wrote the first shard and not the second: a restart could not use it."""
    gang = Gang()

    def without_second(seen: list[Sighting]) -> list[Sighting]:
        return [
            s
            for s in seen
            if not (s.beat.rank == 3 and s.beat.checkpoint_step is not None and s.beat.checkpoint_step >= 20)
        ]

    saves = [line.step for line in watch(gang, 420, look=without_second) if isinstance(line, CheckpointSaved)]
    assert saves == [10]


def test_a_save_by_one_rank_alone_counts_once_no_other_has_followed_for_a_while() -> None:
    gang = Gang(save_every=20, save_s=5)

    def only_rank_0(seen: list[Sighting]) -> list[Sighting]:
        none = {"checkpoint_step": None, "checkpoint_unix_ns": None}
        return [
            s if s.beat.rank == 0 else msgspec.structs.replace(s, beat=msgspec.structs.replace(s.beat, **none))
            for s in seen
        ]

    saves = [line for line in watch(gang, 600, look=only_rank_0) if isinstance(line, CheckpointSaved)]
    assert [save.step for save in saves][:2] == [20, 40]


def test_a_node_whose_clock_runs_ahead_does_not_move_the_gang_into_the_future() -> None:
    gang = Gang(ranks=8, clock_s={"m-gpu01": 3600.0})
    found = steps(watch(gang, 300))
    worst_ns = max(abs(at - true_end(gang, step)) for step, at in found.items())
    assert worst_ns <= 2 * S


def test_an_agent_that_is_cut_off_does_not_stand_still_the_gang() -> None:
    gang = Gang(save_every=1000)

    def cut(seen: list[Sighting]) -> list[Sighting]:
        late = seen[0].received.monotonic_ns >= later(T0, 150).monotonic_ns
        return [s for s in seen if not (late and s.machine == "m-gpu01")]

    found = steps(watch(gang, 400, look=cut))
    assert max(found) >= 33
    assert {n for n, at in found.items() if abs(at - true_end(gang, n)) > 0.01 * S} == set()


def test_nobody_heard_is_evidence_lost_and_back_again() -> None:
    gang = Gang()

    def cut(seen: list[Sighting]) -> list[Sighting]:
        t = (seen[0].received.monotonic_ns - T0.monotonic_ns) / S
        return [] if 100 < t < 250 else seen

    lines = watch(gang, 300, look=cut)
    told = [(type(line), line.at_unix_ns) for line in lines if isinstance(line, EvidenceLost | EvidenceBack)]
    assert told == [
        (EvidenceLost, snap_ns(later(T0, 100).unix_ns)),
        (EvidenceBack, snap_ns(later(T0, 250).unix_ns)),
    ]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_late_repeated_and_shuffled_records_change_nothing(seed: int) -> None:
    """Each look hands over some records of earlier looks again, in any order; no line is lost, none comes twice."""
    gang = Gang(step_s=4.0, save_every=12, save_s=9)
    chance = random.Random(seed)
    earlier: list[Sighting] = []

    def disturbed(seen: list[Sighting]) -> list[Sighting]:
        again = chance.sample(earlier, min(len(earlier), 5))
        earlier.extend(seen)
        mixed = seen + again + chance.sample(seen, min(len(seen), 2))
        chance.shuffle(mixed)
        return mixed

    def essence(lines: list[LedgerLine]) -> list[tuple[str, object, int]]:
        kept = [line for line in lines if isinstance(line, StepEnded | PhaseBegan | PhaseEnded | CheckpointSaved)]
        return [(type(x).__name__, getattr(x, "step", getattr(x, "phase", "")), x.at_unix_ns) for x in kept]

    told = essence(watch(gang, 160, look=disturbed))
    assert len(told) == len(set(told))
    assert told == essence(watch(gang, 160))


def test_the_book_that_is_handed_in_is_not_changed() -> None:
    gang = Gang()
    book, _ = absorb(new_book(), gang.sightings(70), (gang.job(),), later(T0, 70))
    first = absorb(book, gang.sightings(95), (), later(T0, 95))[1]
    second = absorb(book, gang.sightings(95), (), later(T0, 95))[1]
    assert first == second
    assert first


@pytest.mark.parametrize("stop_s", [30.0, 75.0, 120.0, 165.0, 172.0, 200.0, 262.0])
def test_after_a_restart_no_line_comes_twice_and_none_is_lost(stop_s: float) -> None:
    """The aggregator is killed and knows only its ledger: it goes on as if nothing had been."""
    gang = Gang()
    whole = watch(gang, 300)
    book, lines = new_book(), list[LedgerLine]()
    book, new = absorb(book, (), (gang.job(),), T0)
    lines += new
    t = 0.0
    while t <= 300:
        if stop_s <= t < stop_s + 5:
            book = from_ledger(lines)
        book, new = absorb(book, gang.sightings(t), (gang.job(),), later(T0, t))
        lines += new
        t += 5.0
    keys = [(type(line), getattr(line, "step", None), getattr(line, "phase", None), line.at_unix_ns) for line in lines]
    assert len(keys) == len(set(keys))
    assert set(steps(lines).items()) <= set(steps(whole).items())
    phases = [line for line in lines if isinstance(line, PhaseBegan | PhaseEnded)]
    assert [p for p in phases if p.phase == "init" and isinstance(p, PhaseBegan)][1:] == []
    assert {type(p) for p in phases if p.phase == "checkpoint"} == {PhaseBegan, PhaseEnded}


def test_what_a_run_looks_like_to_the_rules() -> None:
    gang = Gang()
    book, _ = absorb(new_book(), (), (gang.job(team="science"),), T0)
    for t in range(0, 290, 5):
        book, _ = absorb(book, gang.sightings(t), (), later(T0, t))
    (view,) = views(book, later(T0, 285))
    assert (view.run, view.attempt, view.team) == ("opt", "opt.1", "science")
    assert view.machines == ("m-gpu00", "m-gpu01")
    assert (view.step, view.phase, view.checkpoint_step) == (19, "train", 10)
    assert view.usual_step_s == pytest.approx(10.0, abs=0.01)
    assert [rank.rank for rank in view.ranks] == [0, 1, 2, 3]
    assert view.moved_monotonic_ns == later(T0, 285).monotonic_ns  # the last rank ended step 19 just after 280 s


def test_a_rank_that_is_read_again_unchanged_is_still_and_its_nodes_own_clock_says_for_how_long() -> None:
    gang = Gang()
    book, _ = absorb(new_book(), gang.sightings(75), (gang.job(),), later(T0, 75))
    for minute in range(1, 5):
        again = [
            Sighting(machine=s.machine, slot=s.slot, beat=_read_later(s.beat, 60 * minute), received=now)
            for s in gang.sightings(75)
            for now in [later(T0, 75 + 60 * minute)]
        ]
        book, _ = absorb(book, again, (), later(T0, 75 + 60 * minute))
    (view,) = views(book, later(T0, 315))
    assert {rank.still_s for rank in view.ranks} == {240.0}
    assert view.moved_monotonic_ns == later(T0, 75).monotonic_ns


def test_a_nodes_clock_that_steps_back_makes_nobody_still_for_longer() -> None:
    gang = Gang()
    book, _ = absorb(new_book(), gang.sightings(75), (gang.job(),), later(T0, 75))
    back = [
        Sighting(machine=s.machine, slot=s.slot, beat=_read_later(s.beat, -3600), received=later(T0, 80))
        for s in gang.sightings(75)
    ]
    book, _ = absorb(book, back, (), later(T0, 80))
    (view,) = views(book, later(T0, 80))
    assert {rank.still_s for rank in view.ranks} == {0.0}
    assert {rank.received_monotonic_ns for rank in view.ranks} == {later(T0, 80).monotonic_ns}


def _read_later(beat: Beat, seconds: float) -> Beat:
    return msgspec.structs.replace(beat, read_unix_ns=beat.read_unix_ns + round(seconds * S))


def test_an_attempt_ends_where_the_scheduler_says_so_and_exit_0_closes_the_run() -> None:
    gang = Gang()
    book, _ = absorb(new_book(), gang.sightings(75), (gang.job(),), later(T0, 75))
    ended = gang.job(state="ended", ended="exit0", cause="completed", ended_unix_ns=later(T0, 79).unix_ns)
    book, lines = absorb(book, (), (ended,), later(T0, 80))
    told = [(type(line), line.at_unix_ns) for line in lines if isinstance(line, AttemptEnded | RunClosed)]
    at_ns = snap_ns(later(T0, 79).unix_ns)
    assert told == [(AttemptEnded, at_ns), (RunClosed, at_ns)]
    assert absorb(book, (), (ended,), later(T0, 90))[1] == []
    assert views(book, later(T0, 90)) == ()


def test_records_that_were_spooled_until_after_the_end_still_tell_the_last_steps() -> None:
    gang = Gang()
    book, _ = absorb(new_book(), gang.sightings(75), (gang.job(),), later(T0, 75))
    ended = gang.job(state="ended", ended="unplanned", cause="failed", ended_unix_ns=later(T0, 112).unix_ns)
    book, _ = absorb(book, (), (ended,), later(T0, 113))
    book, lines = absorb(book, gang.sightings(111), (), later(T0, 115))
    assert steps(lines) == {5: true_end(gang, 5)}


def test_a_second_attempt_steps_again_from_its_checkpoint() -> None:
    first, second = Gang(), Gang(attempt="opt.2", from_step=10, start_s=400)
    book, lines = new_book(), list[LedgerLine]()
    for gang, until in ((first, 380), (second, 200)):
        for t in range(0, until, 5):
            book, new = absorb(book, gang.sightings(t), (gang.job(),), later(T0, gang.start_s + t))
            lines += new
        over = gang.job(state="ended", ended="unplanned", ended_unix_ns=later(T0, gang.start_s + until).unix_ns)
        book, new = absorb(book, (), (over,), later(T0, gang.start_s + until))
        lines += new
    started = [line.attempt for line in lines if isinstance(line, AttemptStarted)]
    redone = [line.step for line in lines if isinstance(line, StepEnded) and line.attempt == "opt.2"]
    assert started == ["opt.1", "opt.2"]
    assert redone[0] == 11
