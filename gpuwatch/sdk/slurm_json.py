"""`sacct --json`: one document, read job by job, so that its size does not matter.

Shapes: Slurm 22.05 (data parser v0.0.38: plain numbers, one state) and 24.11 (v0.0.42: `{"set", "infinite", "number"}`,
a list of states), and what lies between. Its times are unix seconds: no zone is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from gpuwatch.errors import HistoryError
from gpuwatch.sdk.slurm_fold import Fold, Record, waiting_tasks
from gpuwatch.sdk.slurm_states import state_of_list
from gpuwatch.sdk.slurm_tres import counted

_CHUNK = 1 << 20  # characters
_ONE_JOB_MAX = 64 << 20  # characters; a job of more is no job
_STRETCH = 2_000
_SPACE = " \t\r\n"


class Cut(Exception):
    """The document ends in the middle."""


def read_document(read: Callable[[int], str], fold: Fold, progress: Callable[[int], None]) -> tuple[str, ...]:
    """Every job into the fold; what the document says of itself (errors of sacct, a cut end) as notes.

    Raises `HistoryError` if it is no document of sacct's.
    """
    text = _Text(read)
    notes: list[str] = []
    number = 0
    try:
        while text.peek():
            for key in text.members():
                if key != "jobs":
                    value = text.value()
                    if key == "errors" and value:
                        notes.append(f"sacct itself reported errors: {json.dumps(value)[:200]}")
                    continue
                for job in text.items():
                    number += 1
                    fold.rows += 1
                    try:
                        fold.add(number, record_of(job, fold.asked.keys))
                    except (ValueError, TypeError, KeyError, AttributeError) as error:
                        fold.reject(number, str(error) or type(error).__name__)
                    if number % _STRETCH == 0:
                        progress(fold.rows)
    except Cut:
        if not text.lists:
            raise HistoryError("this is no JSON that sacct writes", why="it ends early", next_step=_AGAIN) from None
        notes.append(f"The document ends in the middle, after {number:,} jobs: what follows them is missing.")
    except ValueError as error:
        if not text.lists:
            raise HistoryError("this is no JSON that sacct writes", why=str(error), next_step=_AGAIN) from None
        notes.append(f"After {number:,} jobs the document is broken ({error}): what follows is missing.")
    if not text.lists:
        raise HistoryError("the document has no list `jobs`", next_step=_AGAIN)
    return tuple(notes)


_AGAIN = "make it with: sacct --allusers --duplicates --json --starttime 2026-11-01 --endtime 2026-12-01"


class _Text:
    """A window over the document, just large enough for the value that is being read."""

    def __init__(self, read: Callable[[int], str]) -> None:
        self._read = read
        self._held = ""
        self._at = 0
        self.lists = 0  # begun to be read
        self._decode = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            while self._at < len(self._held) and self._held[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._held):
                return self._held[self._at]
            if not self._more():
                return ""

    def value(self) -> Any:
        """The next whole value. Raises `Cut`, or `ValueError` for what is no JSON."""
        self.peek()
        while True:
            try:
                found, end = self._decode(self._held, self._at)
            except (ValueError, RecursionError) as error:
                # Cut by the window, or broken? Only more text can tell; a broken one is told after a little of it.
                beyond = getattr(error, "pos", self._at) < len(self._held) - 2 * _CHUNK
                if beyond or isinstance(error, RecursionError) or len(self._held) - self._at > _ONE_JOB_MAX:
                    raise ValueError(str(error)) from None
                if not self._more():
                    raise Cut from None
                continue
            if end == len(self._held) and self._more():
                continue  # a number at the window's end may go on
            self._at = end
            return found

    def members(self) -> Iterator[str]:
        """The keys of an object; the caller reads each value."""
        self._expect("{")
        if self.peek() == "}":
            self._at += 1
            return
        while True:
            key = self.value()
            self._expect(":")
            self.peek()
            yield str(key)
            if self._one_of(",", "}") == "}":
                return

    def items(self) -> Iterator[Any]:
        """The members of a list, one after the other."""
        self._expect("[")
        self.lists += 1
        if self.peek() == "]":
            self._at += 1
            return
        while True:
            yield self.value()
            if self._one_of(",", "]") == "]":
                return

    def _one_of(self, *marks: str) -> str:
        found = self.peek()
        if not found:
            raise Cut
        if found not in marks:
            raise ValueError(f"{found!r} stands where {' or '.join(marks)} should")
        self._at += 1
        return found

    def _expect(self, mark: str) -> None:
        self._one_of(mark)

    def _more(self) -> bool:
        chunk = self._read(_CHUNK)
        if not chunk:
            return False
        self._held = self._held[self._at :] + chunk
        self._at = 0
        return True


def record_of(job: Any, keys: tuple[str, ...]) -> Record:
    """One member of `jobs`. Raises `ValueError`, `TypeError`, `KeyError` or `AttributeError` for what is none."""
    if not isinstance(job, dict):
        raise ValueError("it is no object")
    raw = _number(job.get("job_id"))
    if raw is None:
        raise ValueError("it has no job_id")
    times = job["time"]
    state = job["state"]["current"]
    name, waiting = _name(job, raw)
    submit, start, end = (_number(times.get(key)) or 0 for key in ("submission", "start", "end"))
    return Record(
        job=name,
        raw=str(raw),
        state=state_of_list([state] if isinstance(state, str) else [str(one) for one in state]),
        submit=str(submit),
        start=str(start),
        submits=(submit,) if submit else (),
        begins=(start,) if start else (),
        ends=(end,) if end else (),
        elapsed_s=_number(times.get("elapsed")),
        suspended_s=_number(times.get("suspended")) or 0,
        gpus=_gpus(job),
        keys=tuple(str(job.get(key) or "") for key in keys),
        cluster=str(job.get("cluster") or ""),
        jobs=waiting,
    )


def _name(job: dict[str, Any], raw: int) -> tuple[str, int]:
    """As the text form names it, and for how many waiting tasks it stands."""
    het = job.get("het") or {}
    master, offset = _number(het.get("job_id")), _number(het.get("job_offset"))
    if master:
        return f"{master}+{offset or 0}", 1
    array = job.get("array") or {}
    of, task = _number(array.get("job_id")), _number(array.get("task_id"))
    if of and task is None and array.get("task"):
        name = f"{of}_[{array['task']}]"
        return name, waiting_tasks(name)
    return (f"{of}_{task}" if of and task is not None else str(raw)), 1


def _gpus(job: dict[str, Any]) -> int | str:
    allocated = (job.get("tres") or {}).get("allocated")
    if not allocated:
        return "it ran, but the allocated TRES are empty"
    pairs = []
    for one in allocated:
        name = str(one.get("name") or "").lower()
        if str(one.get("type")).lower() == "gres" and (name == "gpu" or name.startswith("gpu:")):
            count = _number(one.get("count"))
            if count is None:
                return f"the count of its GPUs reads {one.get('count')!r}"
            pairs.append((name.partition(":")[2], count))
    return counted(pairs)


def _number(value: Any) -> int | None:
    """22.05 writes 7, 24.11 `{"set": true, "infinite": false, "number": 7}`; None: not set."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if value is None or isinstance(value, bool):
        return None
    number = int(value)
    if number < 0:
        raise ValueError(f"a number reads {number}")
    return number
