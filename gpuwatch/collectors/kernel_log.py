"""What the kernel log says of GPUs: events, each told once, with the catalogue's verdict.

From this boot's first message on, not from the agent's start: an Xid may be older than the agent
(NVIDIA/NVSentinel#1532). An event's id is the same however often the log is read, so that a restart of the agent
repeats nothing. Repeats within a few seconds are one event with a count: a dying GPU prints the same line 800,000 times
(NVIDIA/NVSentinel#1120).
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gpuwatch.clock import Clock, SystemClock
from gpuwatch.collectors import Collector, Reading, Sample
from gpuwatch.errors import ProbeError
from gpuwatch.faults.event import Event
from gpuwatch.faults.incidents import weight
from gpuwatch.faults.interpreter import Interpreter
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.sdk.kernel_file import KernelFile
from gpuwatch.sdk.kernel_journal import KernelJournal
from gpuwatch.sdk.kernel_lines import Line, Source, this_boot_id
from gpuwatch.sdk.kernel_ring import KernelRing

TEXT_CHARACTERS = 400
FOLD_NS = 10 * 10**9  # repeats within one such stretch of time are one event
ONE_LOSS_NS = 60 * 10**9  # a lost GPU is told in up to three ways within a moment
URGENT_AGAIN_NS = 10 * 10**9  # the same fault asks to be sent at once no more often than this
MOST_REMEMBERED = 1024  # GPUs that a log can name: far more than a node has, far fewer than a forger can invent
SETTLED_NS = 60 * 10**9  # the cursor keeps this far behind: what was read may not have been sent yet
USUAL_FILES = ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to read. `auto`: /dev/kmsg, else the first readable of the usual log files."""

    enabled: bool = True
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    source: Literal["auto", "kmsg", "journal", "file"] = "auto"
    path: Path | None = None  # for `file`: the log; for `kmsg`: the device; for `journal`: the journalctl command
    cursor: Path | None = (
        None  # remembers over restarts what was read; without it the log is read again, to the same ids
    )

    def __post_init__(self) -> None:
        if self.source == "file" and self.path is None:
            raise ValueError('source = "file" needs a path')


