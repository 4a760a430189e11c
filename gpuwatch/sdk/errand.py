"""Reads what may block in the kernel through a tiny program with a deadline: `stat -f` of a mount, `head` of sysfs.

A call on a dead file server or on a network card whose firmware stopped never returns, and nobody can end it from
outside. So it is made in another process, which is told apart from us: one that is late gets one SIGKILL; one that
even that does not end (state D) is abandoned, counted, and until it is gone no other is started for the same subject.
A small file remembers the abandoned over restarts of the agent. Not Python: an interpreter costs 100 ms a start, `head`
one. Nothing here waits longer than the deadline, and a stop of the agent waits for none of it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from gpuwatch.clock import Clock, SystemClock
from gpuwatch.sdk.processes import is_alive, start_ticks, what_it_waits_for
from gpuwatch.sdk.small_file import small_json

NS = 10**9
DEADLINE_S = 3.0
NOTED_AFTER_S = 0.3  # from then on it stands in the file: the agent may be killed while it waits
AWAY_S = 1.0  # we wake this much too late: it was us who slept (SIGSTOP, a frozen machine), not they
KILLED_WITHIN_S = 0.2  # a process that can be killed is gone by then
MOST_BYTES = 256 << 10  # of what one may say
MOST_AT_ONCE = 16
MOST_ABANDONED = 16  # of one source: more would take the places of processes that its unit may have
FOLDERS = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
ENVIRONMENT = {"LC_ALL": "C", "PATH": ":".join(FOLDERS)}

Status = Literal["ok", "failed", "late", "stuck", "absent"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one errand. `failed`: it ended with another code than 0, what it said may be good all the same."""

    status: Status
    out: bytes = b""
    err: bytes = b""
    reason: str = ""  # for a person; of one that was late or is stuck: what it waited for
    since_unix_ns: int | None = None  # when the one that did not come back was started

    @property
    def answered(self) -> bool:
        """The kernel let it return."""
        return self.status in ("ok", "failed")


class Abandoned(msgspec.Struct, frozen=True, kw_only=True):
    """One that has not come back, as it is kept over restarts."""

    subject: str
    pid: int
    start_ticks: int
    boot_id: str
    since_unix_ns: int
    waits: str = ""


