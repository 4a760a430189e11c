"""Heartbeat files of the training processes on this node (layout: docs/heartbeat.md).

Source: files that the processes write themselves, so a hung process stops moving and a dead one is gone without `done`.
A half-written record has a wrong checksum and is read again. That a process ended is learned through its pidfd at once,
with no polling.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from gpuwatch.clock import Clock, SystemClock
from gpuwatch.collectors import Collector, Reading, Sample
from gpuwatch.model.facts.training import Beat, TrainingFacts
from gpuwatch.training.heartbeat import (
    DEFAULT_DIRECTORIES,
    FILE_BYTES,
    HEADER,
    HEADER_CRC_OFFSET,
    MAGIC,
    PHASES,
    RECORD,
    RECORD_MAGIC,
    RECORD_OFFSET,
    SUFFIX,
    VERSION,
    pid_namespace,
)

TRIES = 4  # a writer needs microseconds between two records: one torn read in a row is rare, four do not happen
MAX_FILES = 1024  # looked at in one reading
MAX_NAMES = 20_000  # of one folder: every user may write there
MAX_WATCHED = 256  # descriptors; the end of others is seen by the next reading
JUST_MADE_S = 10.0  # a file that is empty for longer than between open and first write is broken
UNTOLD_FORGET_S = 86_400.0  # whose life cannot be told and which does not move


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the heartbeat files are."""

    enabled: bool = True
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    directories: tuple[str, ...] = DEFAULT_DIRECTORIES
    forget_after_s: Annotated[float, msgspec.Meta(ge=0)] = 600.0  # files of ended processes


class _Writer(msgspec.Struct):
    """What one file's header says, and what was seen of its process."""

    identity: tuple[int, bytes]  # inode and header checksum
    pid: int
    start_ticks: int
    comparable: bool  # its pid means something here
    this_boot: bool
    fixed: tuple[str, str, int, int, int | None, str | None, str | None]
    pidfd: int = -1
    was_alive: bool = False
    sequence: int = -1
    still_since_monotonic_ns: int = 0
    dead_since_monotonic_ns: int | None = None


