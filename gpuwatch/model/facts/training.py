"""What the training processes of this node wrote into their heartbeat files."""

from __future__ import annotations

import msgspec


class Beat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One rank's latest record. Stamps are the training process's own, in ns UTC; 0 in the file becomes None."""

    run: str
    attempt: str
    rank: int
    world_size: int
    pid: int
    phase: str  # init | train | checkpoint | evaluate | data_wait | done
    step: int | None  # last finished step; None before the first
    step_end_unix_ns: int | None
    phase_start_unix_ns: int | None
    checkpoint_step: int | None  # last durable checkpoint
    checkpoint_unix_ns: int | None
    tokens: int | None = None
    step_s: float | None = None  # duration of the last finished step, by the process's own monotonic clock
    alive: bool | None = None  # the pid is still there; None: cannot be told
    gpu_index: int | None = None
    sequence: int = 0
    read_unix_ns: int = 0  # when the agent read it: a fresh read without progress is what makes a hang
    team: str | None = None
    user: str | None = None


class TrainingFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Every heartbeat file of this node that could be read."""

    beats: tuple[Beat, ...] = ()
    unreadable_count: int = 0


FACTS = TrainingFacts
