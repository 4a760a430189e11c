"""Slurm's own commands, run with a deadline: what they print, or a `SchedulerError` that says why there is nothing.

A controller that hangs lets its clients hang too, and a client that is given up must not stay behind: each runs in a
process group of its own, which is killed whole. Times are asked for as seconds of the epoch (`SLURM_TIME_FORMAT`), so
that no time zone and no summer time comes in; what an operator's shell sets for these commands is left out.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time

from gpuwatch.errors import SchedulerError

MAX_OUTPUT_BYTES = 512 * 1024 * 1024
_PIECE_BYTES = 64 * 1024  # also: of complaints that much is kept
_PASSED_ON = ("PATH", "HOME", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "MUNGE_SOCKET", "LD_LIBRARY_PATH")
_PERMANENT = (  # Slurm's words for "no": the same call would be refused again
    "invalid user id",
    "access/permission denied",
    "invalid job id",
    "invalid node name",
    "not found",
    "requested operation is presently disabled",
    "job/step already completing or completed",
    "you must specify a reason",
    "not authorized",
)


class Refused(SchedulerError):
    """The command ran and said no. `said`: its own words."""

    def __init__(self, what: str, *, said: str, retry: bool, next_step: str) -> None:
        super().__init__(what, retry=retry, why="" if said in what else said, next_step=next_step)
        self.said = said


class TooSlow(SchedulerError):
    """No answer within the deadline. What was asked for may have been done all the same."""


class Commands:
    """Where Slurm's commands are found, and how long each may take."""

    def __init__(self, *, timeout_s: float, configuration: str = "") -> None:
        self._timeout_s = timeout_s
        self._configuration = configuration

    def run(self, *words: str) -> str:
        """What the command printed. `SchedulerError`: not there, too slow (retry), or it said no (`Refused`)."""
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment(),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise SchedulerError(
                f"{words[0]} cannot be run: {getattr(error, 'strerror', None) or error}",
                retry=isinstance(error, OSError),
                next_step="install Slurm's client commands on the aggregator's machine, in its PATH",
            ) from error
        try:
            out, err = _read(process, time.monotonic() + self._timeout_s)
        except subprocess.TimeoutExpired:
            raise TooSlow(
                f"`{' '.join(words[:8])}` gave no answer within {self._timeout_s:g} s",
                retry=True,
                why="slurmctld or munged hangs, is starting or too busy, or no slurm.conf is where it is looked for",
                next_step="look at `scontrol ping`; if it is only slow, raise scheduler.slurm.timeout_s",
            ) from None
        finally:
            _end(process)
        complaint = (
            err if err.strip() or not process.returncode else out[-_PIECE_BYTES:]
        )  # "Node x not found": in either
        said = " ".join(complaint.decode(errors="replace").split())[:300]
        if process.returncode != 0:
            retry = not any(words in said.lower() for words in _PERMANENT)
            raise Refused(
                f"`{' '.join(words[:8])}` failed: {said or f'exit code {process.returncode}'}",
                said=said,
                retry=retry,
                next_step="see docs/slurm.md for the rights that gpuwatch needs, and `scontrol ping`",
            )
        return _text(out)

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        if self._configuration:
            kept["SLURM_CONF"] = self._configuration
        return kept | {"LC_ALL": "C.UTF-8", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}


def _text(raw: bytes) -> str:
    """A byte that is no UTF-8 as `?`: as the heartbeat writes the same job's name."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()


def _read(process: subprocess.Popen[bytes], until_s: float) -> tuple[bytes, bytes]:
    """All that it prints and how it complains, then its end. Raises `TimeoutExpired`, and `SchedulerError` as soon as
    it is more than any list of nodes or jobs: what never ends must not fill this machine's memory first."""
    out, err = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for pipe, held in ((process.stdout, out), (process.stderr, err)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, held)
        while selector.get_map():
            if (left_s := until_s - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired("", 0)
            for key, _ in selector.select(left_s):
                if not (piece := os.read(key.fd, _PIECE_BYTES)):
                    selector.unregister(key.fileobj)
                elif key.data is out or len(err) < _PIECE_BYTES:
                    key.data.extend(piece)
            if len(out) > MAX_OUTPUT_BYTES:
                raise SchedulerError(f"more than {MAX_OUTPUT_BYTES} bytes are no list of nodes or jobs", retry=True)
    process.wait(max(until_s - time.monotonic(), 0.0))
    return bytes(out), bytes(err)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of one that is given up stays behind, children included."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)  # one in D state is left to init
