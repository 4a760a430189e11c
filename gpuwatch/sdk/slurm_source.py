"""What Slurm knows, asked through its own commands: nodes, jobs, one of either, and the day's ended tries.

As JSON where the release offers it (`sinfo` and `squeue` from 21.08, `scontrol` from 23.02), else as text. Where the
JSON of a release that should offer it cannot be used (a build without the plugin) but its text can, text is used for a
while: one answer that was cut off must not make us read less exactly for ever.
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
TEXT_ANSWERS = 240  # then JSON is tried again; ten minutes at the usual pace
_ALL = ("--local", "--all")  # of a federation only this cluster; hidden partitions too
_TEXT = (("scontrol", *_ALL, "-o", "show", "node"), ("scontrol", *_ALL, "-o", "show", "job"))
_OLD_JSON = (("sinfo", *_ALL, "--json"), ("squeue", *_ALL, "--json"))
_JSON = (("scontrol", *_ALL, "show", "node", "--json"), ("scontrol", *_ALL, "show", "job", "--json"))


class Source:
    """Every method raises `SchedulerError` where there is no true answer."""

    def __init__(self, commands: Commands, form: Form) -> None:
        self._commands = commands
        self._form = form
        self._json: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._settled = form == "text"
        self._text_answers = 0  # that are still to be asked for before JSON is tried again
        self._trouble = ""

    def nodes(self) -> tuple[Node, ...]:
        """Every node of slurm.conf."""
        return self._read(0, slurm_nodes.from_json, slurm_nodes.from_text)

    def jobs(self) -> tuple[Job, ...]:
        """Every job that the controller remembers."""
        return self._read(1, slurm_jobs.from_json, slurm_jobs.from_text)

    def node(self, slot: str) -> Node:
        """One node, right now. What is no single node's name (`ALL`, `gpu[1-9]`) is refused."""
        if re.fullmatch(r"[A-Za-z0-9._-]+", slot):
            try:
                found = slurm_nodes.from_text(self._commands.run(*_TEXT[0], slot))
            except Refused as error:
                if "not found" not in error.said.lower():
                    raise
                found = ()
            if len(found) == 1 and found[0].name == slot:
                return found[0]
        raise SchedulerError(
            f"Slurm has no node named {slot!r}", next_step="slots are node names of slurm.conf; see `sinfo -N`"
        )

    def job(self, attempt: str) -> Job | None:
        """The job in that very try, still at work; None: that try is over. `attempt`: `JOBID.RESTARTS`, or `JOBID`."""
        number, dot, _ = attempt.partition(".")
        if re.fullmatch(r"[0-9]{1,10}", number) is None:
            raise SchedulerError(f"{attempt!r} is no job of Slurm's", next_step="its snapshot names the jobs")
        try:
            jobs = self._read(1, slurm_jobs.from_json, slurm_jobs.from_text, number)
            if not any(str(found.leader or found.id) == number for found in jobs):  # that a list lacks it is no answer
                jobs = slurm_jobs.from_text(self._commands.run(*_TEXT[1], number))
        except SchedulerError as error:
            if "invalid job id" in f"{error.what} {error.why}".lower():
                return None  # over for longer than MinJobAge
            raise
        for found in jobs:  # an array's id shows all its tasks, and the JSON of old releases every job
            if str(found.leader or found.id) == number and found.running and (not dot or found.attempt == attempt):
                return found
        return None

    def _read(self, which: int, from_json: Callable[[str], T], from_text: Callable[[str], T], name: str = "") -> T:
        """`name`: of one job. As JSON also then: in text its owner could pretend things by its name and comment."""
        only = (name,) if name else ()
        json = self._offered()
        trouble: SchedulerError | None = None
        if json is not None:
            try:
                words = json[which]
                return from_json(self._commands.run(*words[:-1], *(only if json is _JSON else ()), words[-1]))
            except TooSlow:
                raise
            except SchedulerError as error:
                if self._form == "json":
                    raise
                trouble = error
        answer = from_text(self._commands.run(*_TEXT[which], *only))
        if trouble is not None:
            if trouble.what != self._trouble:
                LOG.warning("Slurm's JSON cannot be used, its text can: %s", trouble.what)
            self._trouble, self._text_answers = trouble.what, TEXT_ANSWERS
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
        if self._text_answers:
            self._text_answers -= 1
            return None
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
        self._failed = 0  # how often in a row
        self._error = ""
        self._tries: list[Try] = []

    def tries(self, newest: Mapping[int, tuple[int, bool]], *, hurry: bool) -> list[Try]:
        """The last good answer, asked for anew every so often, sooner if a try has just ended (`hurry`), and ever more
        seldom while there is none: a database that hangs holds up everything else that is asked."""
        now_ns = self._clock.monotonic_ns()
        wait_s = self._pause_s if hurry and not self._failed else self._interval_s * 2 ** min(self._failed, 4)
        wait_ns = int(wait_s * 1e9)
        if not self._is_there() or (self._asked_ns is not None and now_ns - self._asked_ns < wait_ns):
            return self._tries
        self._asked_ns = now_ns
        try:
            answer = self._commands.run(*slurm_history.COMMAND)
        except SchedulerError as error:
            if error.what != self._error:
                LOG.warning("the accounting database cannot be asked: %s", error.what)
            self._error, self._failed = error.what, self._failed + 1
        else:
            self._error, self._failed = "", 0
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
