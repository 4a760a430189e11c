"""The reboot, and what follows where it does not happen: ordered, then by force, then by the kernel alone.

Each step is written down before it is done. That it worked is seen by nobody here: this process ends with it, and the
next boot's finds the journal. HOLD is looked at before each step.

The last phase of a shutdown ends every process and waits 90 s for those that do not want to, except for root's whose
name begins with `@` (systemd.io/ROOT_STORAGE_DAEMONS). Such a name this process takes for so long: nothing waits for
it, and it sees whether the machine goes down.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuwatch.hands.command import run
from gpuwatch.hands.settings import Reboot

LEFT_ALONE = b"@"
ARG_START = 45  # of /proc/PID/stat behind the name: field 48, proc(5)
SYSRQ = "sub"  # sync; remount read-only; boot


def reboot(
    settings: Reboot,
    *,
    note: Callable[[str], None],
    held: Callable[[], str],
    meanwhile: Callable[[], None],
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Returns only where the machine still runs at the end of it: why, in words. `note` is told each step first."""
    with _left_alone():
        return _climb(settings, note, held, meanwhile, sleep)


def _climb(
    settings: Reboot,
    note: Callable[[str], None],
    held: Callable[[], str],
    meanwhile: Callable[[], None],
    sleep: Callable[[float], None],
) -> str:
    tried = []
    for words, within_s in ((settings.command, settings.deadline_s), (settings.force, settings.force_deadline_s)):
        if because := held():
            return because
        note(" ".join(words))
        outcome = run(words, within_s, meanwhile=meanwhile)
        if not outcome.trouble:
            _wait(within_s, meanwhile, sleep)
        tried.append(outcome.trouble or f"{' '.join(words)}: no reboot within {within_s:g} s")
    if because := held():
        return because
    for letter in SYSRQ:
        note(f"{letter} to {settings.sysrq}")
        try:
            _write(settings.sysrq, letter)
        except OSError as error:
            tried.append(f"{settings.sysrq} took no {letter!r}: {error}")
        _wait(settings.sysrq_wait_s, meanwhile, sleep)
    return "; ".join([*tried, "and it runs still"])


@contextlib.contextmanager
def _left_alone() -> Iterator[None]:
    place = _name_begins_at()
    before = ctypes.string_at(place, 1) if place else b""
    if place:
        ctypes.memmove(place, LEFT_ALONE, 1)
    try:
        yield
    finally:
        if place:
            ctypes.memmove(place, before, 1)


def _name_begins_at() -> int:
    """Where in memory the process's own name stands, which others read as its command line; 0: not told."""
    words = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    return int(words[ARG_START]) if len(words) > ARG_START else 0


def _wait(seconds: float, meanwhile: Callable[[], None], sleep: Callable[[float], None]) -> None:
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        meanwhile()
        sleep(min(1.0, left_s))


def _write(path: Path, letter: str) -> None:
    with path.open("a") as file:
        file.write(letter)
