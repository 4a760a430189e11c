"""What is remembered of runs: one book, handed on from tick to tick. Nobody changes it: `absorb` copies first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from gpuwatch.model.facts.training import Beat
from gpuwatch.model.ledger import LedgerLine
from gpuwatch.model.run import RankView

Phase = Literal["init", "checkpoint", "evaluate"]
PHASES: tuple[Phase, ...] = ("init", "checkpoint", "evaluate")

COMPLETE_GRACE_NS = 30 * 10**9
"""How long a new attempt waits for its other ranks, and for the scheduler's word on it."""
LINGER_NS = 600 * 10**9
"""How long an ended attempt still takes in records that were spooled on the way."""


class Rank(msgspec.Struct, frozen=True, gc=False):
    """One rank's newest record, and the few before it that may still be needed."""

    view: RankView
    beat: Beat
    first_read_unix_ns: int  # first reading of this very record, by its node's clock
    ends: tuple[tuple[int, int], ...]  # latest (step, its end), oldest first
    restarted: bool = False  # its process is another than the one before
    trained_before_first_step: bool = False  # seen in `train` before any step had ended
    dead_unix_ns: int | None = None  # first reading without its process


@dataclass(slots=True)
class Episode:
    """A phase of the gang that is no step: who entered it, who left it."""

    phase: Phase
    since_ns: int  # earliest entry
    entered: dict[int, int] = field(default_factory=dict)  # rank -> when
    left: dict[int, int] = field(default_factory=dict)
    step: int | None = None  # last step before it
    began_ns: int | None = None  # the line was written with this moment


@dataclass(slots=True)
class Attempt:
    """One attempt of one run."""

    run: str
    attempt: str
    by_scheduler: bool
    first_seen_monotonic_ns: int
    started_unix_ns: int | None = None  # None: its first line is not written yet
    ended_unix_ns: int | None = None
    ended_monotonic_ns: int | None = None
    members: dict[str, int] = field(default_factory=dict)  # machine -> thousandths of a GPU
    world_size: int | None = None
    team: str | None = None
    user: str | None = None
    ranks: dict[int, Rank] = field(default_factory=dict)
    clocks_ns: dict[str, int] = field(default_factory=dict)  # machine -> its clock less ours, at the last reading
    moved_monotonic_ns: int = 0
    heard_monotonic_ns: int | None = None  # newest record of any rank
    last_step: int | None = None
    last_step_ns: int | None = None
    last_line_ns: int = 0  # no step or phase line is written before the one before it
    step_count: int = 0  # executions of this attempt so far, for the warm-up
    steps_apart: bool = False  # a phase lies after the last step: the next length is no step's
    began_ns: dict[str, int] = field(default_factory=dict)  # phase -> moment of its last line
    episode: Episode | None = None
    saved_step: int | None = None
    saved_unix_ns: int | None = None
    saving: dict[int, dict[int, int]] = field(default_factory=dict)  # step -> rank -> when its shard was durable
    saving_monotonic_ns: int = 0  # last new shard
    lost: bool = False  # nobody speaks of it
    waiting: list[LedgerLine] = field(default_factory=list)  # lines that wait for the first one

    def copy(self) -> Attempt:
        """Safe to change."""
        episode = self.episode
        if episode is not None:
            episode = replace(episode, entered=dict(episode.entered), left=dict(episode.left))
        return replace(
            self,
            members=dict(self.members),
            ranks=dict(self.ranks),
            clocks_ns=dict(self.clocks_ns),
            began_ns=dict(self.began_ns),
            episode=episode,
            saving={step: dict(shards) for step, shards in self.saving.items()},
            waiting=list(self.waiting),
        )


@dataclass(slots=True)
class Run:
    """All that is remembered of one run."""

    run: str
    attempts: dict[str, Attempt] = field(default_factory=dict)
    also_called: dict[str, str] = field(default_factory=dict)  # a heartbeat's word for an attempt -> the scheduler's
    by_scheduler: bool = False
    step_ns: tuple[int, ...] = ()  # latest step lengths
    early_ns: tuple[int, ...] = ()  # of the warm-up, used until there are others
    phase_ns: dict[str, tuple[int, ...]] = field(default_factory=dict)
    save_steps: tuple[int, ...] = ()  # steps between saves
    savers: frozenset[int] = frozenset()  # ranks that write shards; empty: not known yet
    scale: tuple[int, int | None] | None = None  # node count and world size
    last_ended_unix_ns: int | None = None
    closed: bool = False

    def copy(self) -> Run:
        """Safe to change, its attempts included."""
        attempts = {name: a.copy() if a.ranks or a.ended_unix_ns is None else a for name, a in self.attempts.items()}
        return replace(self, attempts=attempts, also_called=dict(self.also_called), phase_ns=dict(self.phase_ns))

    def live(self) -> list[Attempt]:
        """Attempts that have not ended."""
        return [attempt for attempt in self.attempts.values() if attempt.ended_unix_ns is None]


@dataclass(slots=True)
class Book:
    """All runs. `since_unix_ns`: what lies before was never watched."""

    since_unix_ns: int | None = None
    runs: dict[str, Run] = field(default_factory=dict)
