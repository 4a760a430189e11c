"""Slurm's own commands, run with a deadline: what they print, or a `SchedulerError` that says why there is nothing.

A controller that hangs lets its clients hang too, and a client that is given up must not stay behind: each runs in a
process group of its own, which is killed whole. Times are asked for as seconds of the epoch (`SLURM_TIME_FORMAT`), so
that no time zone and no summer time comes in; what an operator's shell sets for these commands is left out.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

from gpuwatch.errors import SchedulerError

MAX_OUTPUT_BYTES = 512 * 1024 * 1024
_PASSED_ON = ("PATH", "HOME", "SLURM_CONF", "SLURM_JWT", "MUNGE_SOCKET", "LD_LIBRARY_PATH")
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
        super().__init__(what, retry=retry, why=said, next_step=next_step)
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
        except OSError as error:
            raise SchedulerError(
                f"{words[0]} cannot be run: {error.strerror}",
                retry=True,
                next_step="install Slurm's client commands on the aggregator's machine, in its PATH",
            ) from error
        try:
            out, err = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            raise TooSlow(
                f"`{' '.join(words[:5])}` gave no answer within {self._timeout_s:g} s",
                retry=True,
                why="slurmctld hangs, is starting, or is too busy",
                next_step="look at `scontrol ping`; if it is only slow, raise scheduler.slurm.timeout_s",
            ) from None
        finally:
            _end(process)
        said = " ".join(err.decode(errors="replace").split())[:300]
        if process.returncode != 0:
            retry = not any(words in said.lower() for words in _PERMANENT)
            raise Refused(
                f"`{' '.join(words[:5])}` failed: {said or f'exit code {process.returncode}'}",
                said=said,
                retry=retry,
                next_step="see docs/slurm.md for the rights that gpuwatch needs, and `scontrol ping`",
            )
        if len(out) > MAX_OUTPUT_BYTES:
            raise SchedulerError(f"{words[0]} printed {len(out)} bytes: that is no list of nodes or jobs", retry=True)
        return out.decode(errors="replace")

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        if self._configuration:
            kept["SLURM_CONF"] = self._configuration
        return kept | {"LC_ALL": "C.UTF-8", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}


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