class _Reader:
    def __init__(self, settings: Settings, clock: Clock, boot_id: str) -> None:
        self._settings = settings
        self._clock = clock
        self._boot_id = boot_id
        self._source: Source | None = None
        self._interpreter = Interpreter()
        self._interpreted_boot = boot_id
        self._last: Line | None = None
        self._losses: dict[str | None, tuple[int, str, bool]] = {}  # GPU -> when, boot, told in words only
        self._urgent_ns: dict[tuple[str | None, int | None], int] = {}
        self._unsettled: deque[tuple[int, str]] = deque()  # (monotonic ns, position) of readings with events
        self._written = self._saved_position()

    def fileno(self) -> int:
        """Readable as soon as the kernel says anything; -1 for a file that can only be looked at."""
        fileno = getattr(self._source, "fileno", None)
        return -1 if fileno is None else int(fileno())

    def read(self) -> Reading:
        """New events. A log that cannot be read is an answer: `readable` is false, and the gap says why."""
        source, why = self._opened()
        if source is None:
            return Reading(facts=KernelLogFacts(readable=False), gaps={"events": why})
        try:
            lines = source.read()
        except OSError as error:
            self._written = {"source": source.name, "boot_id": self._boot_id, "position": source.position()}
            self._let_go()
            raise ProbeError(f"the kernel log ({source.name}) broke off", why=str(error)) from error
        events = self._events(lines)
        now_ns = self._clock.monotonic_ns()
        if events:
            self._unsettled.append((now_ns, source.position()))
        self._settle(now_ns)
        facts = KernelLogFacts(readable=True, events=tuple(events), lost_count=source.take_lost(), source=source.name)
        return Reading(facts=facts, urgent=self._is_urgent(events, now_ns), more=source.behind)

    def close(self) -> None:
        """What was read within the last minute is read again by the next agent: it may not have been sent."""
        self._settle(self._clock.monotonic_ns())
        self._let_go()

    def _opened(self) -> tuple[Source | None, str]:
        if self._source is not None:
            return self._source, ""
        reasons: list[str] = []
        for open_source in self._candidates():
            try:
                self._source = open_source()
                return self._source, ""
            except OSError as error:
                reasons.append(f"{error.filename or 'journalctl'}: {error.strerror or error}")
        return None, "; ".join(reasons) + ". Let the agent read one of them (group adm, or CAP_SYSLOG for /dev/kmsg)"

    def _candidates(self) -> list[Callable[[], Source]]:
        wanted, path = self._settings.source, self._settings.path
        boot_id, clock = self._boot_id, self._clock

        def ring(at: Path) -> Callable[[], Source]:
            return lambda: KernelRing(at, boot_id=boot_id, after=self._after("kmsg"), clock=clock)

        def file(at: Path) -> Callable[[], Source]:
            return lambda: KernelFile(at, boot_id=boot_id, after=self._after("file"), clock=clock)

        if wanted == "file":
            assert path is not None
            return [file(path)]
        if wanted == "journal":
            command = str(path or "journalctl")
            return [lambda: KernelJournal(command, boot_id=boot_id, after=self._after("journal"), clock=clock)]
        device = ring(path or Path("/dev/kmsg"))
        return [device] if wanted == "kmsg" else [device, *map(file, map(Path, USUAL_FILES))]

    def _events(self, lines: list[Line]) -> list[KernelEvent]:
        found: dict[tuple[object, ...], KernelEvent] = {}
        for line in lines:
            if line.boot_id != self._interpreted_boot:
                self._interpreter, self._interpreted_boot = Interpreter(), line.boot_id
            self._last = line
            for number, event in enumerate(self._interpreter.hear(line.record)):
                self._add(found, event, line, number)
        if not lines and self._last is not None:  # nothing more comes: tell what was begun
            for number, event in enumerate(self._interpreter.flush(), start=1):
                self._add(found, event, self._last, number)
        return list(found.values())

    def _add(self, found: dict[tuple[object, ...], KernelEvent], event: Event, line: Line, number: int) -> None:
        if event.xid == 79 and self._told_already(event, line):
            return
        stretch = line.at_unix_ns // FOLD_NS
        key = (line.boot_id, stretch, event.fold_key(), event.pid)
        known = found.get(key)
        if known is None:
            found[key] = _kernel_event(event, line, number)
            return
        count = known.count + line.record.repeats
        worse = _kernel_event(event, line, number)
        if weight(event) > weight(known):
            known = msgspec.structs.replace(worse, id=known.id, at_unix_ns=known.at_unix_ns)
        found[key] = msgspec.structs.replace(known, count=count)

    def _told_already(self, event: Event, line: Line) -> bool:
        """An Xid 79 and the words about the same GPU around it are one fault."""
        if len(self._losses) > MOST_REMEMBERED:
            self._losses.clear()
        before = self._losses.get(event.pci)
        self._losses[event.pci] = (line.at_unix_ns, line.boot_id, event.inferred)
        if before is None or before[1] != line.boot_id or abs(line.at_unix_ns - before[0]) > ONE_LOSS_NS:
            return False
        return event.inferred or before[2]

    def _is_urgent(self, events: Iterable[KernelEvent], now_ns: int) -> bool:
        urgent = False
        for event in events:
            if event.severity != "fatal" or event.drain != "yes" or event.boot_id != self._boot_id:
                continue
            key = (event.pci, event.xid)
            if len(self._urgent_ns) > MOST_REMEMBERED:
                self._urgent_ns.clear()
            if now_ns - self._urgent_ns.get(key, now_ns - URGENT_AGAIN_NS) >= URGENT_AGAIN_NS:
                self._urgent_ns[key] = now_ns
                urgent = True
        return urgent

    def _after(self, source: str) -> str:
        saved = self._written
        same = saved.get("source") == source and (saved.get("boot_id") == self._boot_id or source != "kmsg")
        return saved.get("position", "") if same else ""

    def _saved_position(self) -> dict[str, str]:
        if self._settings.cursor is None:
            return {}
        try:
            saved = json.loads(self._settings.cursor.read_bytes())
        except (OSError, ValueError):
            return {}
        return {key: str(value) for key, value in saved.items()} if isinstance(saved, dict) else {}

    def _settle(self, now_ns: int) -> None:
        position: str | None = None
        while self._unsettled and now_ns - self._unsettled[0][0] >= SETTLED_NS:
            position = self._unsettled.popleft()[1]
        path = self._settings.cursor
        if position is None or path is None or self._source is None:
            return
        self._written = {"source": self._source.name, "boot_id": self._boot_id, "position": position}
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(self._written))
            draft.rename(path)
        except OSError:
            return  # a full disk must not stop the reading; the log is then read again after a restart

    def _let_go(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()


def _kernel_event(event: Event, line: Line, number: int) -> KernelEvent:
    mark = "" if number == 0 else f"+{number}"
    return KernelEvent(
        id=f"{line.boot_id}/{line.key}{mark}",
        at_unix_ns=line.at_unix_ns,
        kind=event.kind,
        text=line.record.message[:TEXT_CHARACTERS] if not event.inferred else event.text[:TEXT_CHARACTERS],
        xid=event.xid,
        pci=event.pci,
        pid=event.pid,
        name=event.name,
        severity=event.severity,
        action=event.action,
        drain=event.drain,
        boot_id=line.boot_id,
        count=line.record.repeats,
        clears=event.clears,
        inferred=event.inferred,
    )


def metrics(facts: KernelLogFacts) -> Iterable[Sample]:
    """Whether we hear anything at all; the events themselves are counted by the agent."""
    text = "1 where the kernel log can be read: without it Xids are seen only through NVML."
    yield Sample(name="gpuwatch_kernel_log_readable", help=text, value=float(facts.readable))


def open_reader(settings: Settings, clock: Clock | None = None, boot_id: str | None = None) -> _Reader:
    """A reader of this machine's log. Opens nothing yet: a log that cannot be read is said by each reading."""
    known = boot_id if boot_id is not None else this_boot_id()
    return _Reader(settings, clock or SystemClock(), known)


COLLECTOR = Collector(facts=KernelLogFacts, settings=Settings, open=open_reader, metrics=metrics)
