# ruff: noqa: PTH100, PTH101, PTH102, PTH108, PTH112, PTH114, PTH115, PTH116, PTH118, PTH120, PTH123, PTH208
# os.path, not pathlib: no folder may be touched before its mount is known, and pathlib hides which calls touch it.
"""Tell gpuwatch how far a training process is: one small file a rank, one `pwrite` a step.

    from gpuwatch.training import Heartbeat

    heartbeat = Heartbeat("opt-175b", rank=rank, world_size=world_size)
    for step in range(first, last):
        ...
        heartbeat.step(step, tokens=tokens_so_far)
        if step % 1000 == 0:
            with heartbeat.checkpoint(step):
                save()
    heartbeat.close()

It starts no thread, opens no socket, takes no lock, maps no memory, and never raises: a training run is never disturbed
by its monitor. A call costs about a microsecond. Standard library only, Python 3.8 or newer: this file may be copied
into a training repository as it is. The bytes are described in docs/heartbeat.md, so other languages can write them.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import sys
import time
import zlib
from typing import Any, Mapping

MAGIC = b"GWHB"
VERSION = 1
RECORD_OFFSET = 512
FILE_BYTES = 588
SUFFIX = ".beat"

HEADER = struct.Struct("<4sHHIIIiQq16s128s128s64s64sQ")  # then a CRC32 at HEADER_CRC_OFFSET
HEADER_CRC_OFFSET = 508
RECORD = struct.Struct("<4sHHQqqqqqqq")  # then its own CRC32
RECORD_MAGIC = b"GWBT"

PHASES = ("init", "train", "checkpoint", "evaluate", "data_wait", "done")
_PHASE_NUMBERS = {name: number for number, name in enumerate(PHASES)}
_INIT, _DONE = 0, 5

DEFAULT_DIRECTORIES = ("/run/gpuwatch/heartbeats", "/dev/shm/gpuwatch")

# A write to a network file system can block a training run for as long as its server is away. Only file systems that
# are known to be local are written to; an unknown one counts as remote.
LOCAL_FILE_SYSTEMS = frozenset(
    ("tmpfs", "ramfs", "devtmpfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "overlay", "bcachefs")
)

_CRC = struct.Struct("<I").pack
_warned: set[str] = set()


class Heartbeat:
    """One rank's heartbeat. Build it once per process and rank; every method returns None and swallows its errors."""

    __slots__ = (
        "_checkpoint_step",
        "_checkpoint_unix_ns",
        "_file",
        "_phase",
        "_phase_start_unix_ns",
        "_sequence",
        "_step",
        "_step_begin_monotonic_ns",
        "_step_end_unix_ns",
        "_step_ns",
        "_tokens",
        "path",
    )

    def __init__(
        self,
        run: str | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        attempt: str | None = None,
        team: str | None = None,
        user: str | None = None,
        gpu_index: int | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        """What is not given is taken from the environment (see `described_by`); `directory` from
        `GPUWATCH_HEARTBEAT_DIR`, else the first of `DEFAULT_DIRECTORIES` that is there or can be made.

        Off, with one warning on standard error, where that folder is not on a local file system or not writable.
        """
        self._file = -1
        self._sequence = 0
        self._phase = _INIT
        self._phase_start_unix_ns = 0
        self._step = -1
        self._step_end_unix_ns = 0
        self._step_ns = 0
        self._step_begin_monotonic_ns = 0
        self._checkpoint_step = -1
        self._checkpoint_unix_ns = 0
        self._tokens = -1
        self.path = ""
        try:
            about = described_by(os.environ)
            given: dict[str, Any] = {
                "run": run,
                "rank": rank,
                "world_size": world_size,
                "attempt": attempt,
                "team": team,
                "user": user,
                "gpu_index": gpu_index,
            }
            about.update({key: value for key, value in given.items() if value is not None})
            folder = _folder(directory)
            self._open(folder, about)
        except Exception as error:
            _warn_once("heartbeat is off: %s" % (error,))
            self._shut()

    @property
    def on(self) -> bool:
        """Whether records are being written."""
        return self._file >= 0

    def step(
        self,
        step: int,
        tokens: int = -1,
        _now: Any = time.time_ns,
        _monotonic: Any = time.monotonic_ns,
        _pack: Any = RECORD.pack,
        _crc32: Any = zlib.crc32,
        _crc: Any = _CRC,
        _pwrite: Any = os.pwrite,
    ) -> None:
        """This step has just ended. `tokens`: trained on since the run began. Ends any other phase."""
        file = self._file
        if file < 0:
            return
        try:
            monotonic_ns = _monotonic()
            self._step = step
            self._tokens = tokens
            self._step_end_unix_ns = now = _now()
            step_ns = monotonic_ns - self._step_begin_monotonic_ns
            self._step_begin_monotonic_ns = monotonic_ns
            if self._phase != 1:  # not "train": nobody knows when this step began
                self._phase = 1
                self._phase_start_unix_ns = now
                step_ns = 0
            self._step_ns = step_ns
            self._sequence = sequence = self._sequence + 1
            record = _pack(
                b"GWBT",
                1,
                0,
                sequence,
                step,
                now,
                step_ns,
                self._phase_start_unix_ns,
                self._checkpoint_step,
                self._checkpoint_unix_ns,
                tokens,
            )
            _pwrite(file, record + _crc(_crc32(record)), 512)
        except Exception as error:
            self._write_plainly(step, tokens, error)

    def phase(self, name: str) -> None:
        """From now on the process does this: one of `PHASES`. A pause that is named is not a hang."""
        try:
            self._enter(_PHASE_NUMBERS[name])
        except Exception as error:
            _warn_once("phase %r was not noted: %s" % (name, error))

    def checkpoint(self, step: int | None = None) -> _Phase:
        """`with heartbeat.checkpoint(step):` around a save that is durable when the block ends without an error."""
        return _Phase(self, "checkpoint", step)

    def evaluate(self) -> _Phase:
        """`with heartbeat.evaluate():` around an evaluation."""
        return _Phase(self, "evaluate", None)

    def data_wait(self) -> _Phase:
        """`with heartbeat.data_wait():` around a wait for input."""
        return _Phase(self, "data_wait", None)

    def checkpoint_saved(self, step: int | None = None) -> None:
        """The state after `step` (default: the last one) is durable now: a restart would go on from there."""
        try:
            self._checkpoint_step = self._step if step is None else int(step)
            self._checkpoint_unix_ns = time.time_ns()
            self._write()
        except Exception as error:
            _warn_once("a checkpoint was not noted: %s" % (error,))

    def close(self) -> None:
        """The work is done: this process will take no more steps, and that is no failure."""
        try:
            self._enter(_DONE)
        except Exception as error:
            _warn_once("the end of the run was not noted: %s" % (error,))
        self._shut()

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, kind: Any, _error: Any, _trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._shut()  # a process that fails leaves no "done" behind

    def _enter(self, number: int) -> None:
        if number != self._phase:
            self._phase = number
            self._phase_start_unix_ns = time.time_ns()
        self._step_begin_monotonic_ns = time.monotonic_ns()  # a step's duration counts no other phase
        self._write()

    def _write_plainly(self, step: Any, tokens: Any, error: Exception) -> None:
        """A second try for numbers that are no integers, such as 4.2e6 tokens."""
        try:
            self._step, self._tokens = int(step), int(tokens)
            self._write()
        except Exception:
            self._step, self._tokens = -1, -1
            _warn_once("a heartbeat could not be written: %s" % (error,))

    def _write(self) -> None:
        if self._file < 0:
            return
        self._sequence += 1
        os.pwrite(self._file, self._record(), RECORD_OFFSET)

    def _record(self) -> bytes:
        record = RECORD.pack(
            RECORD_MAGIC,
            self._phase,
            0,
            self._sequence,
            self._step,
            self._step_end_unix_ns,
            self._step_ns,
            self._phase_start_unix_ns,
            self._checkpoint_step,
            self._checkpoint_unix_ns,
            self._tokens,
        )
        return record + _CRC(zlib.crc32(record))

    def _open(self, folder: str, about: dict[str, Any]) -> None:
        pid = os.getpid()
        name = re.sub(r"[^A-Za-z0-9._-]", "_", str(about["run"]))[:80]
        start = "%s.%d." % (name, about["rank"])
        _remove_ended(folder, start)
        self.path = os.path.join(folder, "%s%d%s" % (start, pid, SUFFIX))
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        os.fchmod(self._file, 0o644)  # whatever the job's umask: the agent is another user
        self._sequence = 1
        self._phase_start_unix_ns = time.time_ns()
        self._step_begin_monotonic_ns = time.monotonic_ns()
        header = HEADER.pack(
            MAGIC,
            VERSION,
            RECORD_OFFSET,
            pid,
            int(about["rank"]),
            int(about["world_size"]),
            int(about["gpu_index"]),
            start_ticks(pid) or 0,
            self._phase_start_unix_ns,
            _boot_id(),
            _text(about["run"], 128),
            _text(about["attempt"], 128),
            _text(about["team"], 64),
            _text(about["user"], 64),
            pid_namespace(),
        ).ljust(HEADER_CRC_OFFSET, b"\0")
        whole = header + _CRC(zlib.crc32(header)) + self._record()
        os.ftruncate(self._file, len(whole))
        os.pwrite(self._file, whole, 0)

    def _shut(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            with contextlib.suppress(OSError):
                os.close(file)


class _Phase:
    """A block of one phase; the phase before it comes back at its end."""

    def __init__(self, heartbeat: Heartbeat, name: str, step: int | None) -> None:
        self._heartbeat = heartbeat
        self._name = name
        self._step = step
        self._before = "train"

    def __enter__(self) -> None:
        self._before = PHASES[self._heartbeat._phase]
        self._heartbeat.phase(self._name)

    def __exit__(self, kind: Any, _error: Any, _trace: Any) -> None:
        if kind is None and self._name == "checkpoint":
            self._heartbeat.checkpoint_saved(self._step)
        self._heartbeat.phase(self._before)


def described_by(environment: Mapping[str, str]) -> dict[str, Any]:
    """What a launcher's environment says of this rank, our own variables first, then Slurm, torchrun, MPI.

    `attempt` must be the same on all ranks and new at each start of the job: Slurm's `job id.restart count`, torchrun's
    `run id.restart count`; empty where nothing tells it.
    """

    def first(*names: str) -> str:
        return next((environment[name] for name in names if environment.get(name)), "")

    def number(default: int, *names: str) -> int:
        found = first(*names)
        return int(found) if found.isdigit() else default

    attempt = first("GPUWATCH_ATTEMPT")
    if not attempt and environment.get("SLURM_JOB_ID"):
        attempt = "%s.%d" % (environment["SLURM_JOB_ID"], number(0, "SLURM_RESTART_COUNT"))
    if not attempt and environment.get("TORCHELASTIC_RUN_ID"):
        attempt = "%s.%d" % (environment["TORCHELASTIC_RUN_ID"], number(0, "TORCHELASTIC_RESTART_COUNT"))
    return {
        "run": first("GPUWATCH_RUN", "SLURM_JOB_NAME", "TORCHELASTIC_RUN_ID") or "unnamed",
        "attempt": attempt,
        "rank": number(0, "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
        "world_size": number(1, "WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
        "gpu_index": _gpu_index(environment, number(-1, "LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")),
        "team": first("GPUWATCH_TEAM", "SLURM_JOB_ACCOUNT"),
        "user": first("GPUWATCH_USER", "SLURM_JOB_USER", "USER"),
    }


def start_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since boot (/proc/PID/stat, field 22): with the pid, its identity."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def pid_namespace() -> int:
    """Inode of this process's pid namespace: a pid of a container means nothing outside it. 0: not known."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def mount_type(path: str, mounts: list[tuple[str, str]]) -> str:
    """The file system type under an absolute path. `mounts`: (mount point, type) in mount order, see `read_mounts`."""
    best, found = -1, "unknown"
    for point, kind in mounts:
        inside = point == "/" or path == point or path.startswith(point + "/")
        if inside and len(point) >= best:  # of two mounts on one point the later one covers the earlier
            best, found = len(point), kind
    return found


def read_mounts(text: str) -> list[tuple[str, str]]:
    """The mounts of a /proc/self/mountinfo text."""
    mounts = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        words = left.split(" ")
        if dash and len(words) > 4:
            point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), words[4])
            mounts.append((point, right.split(" ")[0]))
    return mounts


def _folder(directory: str | os.PathLike[str] | None) -> str:
    wanted = directory or os.environ.get("GPUWATCH_HEARTBEAT_DIR")
    choices = [os.fspath(wanted)] if wanted else list(DEFAULT_DIRECTORIES)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = read_mounts(file.read())
    why = ""
    for choice in choices:
        folder, why = _resolved(os.path.abspath(choice), mounts)
        if why:
            continue
        if not os.path.isdir(folder):
            try:
                os.mkdir(folder)
                os.chmod(folder, 0o755 if wanted else 0o1777)  # every user's runs share the default folder
            except OSError as error:
                why = "%s cannot be made: %s" % (folder, error.strerror)
                continue
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
        why = "%s is not writable" % folder
    raise OSError(why)


def _resolved(path: str, mounts: list[tuple[str, str]]) -> tuple[str, str]:
    """The path without links, or why it is refused. Touches nothing that is not on a local file system."""
    for _ in range(40):
        here = ""
        for part in path.strip("/").split("/"):
            here = here + "/" + part
            kind = mount_type(here, mounts)
            if kind not in LOCAL_FILE_SYSTEMS:
                return path, "%s is on %s, not on a file system known to be local" % (path, kind)
            if os.path.islink(here):
                rest = path[len(here) :]
                path = os.path.normpath(os.path.join(os.path.dirname(here), os.readlink(here)) + rest)
                break
        else:
            return path, ""
    return path, "%s is a loop of links" % path


def _remove_ended(folder: str, start: str) -> None:
    """Files that earlier processes of the same rank left behind and that no living process owns."""
    for name in os.listdir(folder):
        if name.startswith(start) and name.endswith(SUFFIX):
            pid = name[len(start) : -len(SUFFIX)]
            if pid.isdigit() and (int(pid) == os.getpid() or start_ticks(int(pid)) is None):
                with contextlib.suppress(OSError):  # another user's: the agent clears it away
                    os.unlink(os.path.join(folder, name))


def _gpu_index(environment: Mapping[str, str], local_rank: int) -> int:
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if local_rank < 0 or not visible:
        return local_rank
    names = visible.split(",")
    if local_rank < len(names) and names[local_rank].strip().isdigit():
        return int(names[local_rank])
    return -1


def _boot_id() -> bytes:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except (OSError, ValueError):
        return b"\0" * 16


def _text(value: Any, size: int) -> bytes:
    """At most `size - 1` bytes of UTF-8, never half a character."""
    return str(value).encode("utf-8", "replace")[: size - 1].decode("utf-8", "ignore").encode("utf-8")


def _warn_once(text: str) -> None:
    if text in _warned or len(_warned) > 8:
        return
    _warned.add(text)
    with contextlib.suppress(Exception):
        sys.stderr.write("gpuwatch: %s\n" % text)
