"""Reads many small files of the kernel in one errand: a driver that does not answer keeps `head` waiting, not us.

`head -v -c` prints each file's name before its first bytes, so that a file which cannot be read costs that file alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec

from gpuwatch.sdk.errand import Errands, Outcome

_READ = """
import os, stat, sys
held = os.open(sys.argv[1], os.O_PATH)
is_what = os.fstat(held)
if stat.S_ISREG(is_what.st_mode) and is_what.st_blocks:
    os.write(1, os.read(os.open(f"/proc/self/fd/{held}", os.O_RDONLY), int(sys.argv[2])))
"""
MOST_BYTES_A_FILE = 256
MOST_NUMBER = 1 << 62  # in words of four bytes still a number that can travel
MOST_FILES = 2_000  # of one errand: their names must fit into one command line


class Look(msgspec.Struct, frozen=True):
    """What came of one subject's files."""

    contents: dict[str, bytes]  # path -> its first bytes, only of files that could be read
    errors: dict[str, str]  # path -> why not
    hung: str = ""  # not empty: the kernel did not answer, for this reason; nothing of it is known
    since_unix_ns: int | None = None
    unasked: str = ""  # not empty: nobody looked, for this reason; nothing of it is known

    def text(self, path: str) -> str | None:
        """One line, as text. None: not readable, empty, or not text."""
        try:
            return self.contents.get(path, b"").decode("ascii").strip() or None
        except UnicodeDecodeError:
            return None

    def number(self, path: str) -> int | None:
        """A decimal number that is not negative. None for anything else, such as `N/A (no PMA)`, and for what counts
        nothing: a card that is dead says 2^64 - 1."""
        text = self.text(path)
        number = int(text) if text is not None and text.isdecimal() and len(text) <= 20 else MOST_NUMBER
        return number if number < MOST_NUMBER else None


def look(
    errands: Errands,
    wanted: Mapping[str, Sequence[str]],
    *,
    deadline_s: float,
    most_bytes: int = MOST_BYTES_A_FILE,
) -> dict[str, Look]:
    """The files of each subject, side by side. A name with a newline is nobody's in sysfs and is not looked at."""
    asked = {
        subject: [path for path in paths if path.startswith("/") and "\n" not in path][:MOST_FILES]
        for subject, paths in wanted.items()
    }
    found = errands.ask(
        {subject: ["head", "-v", "-c", str(most_bytes), "--", *paths] for subject, paths in asked.items() if paths},
        deadline_s=deadline_s,
        most_bytes=4_096 + MOST_FILES * (most_bytes + 512),
    )
    nothing = Look({}, {})
    return {
        subject: read_out(found[subject], paths) if subject in found else nothing for subject, paths in asked.items()
    }


def head_of_file(errands: Errands, path: str, *, deadline_s: float, most_bytes: int = MOST_BYTES_A_FILE) -> bytes:
    """The first bytes of a file that a stranger has named; empty where it is none.

    Opening is an act: of /dev/watchdog it ends in a reboot, of a pipe or /proc/kmsg it takes what another waits for.
    So it is held first, by what opens nothing (open(2), O_PATH), and looked at: no link can be changed in between. A
    file that takes no place on a disk is the kernel's.
    """
    outcome = errands.ask(
        {path: [sys.executable, "-I", "-S", "-c", _READ, path, str(most_bytes)]}, deadline_s=deadline_s
    )
    return outcome[path].out if outcome[path].status == "ok" else b""


def look_together(
    errands: Errands,
    wanted: Mapping[str, Sequence[str]],
    *,
    deadline_s: float,
    most_bytes: int = MOST_BYTES_A_FILE,
) -> dict[str, Look]:
    """The same in one errand for all subjects, which is cheaper; where that hangs, one each, to see which it is."""
    every = [path for paths in wanted.values() for path in paths]
    if len(every) <= MOST_FILES:
        seen = look(errands, {"all": every}, deadline_s=deadline_s, most_bytes=most_bytes)["all"]
        if not seen.hung:
            return {
                subject: Look(
                    {path: seen.contents[path] for path in paths if path in seen.contents},
                    {path: seen.errors[path] for path in paths if path in seen.errors},
                    unasked=seen.unasked,
                )
                for subject, paths in wanted.items()
            }
    return look(errands, wanted, deadline_s=deadline_s, most_bytes=most_bytes)


def read_out(outcome: Outcome, paths: Sequence[str]) -> Look:
    """Take apart what `head` printed. The files come in the order in which they were asked for."""
    if not outcome.answered:
        if outcome.status in ("late", "stuck"):
            return Look({}, {}, outcome.reason, outcome.since_unix_ns)
        return Look({}, dict.fromkeys(paths, outcome.reason), unasked=outcome.reason)
    errors = _errors(outcome.err.decode("utf-8", "replace"), paths)
    contents: dict[str, bytes] = {}
    at = 0
    begun: list[tuple[str, int, int]] = []  # path, where its title begins, where its content begins
    for path in paths:
        title = b"==> " + path.encode("utf-8", "surrogateescape") + b" <==\n"
        where = outcome.out.find(title, at)
        if where >= 0:
            at = where + len(title)
            begun.append((path, where, at))
    for number, (path, _, start) in enumerate(begun):
        last = number + 1 == len(begun)
        end = len(outcome.out) if last else begun[number + 1][1] - 1  # an empty line parts two files
        if path not in errors:
            contents[path] = outcome.out[start : max(start, end)]
    for path in paths:
        if path not in contents:
            errors.setdefault(path, "it was not told")
    return Look(contents, errors)


def _errors(said: str, paths: Sequence[str]) -> dict[str, str]:
    """As in: head: cannot open '/a' for reading: No such file or directory."""
    errors: dict[str, str] = {}
    lines = said.splitlines()
    for path in paths if lines else ():
        for line in lines:
            if f"'{path}'" in line:
                errors[path] = line.rpartition(": ")[2]
    return errors