class _Reader:
    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._writers: dict[str, _Writer] = {}
        self._passed = 0  # where among the files that nobody alive is known to write the next reading begins
        self._ends = select.epoll()
        self._namespace = pid_namespace()
        self._boot = _boot_id()
        self._sees_others = Path("/proc/1/stat").exists()  # False under hidepid: then nobody's life can be told

    def fileno(self) -> int:
        """Readable as soon as a training process ends."""
        return self._ends.fileno()

    def read(self) -> Reading:
        """All files now. Urgent when a process ended without `done` since the last reading."""
        beats: list[Beat] = []
        unreadable_count = 0
        urgent = False
        for file, _ in self._ends.poll(0):  # told once: a file that cannot be read must not select for ever
            self._ends.unregister(file)
        paths, here = self._paths()
        now_unix_ns, now_monotonic_ns = self._clock.unix_ns(), self._clock.monotonic_ns()
        for path in paths:
            try:
                data, inode, age_s, owner = _bytes(path, now_unix_ns)
            except FileNotFoundError:
                continue
            except (OSError, ValueError):
                unreadable_count += 1
                continue
            if len(data) < FILE_BYTES:
                unreadable_count += age_s > JUST_MADE_S
                continue
            writer = self._writer(path, data, inode, owner, age_s)
            record = _record(path, data) if writer else None
            if writer is None or record is None:
                unreadable_count += 1
                continue
            alive = self._alive(writer)
            ended = PHASES[record[1]] == "done"
            urgent |= writer.was_alive and alive is False and not ended
            writer.was_alive = alive is True
            if self._forgotten(path, writer, record[3], alive, now_monotonic_ns):
                continue
            beats.append(_beat(writer, record, alive, now_unix_ns))
        for path in self._writers.keys() - here:
            self._let_go(self._writers.pop(path))
        beats.sort(key=lambda beat: (beat.run, beat.rank, beat.pid))
        gaps = {"beats": f"{len(here)} files, of which {len(paths)} were looked at"} if len(here) > len(paths) else {}
        return Reading(facts=TrainingFacts(tuple(beats), unreadable_count), gaps=gaps, urgent=urgent)

    def close(self) -> None:
        for writer in self._writers.values():
            self._let_go(writer)
        self._ends.close()

    def _paths(self) -> tuple[list[str], set[str]]:
        """The files of this reading, and all that are there. Where there are too many, ranks that are known to live
        come first, and of the rest others each time."""
        found: list[str] = []
        for directory in self._settings.directories:
            try:
                with os.scandir(directory) as names:  # (a Path a file would cost more than reading it)
                    some = itertools.islice(names, MAX_NAMES)
                    found += [f"{directory}/{entry.name}" for entry in some if entry.name.endswith(SUFFIX)]
            except OSError:
                continue  # nobody has written a heartbeat yet
        if len(found) <= MAX_FILES:
            return found, set(found)
        living = {path for path, writer in self._writers.items() if writer.dead_since_monotonic_ns is None}
        known = [path for path in found if path in living][:MAX_FILES]
        rest = sorted(set(found) - set(known))
        begin = self._passed % len(rest) if rest else 0
        self._passed = begin + MAX_FILES - len(known)
        return known + (rest[begin:] + rest[:begin])[: MAX_FILES - len(known)], set(found)

    def _writer(self, path: str, data: bytes, inode: int, owner: int, age_s: float) -> _Writer | None:
        identity = (inode, data[HEADER_CRC_OFFSET:RECORD_OFFSET])
        known = self._writers.get(path)
        if known is not None and known.identity == identity:
            return known
        if known is not None:
            self._let_go(self._writers.pop(path))
        header = data[:HEADER_CRC_OFFSET]
        if zlib.crc32(header) != int.from_bytes(data[HEADER_CRC_OFFSET:RECORD_OFFSET], "little"):
            return None
        magic, version, offset, pid, rank, world_size, gpu, ticks, _, boot, run, attempt, team, user, namespace = (
            HEADER.unpack_from(header)
        )
        if magic != MAGIC or version != VERSION or offset != RECORD_OFFSET:
            return None
        writer = _Writer(
            identity=identity,
            pid=pid,
            start_ticks=ticks,
            comparable=self._sees_others and (namespace in (0, self._namespace) or not self._namespace),
            # Some containers show a boot id of their own: what was written since this boot is of this boot.
            this_boot=not any(boot)
            or not any(self._boot)
            or boot == self._boot
            or age_s < self._clock.monotonic_ns() / 1e9,
            fixed=(
                _text(run),
                _text(attempt),
                rank,
                world_size,
                gpu if gpu >= 0 else None,
                _text(team) or None,
                _text(user) or None,
            ),
        )
        alive = self._alive(writer)
        if alive and not _may_be_of(owner, pid):
            return None  # or every user could write that another's rank stands still
        self._writers[path] = writer
        if alive:
            self._watch_end(writer)
        return writer

    def _watch_end(self, writer: _Writer) -> None:
        if sum(other.pidfd >= 0 for other in self._writers.values()) >= MAX_WATCHED:
            return
        try:
            writer.pidfd = os.pidfd_open(writer.pid)
            self._ends.register(writer.pidfd, select.EPOLLIN)
        except OSError:
            return  # an old kernel: the next round finds it out

    def _alive(self, writer: _Writer) -> bool | None:
        if not writer.this_boot:
            return False
        if not writer.comparable:
            return None
        try:
            with open(f"/proc/{writer.pid}/stat", "rb") as file:  # noqa: PTH123  (each rank, each round)
                words = file.read().rpartition(b")")[2].split()
        except OSError:
            words = [b"X"]
        alive = words[0] not in (b"Z", b"X") and (writer.start_ticks == 0 or int(words[19]) == writer.start_ticks)
        if not alive:
            self._let_go(writer)
        return alive

    def _forgotten(self, path: str, writer: _Writer, sequence: int, alive: bool | None, now_ns: int) -> bool:
        if sequence != writer.sequence:
            writer.sequence = sequence
            writer.still_since_monotonic_ns = now_ns
        if alive is None:
            return (now_ns - writer.still_since_monotonic_ns) / 1e9 > UNTOLD_FORGET_S
        if alive:
            writer.dead_since_monotonic_ns = None
            return False
        if writer.dead_since_monotonic_ns is None:
            writer.dead_since_monotonic_ns = now_ns
        if (now_ns - writer.dead_since_monotonic_ns) / 1e9 <= self._settings.forget_after_s:
            return False
        with contextlib.suppress(OSError):  # its owner's folder: it stays, and stays forgotten
            os.unlink(path)  # noqa: PTH108
        return True

    def _let_go(self, writer: _Writer) -> None:
        if writer.pidfd >= 0:
            os.close(writer.pidfd)  # also leaves the epoll
            writer.pidfd = -1


