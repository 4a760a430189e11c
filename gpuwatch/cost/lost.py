"""Which finished executions are kept, which are lost and to what, and up to which step the run is safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuwatch.cost.attempts import Closing
from gpuwatch.cost.executions import Block, Deeds
from gpuwatch.cost.recovery import Window
from gpuwatch.model.ledger import CheckpointSaved, snap_ns


@dataclass(slots=True, frozen=True)
class Loss:
    """Why a range of executions is lost."""

    fault: str | None
    cause: str


@dataclass(slots=True)
class Fate:
    """What became of one block's steps: they are overtaken from the highest number down."""

    losses: list[tuple[int, Loss]] = field(default_factory=list)  # falling; steps >= this one are lost to this
    provisional_from: int | None = None

    @property
    def edges(self) -> list[int]:
        own = [step for step, _ in self.losses]
        return own if self.provisional_from is None else [*own, self.provisional_from]

    def last_kept(self, block: Block) -> int:
        return self.losses[-1][0] - 1 if self.losses else block.last

    def lost(self, step: int) -> Loss | None:
        return next((loss for since, loss in self.losses if step >= since), None)

    def provisional(self, step: int) -> bool:
        return self.provisional_from is not None and step >= self.provisional_from


def safe_step(deeds: Sequence[Deeds], saves: Sequence[CheckpointSaved]) -> int | None:
    """The step of the last durable checkpoint of the work that counts; None if no save was ever reported.

    A save that is marked suspect does not count, nor one of steps that were executed again afterwards. The step from
    which an attempt is known to have resumed is proven durable. -1: nothing is safe.
    """
    if not saves:
        return None
    suspect = {(save.attempt, save.step) for save in saves if save.suspect}
    events = [(snap_ns(s.at_unix_ns), 0, s.step) for s in saves if (s.attempt, s.step) not in suspect]
    for deed in deeds:
        at = deed.first_execution if deed.first_execution is not None else deed.part.end
        if deed.resumed is not None:
            events.append((at, 1, deed.resumed))
        for block in deed.blocks:
            at = block.spans[0][0] if block.spans else at
            events.append((at, 2, block.first - 1))
    safe = -1
    for _, kind, step in sorted(events):
        safe = min(safe, step) if kind == 2 else step
    return safe


def fates_of(deeds: Sequence[Deeds], windows: Sequence[Window], safe: int | None, closing: Closing) -> dict[int, Fate]:
    """By `id` of each block. An execution is lost to the first later one with the same or a lower step number."""
    fates: dict[int, Fate] = {}
    kept: list[Block] = []  # steps rise from one to the next
    for index, deed in enumerate(deeds):
        starts: list[tuple[int, Block | None]] = [(block.first, block) for block in deed.blocks]
        if not starts and deed.open_step is not None:
            starts = [(deed.open_step, None)]
        for position, (step, block) in enumerate(starts):
            loss = _stop_before(deeds, windows, index) if position == 0 else Loss(None, "rollback")
            _overtake(kept, fates, step, loss)
            if block is not None:
                fates[id(block)] = Fate()
                kept.append(block)
    if safe is None:
        if closing.at is None:
            for block in kept:
                fates[id(block)].provisional_from = block.first
        return fates
    if closing.at is None:
        for block in kept:
            if block.last > safe:
                fates[id(block)].provisional_from = max(block.first, safe + 1)
    elif closing.how != "exit0":
        _overtake(kept, fates, safe + 1, Loss(deeds[-1].part.fault, closing.how))
    return fates


def _overtake(kept: list[Block], fates: dict[int, Fate], step: int, loss: Loss) -> None:
    while kept:
        block = kept[-1]
        fate = fates[id(block)]
        if fate.last_kept(block) < step:
            return
        fate.losses.append((max(step, block.first), loss))
        if step > block.first:
            return
        kept.pop()


def _stop_before(deeds: Sequence[Deeds], windows: Sequence[Window], index: int) -> Loss:
    """The stop that this part's resume follows: the one that opened its recovery window, else the end before it."""
    for window in windows:
        if window.closer == index or index in window.parts[1:]:
            opener = deeds[window.parts[0]].part
            own = opener.fault if opener.fault is not None else window.fault_at(window.end)
            return Loss(own, opener.cause)
    if index == 0:
        return Loss(None, "rollback")
    previous = deeds[index - 1].part
    return Loss(previous.fault, previous.cause or previous.ended)
