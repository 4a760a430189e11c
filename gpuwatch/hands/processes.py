"""The processes of this node as root sees them through /proc. Asked only when an order is there, or by `check`.

Only links and files that wait for nobody's memory lock are read (not `cmdline` and `environ` of strangers): the node
may be one whose processes hang.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

SIGKILL_BIT = 1 << 8
MOST_FILES = 65_536  # of one process
MOST_THREADS = 4096
SYSTEM_UID = 1000  # below: users of the system's own services
NVIDIA = "/dev/nvidia"


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process, as far as it can be told."""

    pid: int
    name: str  # the kernel's name of it
    program: str  # its file's name; empty: not told (a kernel thread, or it is gone)
    uid: int
    cgroup: str
    folder: str  # its working directory
    devices: tuple[str, ...]  # of NVIDIA's that it holds, `/dev/nvidia3`
    condemned: bool  # it was killed already, and only waits for the kernel to let it go
    gone: bool  # a zombie: it holds nothing and does nothing

    def ended(self) -> bool:
        """It does no work any more."""
        return self.gone or self.condemned

    def is_friend(self, programs: Collection[str]) -> bool:
        """A program of the system's own that may hold GPUs. A name alone is no proof: every user may choose one."""
        return self.uid < SYSTEM_UID and self.program in programs

    def is_of_unit(self, unit: str) -> bool:
        """Started by the system's own systemd for this service; no user can put a process there.

        Above it are slices alone: a user's own manager, or a container, may name a unit the same, below itself.
        """
        return any(
            last == unit and all(part in ("", "..") or part.endswith(".slice") for part in above)
            for *above, last in (line.rpartition(":")[2].split("/") for line in self.cgroup.splitlines())
        )

    def words(self) -> str:
        """For a person."""
        return f"{self.name} ({self.pid})"


def processes(proc: Path) -> Iterator[Process]:
    """All but ourselves; those that end meanwhile are left out."""
    for entry in os.listdir(proc):  # noqa: PTH208  (thousands)
        if entry.isdigit() and int(entry) != os.getpid():
            found = look(proc / entry)
            if found is not None:
                yield found


def look(place: Path) -> Process | None:
    """One process; None: it is gone. Where its first thread has ended, what is left of it is seen in another one: a
    killed process of which one thread hangs in the driver looks like a zombie, and holds the GPU."""
    pid = int(place.name)
    try:
        status = _status(place)
        if _has_ended(status):
            place, status = next(_living_threads(place), (place, status))
        uid = int(status["Uid"].split()[1])
    except (OSError, KeyError, ValueError, IndexError):
        return None
    return Process(
        pid=pid,
        name=status.get("Name", ""),
        program=_link(place / "exe").removesuffix(" (deleted)").rpartition("/")[2],
        uid=uid,
        cgroup=_text(place / "cgroup"),
        folder=_link(place / "cwd"),
        devices=_devices(place / "fd"),
        condemned=any(_bits(status.get(key, "")) & SIGKILL_BIT for key in ("SigPnd", "ShdPnd")),
        gone=_has_ended(status),
    )


def _status(place: Path) -> dict[str, str]:
    lines = (place / "status").read_text(errors="replace").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _has_ended(status: dict[str, str]) -> bool:
    return status.get("State", "").startswith(("Z", "X"))


def _living_threads(process: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    try:
        threads = sorted((process / "task").iterdir())
    except OSError:
        return
    for place in threads[:MOST_THREADS]:
        with contextlib.suppress(OSError):
            if not _has_ended(status := _status(place)):
                yield place, status


def _devices(folder: Path) -> tuple[str, ...]:
    held: set[str] = set()
    try:
        for count, entry in enumerate(os.scandir(folder)):
            if count >= MOST_FILES:
                break
            target = _link(Path(entry.path))
            if target.startswith(NVIDIA):
                held.add(target)
    except OSError:
        pass  # it ended
    return tuple(sorted(held))


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:4096]
    except OSError:
        return ""


def _bits(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
