"""What Slurm knows, asked through its own commands: nodes, jobs, one of either, and the day's ended tries.

As JSON where the release offers it (`sinfo` and `squeue` from 21.08, `scontrol` from 23.02), else as text. Where the
JSON of a release that should offer it cannot be used (a build without the plugin) but its text can, text is used.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from gpuwatch.clock import Clock
from gpuwatch.errors import SchedulerError
from gpuwatch.sdk import slurm_history, slurm_jobs, slurm_nodes
from gpuwatch.sdk.slurm_command import Commands, Refused, TooSlow
from gpuwatch.sdk.slurm_history import Try
from gpuwatch.sdk.slurm_jobs import Job
from gpuwatch.sdk.slurm_nodes import Node

T = TypeVar("T")
Form = Literal["auto", "json", "text"]
LOG = logging.getLogger("gpuwatch.slurm")
_TEXT = (("scontrol", "--all", "-o", "show", "node"), ("scontrol", "--all", "-o", "show", "job"))
_OLD_JSON = (("sinfo", "--all", "--json"), ("squeue", "--all", "--json"))  # --all: hidden partitions too
_JSON = (("scontrol", "--all", "show", "node", "--json"), ("scontrol", "--all", "show", "job", "--json"))


class Source:
    """Every method raises `SchedulerError` where there is no true answer."""

    def __init__(self, commands: Commands, form: Form) -> None:
        self._commands = commands
        self._form = form
        self._json: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._settled = form == "text"

    def nodes(self) -> tuple[Node, ...]:
        """Every node of slurm.conf."""
        return self._read(0, slurm_nodes.from_json, slurm_nodes.from_text)

    def jobs(self) -> tuple[Job, ...]:
        """Every job that the controller remembers."""
        return self._read(1, slurm_jobs.from_json, slurm_jobs.from_text)

    def node(self, slot: str) -> Node:
        """One node, right now. What is no single node's name (`ALL`, `gpu[1-9]`) is refused."""
        if re.fullmatch(r"[A-Za-z0-9._-]+", slot):
            found = slurm_nodes.from_text(self._commands.run(*_TEXT[0], slot))
            if len(found) == 1 and found[0].name == slot:
                return found[0]
        raise SchedulerError(
            f"Slurm has no node named {slot!r}", next_step="slots are node names of slurm.conf; see `sinfo -N`"
        )

    def job(self, attempt: str) -> Job | None:
        """The job in that very try, still at work; None: that try is over. `attempt`: `JOBID.RESTARTS`, or `JOBID`."""
        number, dot, _ = attempt.partition(".")
        if not number.isdigit():
            raise SchedulerError(f"{attempt!r} is no job of Slurm's", next_step="its snapshot names the jobs")
        try:
            answer = self._commands.run(*_TEXT[1], number)
        except Refused as error:
            if "invalid job id" in error.said.lower():
                return None  # over for longer than MinJobAge
            raise
        for found in slurm_jobs.from_text(answer):  # an array's id shows all its tasks
            if str(found.leader or found.id) == number and found.running and (not dot or found.attempt == attempt):
                return found
        return None

    def _read(self, which: int, from_json: Callable[[str], T], from_text: Callable[[str], T]) -> T:
        json = self._offered()
        trouble: SchedulerError | None = None
        if json is not None:
            try:
                return from_json(self._commands.run(*json[which]))
            except TooSlow:
                raise
            except SchedulerError as error:
                if self._form == "json":
                    raise
                trouble = error
        answer = from_text(self._commands.run(*_TEXT[which]))
        if trouble is not None:
            LOG.warning("Slurm's JSON cannot be used, its text can: %s", trouble.what)
            self._json = None
        return answer

    def _offered(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The JSON commands for nodes and jobs; None: none."""
        if not self._settled:
            said = self._commands.run("scontrol", "--version")
            version = re.search(r"(\d+)\.(\d+)", said)
            if version is None:
                raise SchedulerError(f"`scontrol --version` makes no sense: {said[:80]!r}", retry=True)
            release = (int(version[1]), int(version[2]))
            if release >= (23, 2):
                self._json = _JSON
            elif release >= (21, 8) or self._form == "json":
                self._json = _OLD_JSON
            self._settled = True
        return self._json


class History:
    """Ended tries out of the accounting database, where there is one. Its trouble is nobody else's."""

    def __init__(
        self, commands: Commands, clock: Clock, *, use: Literal["auto", "yes", "no"], interval_s: float, pause_s: float
    ) -> None:
        self._commands = commands
        self._clock = clock
        self._there: bool | None = {"auto": None, "yes": True, "no": False}[use]
        self._interval_s = interval_s
        self._pause_s = min(pause_s, interval_s)
        self._asked_ns: int | None = None
        self._error = ""
        self._tries: list[Try] = []

    def tries(self, newest: Mapping[int, tuple[int, bool]], *, hurry: bool) -> list[Try]:
        """The last good answer, asked for anew every so often, sooner if a try has just ended (`hurry`)."""
        now_ns = self._clock.monotonic_ns()
        wait_ns = int((self._pause_s if hurry else self._interval_s) * 1e9)
        if not self._is_there() or (self._asked_ns is not None and now_ns - self._asked_ns < wait_ns):
            return self._tries
        self._asked_ns = now_ns
        try:
            answer = self._commands.run(*slurm_history.COMMAND)
        except SchedulerError as error:
            if error.what != self._error:
                LOG.warning("the accounting database cannot be asked: %s", error.what)
            self._error = error.what
        else:
            self._error = ""
            self._tries = slurm_history.numbered(slurm_history.from_sacct(answer), newest)
        return self._tries

    def _is_there(self) -> bool:
        if self._there is None:
            try:
                said = self._commands.run("scontrol", "show", "config")
            except SchedulerError:
                return False
            self._there = re.search(r"AccountingStorageType\s*=\s*accounting_storage/slurmdbd", said) is not None
            age = re.search(r"MinJobAge\s*=\s*(\d+)", said)
            if not self._there:
                LOG.warning("Slurm keeps no accounting: a job's end is known for %s s only", age[1] if age else "some")
        return self._there
