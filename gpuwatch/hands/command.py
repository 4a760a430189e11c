"""Runs one program of the settings, without a shell, within a deadline, and says what came of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

import msgspec

LAST_CHARACTERS = 300  # of what it printed
LOOK_S = 0.05
DIES_WITHIN_S = 2.0  # after SIGKILL; later it is stuck in the kernel, and left there
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`trouble` is empty where it ended with 0."""

    trouble: str
    printed: str = ""


def run(words: Sequence[str], within_s: float, *, meanwhile: Callable[[], None] = lambda: None) -> Outcome:
    """Run and wait. `meanwhile` is called while it runs; it must not wait."""
    with os.fdopen(os.memfd_create("printed", os.MFD_CLOEXEC), "wb") as out:  # needs no disk
        try:
            child = subprocess.Popen(
                list(words), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=ENVIRONMENT, start_new_session=True
            )
        except OSError as error:
            return Outcome(trouble=f"{words[0]} cannot be started: {error}")
        end_s = time.monotonic() + within_s
        while child.poll() is None and time.monotonic() < end_s:
            meanwhile()
            time.sleep(LOOK_S)
        late = child.poll() is None
        dead = _killed(child) if late else True
        printed = _last(out.fileno())
    name = words[0].rpartition("/")[2]
    said = f": {printed}" if printed else ""
    if late:
        left = "" if dead else "; it cannot be killed and is left alone"
        return Outcome(trouble=f"{name} took longer than {within_s:g} s{left}{said}", printed=printed)
    if child.returncode < 0:
        return Outcome(trouble=f"{name} was ended by signal {-child.returncode}{said}", printed=printed)
    if child.returncode:
        return Outcome(trouble=f"{name} ended with {child.returncode}{said}", printed=printed)
    return Outcome(trouble="", printed=printed)


def _killed(child: subprocess.Popen[bytes]) -> bool:
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(DIES_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return True


def _last(file: int) -> str:
    """The end of what it printed, in one line."""
    size = os.fstat(file).st_size
    data = os.pread(file, LAST_CHARACTERS * 2, max(0, size - LAST_CHARACTERS * 2))
    return " ".join(data.decode("utf-8", "replace").split())[-LAST_CHARACTERS:]