class Errands:
    """All errands of one source. Used by one thread."""

    def __init__(self, source: str, *, clock: Clock | None = None) -> None:
        """`source` names the file of the abandoned."""
        self._source = source
        self._clock: Clock = clock or SystemClock()
        self._boot_id = _boot_id()
        self._file: Path | None = None
        self._abandoned: dict[str, Abandoned] = {}
        self._own: dict[str, _Running] = {}  # those of them that are our children, to be buried
        self._written: bytes = b""

    def keep(self, folder: Path, *, ours: bool = True) -> None:
        """Where the abandoned are remembered. Not `ours`: an agent's folder, whose file is read, and beside it is one
        of all those who look once: each of them would leave another behind."""
        agents, lookers = folder / f"errands-{self._source}.json", folder / f"errands-scan-{self._source}.json"
        for file in (agents, lookers):
            with contextlib.suppress(OSError, ValueError):
                for left in small_json(file, list[Abandoned]):
                    if left.boot_id == self._boot_id:
                        self._abandoned.setdefault(left.subject, left)
        self._file = agents if ours else lookers
        self._forget_the_gone()

    @property
    def abandoned_count(self) -> int:
        """Processes that did not come back and still exist, an earlier agent's included."""
        self._forget_the_gone()
        return len(self._abandoned)

    def ask(
        self, wanted: Mapping[str, Sequence[str]], *, deadline_s: float = DEADLINE_S, most_bytes: int = MOST_BYTES
    ) -> dict[str, Outcome]:
        """Run one program a subject, side by side, and tell what came of each. Takes `deadline_s` at most, and a
        moment; more than `MOST_AT_ONCE` are taken in lots. The program's name is looked for in the system's folders.
        Where `MOST_ABANDONED` have not come back, the others are not asked: `absent`.
        """
        self._forget_the_gone()
        found: dict[str, Outcome] = {}
        fresh: list[tuple[str, Sequence[str]]] = []
        for subject, words in wanted.items():
            left = self._abandoned.get(subject)
            if left is None:
                fresh.append((subject, words))
            else:
                found[subject] = Outcome(status="stuck", reason=left.waits, since_unix_ns=left.since_unix_ns)
        while fresh and (room := MOST_ABANDONED - len(self._abandoned)) > 0:
            lot, fresh = fresh[: min(room, MOST_AT_ONCE)], fresh[min(room, MOST_AT_ONCE) :]
            found |= self._run(lot, deadline_s, most_bytes)
        full = Outcome(status="absent", reason=f"not asked: {len(self._abandoned)} others have not come back")
        return found | {subject: full for subject, _ in fresh}

    def _run(self, lot: Sequence[tuple[str, Sequence[str]]], deadline_s: float, most_bytes: int) -> dict[str, Outcome]:
        begun_ns = time.monotonic_ns()
        found: dict[str, Outcome] = {}
        running: dict[str, _Running] = {}
        for subject, words in lot:
            started = _start(words, most_bytes, self._clock.unix_ns())
            if isinstance(started, _Running):
                running[subject] = started
            else:
                found[subject] = Outcome(status="absent", reason=started)
        noted = False
        turn_ns, wait_s = begun_ns, 0.0
        while running:
            now_ns = time.monotonic_ns()
            slept_ns, turn_ns = now_ns - turn_ns - int(wait_s * NS), now_ns
            begun_ns += slept_ns if slept_ns > AWAY_S * NS else 0
            spent_s = (now_ns - begun_ns) / NS
            if spent_s >= deadline_s:
                break
            if not noted and spent_s >= NOTED_AFTER_S:
                noted = True
                self._remember({subject: one.as_abandoned(subject, self._boot_id) for subject, one in running.items()})
            wait_s = (deadline_s if noted else min(deadline_s, NOTED_AFTER_S)) - spent_s
            _listen(running.values(), wait_s)
            for subject in [subject for subject, one in running.items() if one.has_ended()]:
                found[subject] = running.pop(subject).outcome()
        found |= self._end(running, deadline_s)
        if noted:
            self._remember({})
        return found

    def _end(self, late: dict[str, _Running], deadline_s: float) -> dict[str, Outcome]:
        """One SIGKILL to each; what is still there after a moment is abandoned."""
        if not late:
            return {}
        found: dict[str, Outcome] = {}
        waits = {subject: what_it_waits_for(one.pid) for subject, one in late.items()}
        for one in late.values():
            one.kill()
        until_ns = time.monotonic_ns() + int(KILLED_WITHIN_S * NS)
        alive = dict(late)
        while alive and time.monotonic_ns() < until_ns:
            alive = {subject: one for subject, one in alive.items() if not one.is_gone()}
            if alive:
                time.sleep(0.005)
        for subject, one in late.items():
            status: Status = "stuck" if subject in alive else "late"
            reason = f"no answer for more than {deadline_s:g} s; {waits[subject]}"
            found[subject] = Outcome(status=status, reason=reason, since_unix_ns=one.since_unix_ns)
            if subject in alive:
                self._abandoned[subject] = one.as_abandoned(subject, self._boot_id, reason)
                self._own[subject] = one
            one.let_go()
        self._remember({})
        return found

    def _forget_the_gone(self) -> None:
        before = len(self._abandoned)
        for subject, left in list(self._abandoned.items()):
            own = self._own.get(subject)
            if own.is_gone() if own is not None else not is_alive(left.pid, left.start_ticks):
                del self._abandoned[subject]
                if self._own.pop(subject, None) is None:
                    with contextlib.suppress(OSError):  # after a reload it is our child all the same: bury it
                        os.waitpid(left.pid, os.WNOHANG)
        if len(self._abandoned) != before:
            self._remember({})

    def _remember(self, also: dict[str, Abandoned]) -> None:
        """A disk that is full or read-only costs this memory, never the source."""
        if self._file is None:
            return
        text = msgspec.json.encode(list((also | self._abandoned).values()))
        if text == self._written:
            return
        new = self._file.with_suffix(".new")
        with contextlib.suppress(OSError):
            if text == b"[]":
                self._file.unlink(missing_ok=True)
            else:
                new.unlink(missing_ok=True)
                with new.open("xb") as file:  # root may look once in an agent's folder: no link there is followed
                    file.write(text)
                new.replace(self._file)
            self._written = text


