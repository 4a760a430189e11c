"""A sacct dump in text, line by line: `sacct --parsable2`, or the same with another delimiter, quoted or not.

The commonest row (a job that ended, of one record, on a day without a change of clocks) is counted in the loop itself;
every other goes through `Record` and `Fold.add`. Both ways give the same sums: that is a test.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from datetime import tzinfo
from operator import itemgetter

from gpuwatch.errors import HistoryError
from gpuwatch.sdk.slurm_columns import COMMAND, Columns, columns_of, find_delimiter, is_header
from gpuwatch.sdk.slurm_fold import Fold, Record, waiting_tasks
from gpuwatch.sdk.slurm_states import JobState, state_of_text
from gpuwatch.sdk.slurm_times import Hours, moments, seconds, within_hour
from gpuwatch.sdk.slurm_tres import gpus_of_gres, gpus_of_tres

_LOOK_AT_LINES = 20  # for a header: warnings and a prompt may stand before it
_CACHED = 50_000  # different values of one column; then anew, so that memory stays flat
_JOB = re.compile(r"\d+[\d_+\[\],:%.\-]*", re.ASCII)
_PIECE = 1 << 20  # characters read at once
_LINE_MAX = 16 << 20


def read_dump(
    read: Callable[[int], str], fold: Fold, zone: tzinfo, progress: Callable[[int], None], *, short_cut: bool = True
) -> None:
    """Every row into the fold; `read(n)` gives about n characters more, or none at the end.

    Raises `HistoryError` where there is no header, or it lacks what is needed.
    """
    stretches = _stretches(read)
    lines = next(stretches, [])
    at, columns = _header(lines, fold)
    reader = Reader(columns, fold, zone)
    number = at + 1
    lines = lines[at:]
    while True:
        reader.take(lines, number, short_cut=short_cut)
        number += len(lines)
        progress(fold.rows)
        if (following := next(stretches, None)) is None:
            return
        lines = following


def _stretches(read: Callable[[int], str]) -> Iterator[list[str]]:
    """Whole lines, some thousand at a time: splitting a large piece at once is faster than reading line by line."""
    held = ""
    while piece := read(_PIECE):
        held += piece
        if len(held) > _LINE_MAX and "\n" not in held:
            raise HistoryError(f"a line of the dump is longer than {_LINE_MAX:,} characters", next_step=COMMAND)
        lines = held.split("\n")
        held = lines.pop()
        if lines:
            yield [line.rstrip("\r") for line in lines] if "\r" in piece else lines
    if held:
        yield [held.rstrip("\r")]


def _header(lines: list[str], fold: Fold) -> tuple[int, Columns]:
    asked, first = fold.asked, ""
    number = 0
    for number, line in enumerate(lines[:_LOOK_AT_LINES], start=1):
        text = line.strip(" \x00")
        delimiter = asked.delimiter or find_delimiter(text)
        if delimiter and is_header(text, delimiter):
            return number, columns_of(text, delimiter, asked.keys)
        words = text.lower().split()
        if "jobid" in words and "state" in words:
            raise HistoryError(
                "this is sacct's table for people, which cuts its columns",
                next_step=f"ask for --parsable2:\n  {COMMAND}",
            )
        first = first or text
    if not first:
        raise HistoryError("the dump is empty", why="sacct wrote nothing", next_step=f"make it with\n  {COMMAND}")
    raise HistoryError(
        "the dump has no header: "
        + ("its only line does not name" if number == 1 else f"none of its first {number} lines names")
        + " JobID and State"
        + (f" between {asked.delimiter!r}" if asked.delimiter else ""),
        why=f"the first is {first[:120]!r}",
        next_step="leave --noheader out" + (", or --delimiter" if asked.delimiter else "") + f":\n  {COMMAND}",
    )


class Reader:
    """Reads rows of one header; a second header in the middle (two dumps in one file) sets new columns."""

    def __init__(self, columns: Columns, fold: Fold, zone: tzinfo) -> None:
        self._fold = fold
        self._zone = zone
        self._hours = Hours(zone)
        self._within = within_hour()
        self._states: dict[str, JobState] = {}
        self._names: dict[str, str] = {}  # of end states only: what the short cut may take
        self._gpus: dict[str, int] = {}
        self._set(columns)

    def _set(self, columns: Columns) -> None:
        self._columns = columns
        # Without these the short cut would have to guess, or could not tell a record from its repetition.
        wanted = (columns.submit, columns.end, columns.elapsed_raw, columns.tres)
        self._short = min(wanted) >= 0 and columns.cluster < 0
        self._pick = itemgetter(
            columns.job, columns.raw, columns.state, columns.submit, columns.start, *wanted[1:]
        )  # fmt: skip
        self._keys: Callable[[list[str]], tuple[str, ...] | str] = (
            itemgetter(*columns.keys) if columns.keys else lambda _: ()
        )

    def take(self, lines: Iterable[str], first: int, *, short_cut: bool) -> None:
        """Rows, the first of which stands in line `first` of the file."""
        fold, hours, within, names, gpus_of = self._fold, self._hours, self._within, self._names, self._gpus
        sums, cuts, pages = fold.sums, fold.cuts, fold.pages
        earliest, latest, since, until = fold.first, fold.last, fold.since, fold.until
        steps = rows = gpuless = 0
        width, delimiter, pick, keys_of, job_at = (
            self._columns.width,
            self._columns.delimiter,
            self._pick,
            self._keys,
            self._columns.job,
        )
        may = self._short and short_cut
        plain = delimiter == "|" and not self._columns.quoted  # a quote is a character of a name
        number = first - 1
        for line in lines:
            number += 1
            cells = line.split(delimiter)
            if may and len(cells) == width and (plain or '"' not in line):
                if "." in cells[job_at] and "[" not in cells[job_at]:
                    steps += 1
                    rows += 1
                    continue
                try:
                    job, raw, state, submit, start, end_text, elapsed, tres = pick(cells)
                    if job == raw or ("+" not in job and "[" not in job):
                        begin = hours[start[:13]] + within[start[13:]]
                        held = hours[end_text[:13]] + within[end_text[13:]] - begin
                        name = names[state]
                        gpus = gpus_of[tres]
                        at = bisect_right(cuts, begin)
                        end = begin + held
                        if held == int(elapsed) >= 0 and end <= cuts[at] and raw.isdecimal() and len(raw) < 11:
                            identity = int(raw)
                            page = pages[identity >> 7]
                            if not page[identity & 127]:
                                page[identity & 127] = hash((submit, start, "")) & 0xFFFFFFFF or 1
                                key = (at, name, keys_of(cells))
                                entry = sums.get(key)
                                if entry is None:
                                    entry = sums[key] = [0, 0]
                                entry[0] += 1
                                entry[1] += gpus * held
                                if not gpus and since <= begin < until:
                                    gpuless += 1
                                if begin < earliest:
                                    earliest = begin
                                if end > latest:
                                    latest = end
                                rows += 1
                                continue
                except (KeyError, ValueError):
                    pass
            fold.first, fold.last = earliest, latest
            self._slowly(number, line, cells)
            earliest, latest = fold.first, fold.last
            if self._columns.width != width or self._columns.job != job_at or self._pick is not pick:
                width, delimiter, job_at = self._columns.width, self._columns.delimiter, self._columns.job
                pick, keys_of, may = self._pick, self._keys, self._short and short_cut
                plain = delimiter == "|" and not self._columns.quoted
        fold.first, fold.last = earliest, latest
        fold.steps += steps
        fold.rows += rows
        fold.gpuless += gpuless

    def _slowly(self, number: int, line: str, cells: list[str]) -> None:
        line = line.strip("\x00")
        if not line.strip():
            return
        columns = self._columns
        if is_header(line, columns.delimiter):
            self._set(columns_of(line, columns.delimiter, self._fold.asked.keys))
            return
        self._fold.rows += 1
        try:
            cells = _whole(line, cells, columns)
            if "." in cells[columns.job] and "[" not in cells[columns.job]:
                self._fold.steps += 1
                return
            self._fold.add(number, self._record(cells))
        except (ValueError, csv.Error) as error:
            self._fold.reject(number, str(error))

    def _record(self, cells: list[str]) -> Record:
        columns = self._columns
        text = [*(cell.strip() for cell in cells), ""]  # -1 reads the empty last: a column that is not there
        job = text[columns.job]
        if _JOB.fullmatch(job) is None:
            raise ValueError(f"the job id reads {job[:40]!r}")
        elapsed = seconds(text[columns.elapsed_raw]) if text[columns.elapsed_raw] else seconds(text[columns.elapsed])
        return Record(
            job=job,
            raw=text[columns.raw],
            state=self._state(text[columns.state], cells[columns.state]),
            submit=text[columns.submit],
            start=text[columns.start],
            submits=_maybe(text[columns.submit], self._zone),
            begins=_named("Start", text[columns.start], self._zone),
            ends=_named("End", text[columns.end], self._zone),
            elapsed_s=elapsed,
            suspended_s=seconds(text[columns.suspended]) or 0,
            gpus=self._allocated(text[columns.tres], text[columns.gres], cells),
            keys=tuple(cells[at] for at in columns.keys),
            cluster=text[columns.cluster],
            jobs=waiting_tasks(job),
        )

    def _state(self, text: str, raw: str) -> JobState:
        state = self._states.get(text)
        if state is None:
            state = state_of_text(text)
            if len(self._states) >= _CACHED:
                self._states.clear()
                self._names.clear()
            self._states[text] = state
        if (
            state.group in ("completed", "cancelled", "failed", "preempted", "requeued", "other")
            and raw not in self._names
        ):
            self._names[raw] = state.name
            self._fold.groups[state.name] = state.group
        return state

    def _allocated(self, tres: str, gres: str, cells: list[str]) -> int | str:
        try:
            if tres or not gres:
                gpus = gpus_of_tres(tres) if self._columns.tres >= 0 else gpus_of_gres(gres)
            else:
                gpus = gpus_of_gres(gres)
        except ValueError as error:
            return str(error)
        if tres:
            if len(self._gpus) >= _CACHED:
                self._gpus.clear()
            self._gpus[cells[self._columns.tres]] = gpus
        return gpus


def _whole(line: str, cells: list[str], columns: Columns) -> list[str]:
    """The row's cells: quotes undone, a delimiter inside the only free text put back. Raises `ValueError`."""
    if (
        '"' in line
        and len(columns.delimiter) == 1
        and (columns.quoted or columns.delimiter != "|" or len(cells) != columns.width)
    ):
        quoted = next(csv.reader([line], delimiter=columns.delimiter))
        if len(quoted) == columns.width:
            return quoted
    surplus = len(cells) - columns.width
    if surplus > 0 and columns.free_text >= 0:
        at = columns.free_text
        return [*cells[:at], columns.delimiter.join(cells[at : at + surplus + 1]), *cells[at + surplus + 1 :]]
    if surplus:
        raise ValueError(f"it has {len(cells)} fields, the header {columns.width}")
    return cells


def _named(column: str, text: str, zone: tzinfo) -> tuple[int, ...]:
    try:
        return moments(text, zone)
    except ValueError:
        raise ValueError(f"{column} reads {text[:40]!r}") from None


def _maybe(text: str, zone: tzinfo) -> tuple[int, ...]:
    try:
        return moments(text, zone)
    except ValueError:
        return ()
