"""The driver given back on request, so that it can be unloaded: a file in the state directory asks for it.

While the file is there no source has a child process: those are the sources that call a driver. It is of this boot and
ends by itself, so that nobody has to remember it. Whoever may write the state directory may ask: root, and the agent's
own user.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from gpuwatch.errors import UsageError
from gpuwatch.model.moment import Moment
from gpuwatch.sdk.small_file import from_json, small_file

log = logging.getLogger(__name__)

NS = 10**9
MOST_BYTES = 4096
USUAL_S = 3600.0
WORDS_CHARACTERS = 200


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the file."""

    asked_monotonic_ns: int  # still to come: another boot, in which the driver was loaded anew
    for_s: float = USUAL_S
    because: str = ""


class ReleaseFile:
    """One state directory's file, for who asks and for the agent that obeys."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "release"
        self._name = str(self._path)
        self._seen: tuple[int, int] | None = None  # inode, mtime
        self._request: Request | None = None

    def ask(self, now: Moment, for_s: float = USUAL_S, because: str = "") -> None:
        """Ask for it. Raises `UsageError` where the file cannot be written."""
        request = Request(asked_monotonic_ns=now.monotonic_ns, for_s=for_s, because=because[:WORDS_CHARACTERS])
        words = msgspec.json.encode(request)
        draft = self._path.with_name(f".release.{os.getpid()}")
        try:
            # As root into a folder that is not root's: no link that somebody put there is followed.
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                os.fchmod(file, 0o644)
                os.write(file, words)
            finally:
                os.close(file)
            draft.rename(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise UsageError(
                f"the release cannot be asked for in {self._path.parent}",
                why=str(error.strerror or error),
                next_step="ask as root or as the agent's user, with the agent's own settings file",
            ) from error

    def take_back(self) -> bool:
        """End it; False: there was none. Raises `UsageError` where the file cannot be removed."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UsageError(
                f"{self._path} cannot be removed",
                why=str(error.strerror or error),
                next_step="ask as root or as the agent's user",
            ) from error
        return True

    def reason(self, now: Moment) -> str:
        """Why the driver must not be held now; empty: it may be."""
        try:
            status = os.lstat(self._name)  # at every turn of the agent's loop
        except OSError:
            if self._request is not None:
                log.info("the release of the driver is over: it is taken again")
            self._seen = self._request = None
            return ""
        if (status.st_ino, status.st_mtime_ns) != self._seen:
            self._seen = status.st_ino, status.st_mtime_ns
            self._look()
        if self._request is None:
            return ""
        age_ns = now.monotonic_ns - self._request.asked_monotonic_ns
        if not 0 <= age_ns < self._request.for_s * NS:
            with contextlib.suppress(OSError):
                self._path.unlink()
            return ""
        minutes = self._request.for_s / 60
        because = f": {self._request.because}" if self._request.because else ""
        return f"released on request{because} (for {minutes:g} min at most; `gpuwatch agent resume` ends it)"

    def _look(self) -> None:
        self._request = None
        try:
            self._request = _read(self._path)
        except (OSError, ValueError) as error:
            log.error("%s is not obeyed: %s; ask with `gpuwatch agent release`", self._path, error)
            return
        log.info("the driver is released on request, for %g s at most: %s", self._request.for_s,
                    self._request.because or "no reason given")  # fmt: skip


def _read(path: Path) -> Request:
    """Raises where it is no plain small file of root or of this process's user."""
    return from_json(small_file(path, MOST_BYTES, owners=(0, os.geteuid())), Request)
