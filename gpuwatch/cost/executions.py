"""What an attempt did, in order: start-up, executions of steps, phases, and what was under way at its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuwatch.cost.attempts import Part
from gpuwatch.cost.history import AttemptLine
from gpuwatch.cost.spans import Span, length_ns
from gpuwatch.cost.step_time import StepTime, UsualLength
from gpuwatch.model.ledger import CheckpointSaved, EvidenceBack, EvidenceLost, PhaseBegan, PhaseEnded
from gpuwatch.model.ledger import snap_ns as snap


@dataclass(slots=True)
class Block:
    """Finished executions of steps first..last between two recorded ends, spread evenly over `spans`."""

    first: int
    last: int
    spans: list[Span]
    ideals: list[tuple[int, int | None]]  # (how many, frozen ideal), in order

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(slots=True)
class Phase:
    """A phase that is no step. `open`: under way at the attempt's end."""

    kind: str
    start: int
    end: int
    usual_ns: int
    open: bool = False


@dataclass(slots=True)
class Deeds:
    """All of one part."""

    part: Part
    startup: list[Span] = field(default_factory=list)  # before the first execution, phases apart
    phases: list[Phase] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    unfinished: list[Span] = field(default_factory=list)  # after the last finished step, before a later phase
    open_spans: list[Span] = field(default_factory=list)  # the execution under way at the end
    open_step: int | None = None  # its number, where known
    resumed: int | None = None  # last step of the state it is known to have loaded
    cut_ns: int = 0  # ideal time by which the open execution is cut
    first_execution: int | None = None  # its start; None: none was started
    last_evidence: int = 0
    blind_from: int | None = None  # no report after this: what was under way is unknown

    @property
    def resumed_at(self) -> int | None:
        """First step number that it executes."""
        return self.blocks[0].first if self.blocks else self.open_step


def deeds_of(part: Part, times: StepTime, usual: UsualLength, saves: Iterable[CheckpointSaved]) -> Deeds:
    """Read one part's lines. `times` and `usual` are the run's, and learn; `saves` are those before this part."""
    return _Reader(part, times, usual, max((s.step for s in saves if not s.suspect), default=None)).read()