def _may_be_of(owner: int, pid: int) -> bool:
    """Whether this user's file may speak for that process: its own, or root's, who may start it as another."""
    if owner == 0:
        return True
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123  (once a file)
            ids = next((line.split()[1:] for line in file if line.startswith(b"Uid:")), [])
    except OSError:
        return True  # it ended meanwhile: seen by the next look
    return not ids or owner in map(int, ids)


def _bytes(path: str, now_unix_ns: int) -> tuple[bytes, int, float, int]:
    """The file's bytes, inode, age and owner. Links and anything but a small plain file are refused."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path} is no plain file")
        age_s = (now_unix_ns - status.st_mtime_ns) / 1e9
        return os.pread(file, FILE_BYTES, 0), status.st_ino, age_s, status.st_uid
    finally:
        os.close(file)


def _record(path: str, data: bytes) -> tuple[int, ...] | None:
    for _ in range(TRIES):
        if len(data) < FILE_BYTES:
            return None  # cut short while we looked
        record = data[RECORD_OFFSET : RECORD_OFFSET + RECORD.size]
        if zlib.crc32(record) == int.from_bytes(data[RECORD_OFFSET + RECORD.size : FILE_BYTES], "little"):
            fields = RECORD.unpack(record)
            return fields if fields[0] == RECORD_MAGIC and fields[1] < len(PHASES) else None
        try:
            data = _bytes(path, 0)[0]
        except (OSError, ValueError):
            return None
    return None


def _beat(writer: _Writer, record: tuple[int, ...], alive: bool | None, now_unix_ns: int) -> Beat:
    _, phase, _, sequence, step, step_end, step_ns, phase_start, saved_step, saved_at, tokens = record
    run, attempt, rank, world_size, gpu_index, team, user = writer.fixed
    return Beat(
        run=run,
        attempt=attempt,
        rank=rank,
        world_size=world_size,
        pid=writer.pid,
        phase=PHASES[phase],
        step=step if step >= 0 else None,
        step_end_unix_ns=step_end or None,
        phase_start_unix_ns=phase_start or None,
        checkpoint_step=saved_step if saved_step >= 0 else None,
        checkpoint_unix_ns=saved_at or None,
        tokens=tokens if tokens >= 0 else None,
        step_s=step_ns / 1e9 if step_ns > 0 else None,
        alive=alive,
        gpu_index=gpu_index,
        sequence=sequence,
        read_unix_ns=now_unix_ns,
        team=team,
        user=user,
    )


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


def _boot_id() -> bytes:
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return b""


def metrics(facts: TrainingFacts) -> Iterable[Sample]:
    """Few series: ranks by life, the oldest last step of a rank that trains, files that cannot be read."""
    lives = {"true": 0, "false": 0, "unknown": 0}
    for beat in facts.beats:
        lives["unknown" if beat.alive is None else str(beat.alive).lower()] += 1
    for word, count in lives.items():
        text = "Ranks with a heartbeat file on this node, by whether their process lives."
        yield Sample(name="gpuwatch_training_ranks", help=text, value=count, labels={"alive": word})
    text = "Heartbeat files that cannot be read."
    yield Sample(name="gpuwatch_training_unreadable_files", help=text, value=facts.unreadable_count)
    ends = [beat.step_end_unix_ns for beat in facts.beats if beat.phase == "train" and beat.step_end_unix_ns]
    if ends:
        text = "When the rank that is furthest behind ended its last step."
        yield Sample(name="gpuwatch_training_last_step_timestamp_seconds", help=text, value=min(ends) / 1e9)


def open_reader(settings: Settings) -> _Reader:
    """A reader over the machine's own clock."""
    return _Reader(settings, SystemClock())


COLLECTOR = Collector(facts=TrainingFacts, settings=Settings, open=open_reader, metrics=metrics)