class _Running:
    """One program under way and our ends of its pipes."""

    def __init__(self, pid: int, pipes: Sequence[int], most_bytes: int, since_unix_ns: int) -> None:
        self.pid = pid
        self.ticks = start_ticks(pid) or 0
        self.since_unix_ns = since_unix_ns
        self._said: dict[int, bytearray] = {pipe: bytearray() for pipe in pipes}
        self._pipes = tuple(pipes)
        self.open = set(pipes)
        self._most_bytes = most_bytes
        self._code: int | None = None
        self._too_much = False

    def hear(self, pipe: int) -> None:
        try:
            piece = os.read(pipe, 65_536)
        except OSError:
            piece = b""
        said = self._said[pipe]
        if len(said) + len(piece) > self._most_bytes:
            self._too_much, piece = True, b""
            self.kill()
        if piece:
            said += piece
        else:
            self.open.discard(pipe)

    def kill(self) -> None:
        if not self.is_gone():
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Everything is heard, and it is gone."""
        return not self.open and self.is_gone()

    def is_gone(self) -> bool:
        """It has ended, and is buried: from then on its pid may be anybody's."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 255 << 8  # somebody else buried it
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def outcome(self) -> Outcome:
        out, err = (bytes(self._said[pipe]) for pipe in self._pipes)
        self.let_go()
        reason = ""
        if self._too_much:
            reason = f"it said more than {self._most_bytes} bytes"
        elif self._code:
            reason = err[:200].decode("utf-8", "replace").strip() or f"it ended with code {self._code}"
        return Outcome(status="failed" if reason else "ok", out=out, err=err, reason=reason)

    def as_abandoned(self, subject: str, boot_id: str, waits: str = "") -> Abandoned:
        return Abandoned(
            subject=subject,
            pid=self.pid,
            start_ticks=self.ticks,
            boot_id=boot_id,
            since_unix_ns=self.since_unix_ns,
            waits=waits or "an earlier agent's, which ended while it waited",
        )

    def let_go(self) -> None:
        for pipe in self._pipes:
            os.close(pipe)
        self.open.clear()


def program(name: str) -> str | None:
    """Where the system keeps this program. Never from the environment's path: it may lie on a network file system."""
    return next((path for folder in FOLDERS if os.access(path := f"{folder}/{name}", os.X_OK)), None)


def _start(words: Sequence[str], most_bytes: int, since_unix_ns: int) -> _Running | str:
    path = words[0] if words[0].startswith("/") else program(words[0])
    if path is None:
        return f"this node has no {words[0]}"
    ends: list[int] = []
    try:
        ends += os.pipe2(os.O_CLOEXEC)
        ends += os.pipe2(os.O_CLOEXEC)
        pid = os.posix_spawn(
            path,
            [path, *words[1:]],
            ENVIRONMENT,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, ends[1], 1),
                (os.POSIX_SPAWN_DUP2, ends[3], 2),
            ],
            setpgroup=0,  # a Ctrl-C is the agent's business
            setsigmask=(),
            setsigdef=(signal.SIGPIPE,),
        )
    except (OSError, ValueError) as error:
        for end in ends:
            os.close(end)
        return f"{path} cannot be started: {error}"
    os.close(ends[1])
    os.close(ends[3])
    return _Running(pid, (ends[0], ends[2]), most_bytes, since_unix_ns)


def _listen(running: Iterable[_Running], most_s: float) -> None:
    """Wait until one of them says something or ends its speech; one that did is looked at again soon."""
    poll = select.poll()
    of: dict[int, _Running] = {}
    ending = False
    for one in running:
        ending |= not one.open
        for pipe in one.open:
            poll.register(pipe, select.POLLIN)
            of[pipe] = one
    wait_s = min(most_s, 0.001) if ending else most_s
    for pipe, _ in poll.poll(max(1, int(wait_s * 1000))):
        of[pipe].hear(pipe)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