class _Reader:
    def __init__(self, part: Part, times: StepTime, usual: UsualLength, saved_step: int | None) -> None:
        self.part = part
        self.times = times
        self.usual = usual
        self.saved_step = saved_step
        self.deeds = Deeds(part, last_evidence=part.start)
        self.idle: list[Span] = []  # time since the last execution ended, phases apart
        self.cursor = part.start
        self.phase: Phase | None = None
        self.began: int | None = None  # where the first execution starts, once that is known
        self.step: int | None = None
        self.resumed: int | None = None

    def read(self) -> Deeds:
        part, deeds = self.part, self.deeds
        self.times.begin_attempt(part.scale, part.expected_ns)
        for line in _without_empty_phases(part.lines):
            at = min(max(snap(line.at_unix_ns), self.cursor), part.end)
            if isinstance(line, EvidenceLost):
                deeds.blind_from = at if deeds.blind_from is None else deeds.blind_from
                continue
            deeds.blind_from = None
            if isinstance(line, EvidenceBack):
                continue
            deeds.last_evidence = at
            if isinstance(line, PhaseBegan):
                self._phase_began(line.phase, at)
            elif isinstance(line, PhaseEnded):
                self._phase_ended(line, at)
            else:
                self._step_ended(line.step, at)
        self._finish()
        return deeds

    def _to(self, at: int) -> None:
        if self.cursor < at:
            self.idle.append((self.cursor, at))
        self.cursor = at

    def _phase_began(self, kind: str, at: int) -> None:
        if self.phase is not None:
            if self.phase.kind == kind:
                return
            self._close_phase(at)
        self._to(at)
        self.phase = Phase(kind, at, at, self.usual.ns(kind))

    def _phase_ended(self, line: PhaseEnded, at: int) -> None:
        if line.phase == "init" and line.resumed_step is not None:
            self.resumed = line.resumed_step
        if self.phase is not None and self.phase.kind == line.phase:
            self.usual.ended(line.phase, at - self.phase.start)
            self._close_phase(at)
            self.began = at if self.step is None else self.began
        elif line.phase == "init" and self.phase is None and self.step is None and not self.deeds.phases:
            self.phase = Phase("init", self.cursor, at, self.usual.ns("init"))  # its begin was not recorded
            self._close_phase(at)
            self.began = at

    def _close_phase(self, at: int) -> None:
        assert self.phase is not None
        self.phase.end = at
        self.deeds.phases.append(self.phase)
        self.phase = None
        self.cursor = at

    def _step_ended(self, step: int, at: int) -> None:
        first = self._first_step(step, at)
        ideals_ns = self.times.cut_ns() * (step - first + 1)
        if self.phase is not None:  # its end was not recorded: the executions are taken to have been ideal ones
            self._close_phase(max(self.phase.start, snap(at - ideals_ns), self.cursor))
            self.began = self.cursor if self.step is None else self.began
        self._to(at)
        if self.step is None:
            self._begin_executing(max([self.part.start, snap(at - ideals_ns), *(p.end for p in self.deeds.phases)]))
        spans, self.idle = self.idle, []
        count = step - first + 1
        length = length_ns(spans)
        nothing: list[tuple[int, int | None]] = [(count, None)]
        ideals = self.times.executed(length, count) if length else nothing
        self.deeds.blocks.append(Block(first, step, spans, ideals))
        self.step = step

    def _begin_executing(self, otherwise: int) -> None:
        """What lies before the first execution is start-up. Without a recorded end of init it starts at `otherwise`."""
        began = self.began if self.began is not None else otherwise
        self.deeds.first_execution = began
        self.deeds.startup = [(a, min(b, began)) for a, b in self.idle if a < began]
        self.idle = [(max(a, began), b) for a, b in self.idle if b > began]

    def _first_step(self, step: int, at: int) -> int:
        """Number of the first execution that ends with this record, where ends in between were not recorded."""
        if self.step is not None:
            return self.step + 1 if step > self.step else step
        if self.resumed is not None and self.resumed < step:
            return self.resumed + 1
        ideal = self.times.cut_ns()
        fit: int | None = None  # how many fit into the time, where that can be told
        if ideal and self.began is not None:
            fit = max(1, (at - self.began + ideal // 2) // ideal)
        if self.saved_step is not None and self.saved_step < step:
            # A run resumes from its last durable save, unless so many steps did not fit into the time.
            return max(self.saved_step + 1, step - 2 * fit + 1 if fit is not None else 0)
        return max(step - (fit or 1) + 1, min(step, 1))

    def _finish(self) -> None:
        deeds, end = self.deeds, self.part.end
        deeds.cut_ns = self.times.cut_ns()
        deeds.resumed = self.resumed
        if self.phase is not None:
            self.phase.open = True
            self._close_phase(end)
        self._to(end)
        started = self.step is not None or self.began is not None or bool(deeds.phases and not deeds.phases[-1].open)
        if not started:
            deeds.startup = self.idle
            return
        if self.step is None:
            began = max((phase.end for phase in deeds.phases), default=self.part.start)
            deeds.startup = [(a, min(b, began)) for a, b in self.idle if a < began]
            self.idle = [(max(a, began), b) for a, b in self.idle if b > began]
            if self.idle and self.part.ended != "exit0":
                deeds.first_execution = began
        last_phase = max((phase.end for phase in deeds.phases), default=self.part.start)
        deeds.unfinished = [span for span in self.idle if span[1] <= last_phase]
        deeds.open_spans = [span for span in self.idle if span[1] > last_phase]
        known = self.step if self.step is not None else self.resumed
        if known is not None and deeds.open_spans and self.part.ended != "exit0":
            deeds.open_step = known + 1


def _without_empty_phases(lines: list[AttemptLine]) -> list[AttemptLine]:
    """A phase that began and ended at the same instant took no time; its end would be read before its begin."""
    began = {(line.phase, line.at_unix_ns) for line in lines if isinstance(line, PhaseBegan)}
    ended = {(line.phase, line.at_unix_ns) for line in lines if isinstance(line, PhaseEnded)}
    empty = began & ended
    if not empty:
        return lines
    open_now: str | None = None
    result: list[AttemptLine] = []
    for line in lines:
        if isinstance(line, PhaseBegan | PhaseEnded):
            drop = (line.phase, line.at_unix_ns) in empty and open_now != line.phase
            if drop and (line.phase != "init" or isinstance(line, PhaseBegan)):  # init's end tells where it resumed
                continue
            if isinstance(line, PhaseBegan):
                open_now = line.phase
            elif open_now == line.phase:
                open_now = None
        result.append(line)
    return result
