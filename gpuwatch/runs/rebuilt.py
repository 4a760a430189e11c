"""The book as it was, from the ledger's own lines, so that after a restart no line is written twice."""

from __future__ import annotations

from collections.abc import Iterable

from gpuwatch.model.ledger import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    EvidenceBack,
    EvidenceLost,
    LedgerLine,
    MemberLeft,
    PhaseBegan,
    PhaseEnded,
    RunClosed,
    StepEnded,
)
from gpuwatch.runs.book import Attempt, Book, Episode, Run
from gpuwatch.runs.learned import WARM_UP, appended, executed


def from_ledger(lines: Iterable[LedgerLine]) -> Book:
    """Lines in any order. Ranks are not in the ledger: they are known again with their next records."""
    ordered = sorted(lines, key=lambda line: line.at_unix_ns)
    book = Book(ordered[0].at_unix_ns if ordered else None)
    for line in ordered:
        if isinstance(line, RunClosed):
            _run(book, line.run).closed = True
        elif isinstance(line, AttemptStarted):
            _started(book, line)
        elif isinstance(line, AttemptEnded):
            run, attempt = _attempt(book, line.run, line.attempt)
            attempt.ended_unix_ns = line.at_unix_ns
            run.last_ended_unix_ns = max(line.at_unix_ns, run.last_ended_unix_ns or 0)
        elif isinstance(line, MemberLeft):
            _attempt(book, line.run, line.attempt)[1].members.pop(line.machine, None)
        elif isinstance(line, EvidenceLost | EvidenceBack):
            _attempt(book, line.run, line.attempt)[1].lost = isinstance(line, EvidenceLost)
        elif isinstance(line, StepEnded):
            _step(*_attempt(book, line.run, line.attempt), line)
        elif isinstance(line, PhaseBegan):
            _began(_attempt(book, line.run, line.attempt)[1], line)
        elif isinstance(line, PhaseEnded):
            _ended(*_attempt(book, line.run, line.attempt), line)
        elif isinstance(line, CheckpointSaved):
            run, attempt = _attempt(book, line.run, line.attempt)
            if attempt.saved_step is not None and line.step > attempt.saved_step:
                run.save_steps = (*run.save_steps, line.step - attempt.saved_step)[-10:]
            attempt.saved_step, attempt.saved_unix_ns = line.step, line.at_unix_ns
    return book


def _run(book: Book, name: str) -> Run:
    run = book.runs.get(name)
    if run is None:
        run = book.runs[name] = Run(name)
    return run


def _attempt(book: Book, run_name: str, name: str) -> tuple[Run, Attempt]:
    run = _run(book, run_name)
    attempt = run.attempts.get(name)
    if attempt is None:
        attempt = run.attempts[name] = Attempt(run_name, name, False, 0)
    return run, attempt


def _started(book: Book, line: AttemptStarted) -> None:
    run, attempt = _attempt(book, line.run, line.attempt)
    attempt.members |= {member.machine: member.gpu_thousandths for member in line.members}
    attempt.world_size = line.world_size if line.world_size is not None else attempt.world_size
    attempt.team, attempt.user = line.team or attempt.team, line.user or attempt.user
    if attempt.started_unix_ns is None:
        attempt.started_unix_ns = line.at_unix_ns
        scale = (len(attempt.members), attempt.world_size)
        if run.scale is not None and run.scale != scale:
            run.step_ns, run.early_ns = (), ()
        run.scale = scale


def _step(run: Run, attempt: Attempt, line: StepEnded) -> None:
    if attempt.last_step is not None and attempt.last_step_ns is not None and line.step > attempt.last_step:
        count = line.step - attempt.last_step
        each_ns = (line.at_unix_ns - attempt.last_step_ns) // count
        if not attempt.steps_apart:
            if attempt.step_count < WARM_UP:
                run.early_ns = appended(run.early_ns, each_ns, count)
            run.step_ns = executed(run.step_ns, each_ns, count, attempt.step_count)
        attempt.step_count += count
    if attempt.episode is not None and attempt.episode.phase == "init":
        attempt.episode = None  # the end of init was not recorded
    attempt.last_step, attempt.last_step_ns = line.step, line.at_unix_ns
    attempt.last_line_ns = max(attempt.last_line_ns, line.at_unix_ns)
    attempt.steps_apart = False


def _began(attempt: Attempt, line: PhaseBegan) -> None:
    attempt.episode = Episode(phase=line.phase, since_ns=line.at_unix_ns, began_ns=line.at_unix_ns)
    attempt.began_ns[line.phase] = line.at_unix_ns
    attempt.last_line_ns = max(attempt.last_line_ns, line.at_unix_ns)
    attempt.steps_apart = True
    if line.phase == "init":
        attempt.last_step, attempt.last_step_ns, attempt.step_count = None, None, 0


def _ended(run: Run, attempt: Attempt, line: PhaseEnded) -> None:
    if attempt.episode is not None and attempt.episode.phase == line.phase:
        length_ns = line.at_unix_ns - (attempt.episode.began_ns or line.at_unix_ns)
        run.phase_ns[line.phase] = appended(run.phase_ns.get(line.phase, ()), length_ns)
        attempt.episode = None
    attempt.last_line_ns = max(attempt.last_line_ns, line.at_unix_ns)
