"""What the kernel log says of GPUs and the node: events, each told once, with the catalogue's verdict.

From this boot's first message on, not from the agent's start: an Xid may be older than the agent
(NVIDIA/NVSentinel#1532). An event's id is the same however often the log is read, so that a restart of the agent
repeats nothing. Repeats within a few seconds are one event with a count: a dying GPU prints the same line 800,000 times
(NVIDIA/NVSentinel#1120). The boot before this one is read once, so that a fault which ended in a reboot is not
forgotten. Where the ring overran us, what is lost may have been an Xid: NVML is asked at once which recovery the driver
wants.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from gpuwatch.clock import Clock, SystemClock
from gpuwatch.collectors import Collector, Reading, Sample
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.sdk.kernel_events import MOST_REMEMBERED, Telling
from gpuwatch.sdk.kernel_file import KernelFile
from gpuwatch.sdk.kernel_journal import KernelJournal
from gpuwatch.sdk.kernel_lines import Source, this_boot_id
from gpuwatch.sdk.kernel_lots import Lots
from gpuwatch.sdk.kernel_ring import KernelRing
from gpuwatch.sdk.small_file import small_json

URGENT_AGAIN_NS = 10 * 10**9  # the same fault asks to be sent at once no more often than this
SETTLED_NS = 60 * 10**9  # the cursor keeps this far behind: what was read may not have been sent yet
EARLIER_AFTER_NS = 5 * 10**9  # the boot before is history: what happens now is read first
EARLIER_SILENT_NS = 10 * 10**9  # so long its silent journal is looked at again at once: its disk may answer nobody
NVML = "nvml"
USUAL_FILES = ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to read. `auto`: /dev/kmsg, else the first readable of the usual log files."""

    enabled: bool = True
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    source: Literal["auto", "kmsg", "journal", "file"] = "auto"
    path: Path | None = None  # for `file`: the log; for `kmsg`: the device; for `journal`: the journalctl command
    cursor: Path | None = None  # remembers over restarts what was read; None: in the agent's own state
    fabric_manager_log: Path | None = Path("/var/log/fabricmanager.log")  # read where it is there; None: not at all
    earlier_boot: bool = True  # once a boot, read from the journal what the kernel said last in the boot before
    journalctl: Path = Path("journalctl")

    def __post_init__(self) -> None:
        if self.source == "file" and self.path is None:
            raise ValueError('source = "file" needs a path')


class _Reader:
    def __init__(self, settings: Settings, clock: Clock, boot_id: str) -> None:
        self._settings = settings
        self._clock = clock
        self._boot_id = boot_id
        self._source: Source | None = None
        self._lots, self._telling = Lots(clock), Telling()
        self._earlier: KernelJournal | None = None
        self._earlier_heard_ns = 0
        self._earlier_lots, self._earlier_telling = Lots(clock), Telling()
        self._earlier_done = not settings.earlier_boot
        self._fabric: KernelFile | None = None
        self._fabric_lots, self._fabric_telling = Lots(clock), Telling()
        self._urgent_ns: dict[tuple[str, str | None], int] = {}
        self._cursor = settings.cursor
        self._begun_ns = clock.monotonic_ns()
        self._unsettled: deque[tuple[int, str]] = deque()  # (monotonic ns, position) of readings with events
        self._written = self._saved_position()

    def keep(self, folder: Path, *, ours: bool = True) -> None:
        """Where the cursor goes unless the settings say. Not `ours`: one look beside an agent leaves no trace."""
        if not ours:
            self._cursor, self._earlier_done = None, True
        elif self._cursor is None:
            self._cursor = folder / "kernel_log.json"
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
            lines = self._lots.of(source)
        except OSError as error:
            self._written = {"source": source.name, "boot_id": self._boot_id, "position": source.position()}
            self._let_go()
            raise ProbeError(f"the kernel log ({source.name}) broke off", why=str(error)) from error
        gaps: dict[str, str] = {}
        events = [*self._of_earlier_boot(source), *self._telling.tell(lines), *self._of_fabric_manager(gaps)]
        now_ns = self._clock.monotonic_ns()
        if events:
            self._unsettled.append((now_ns, source.position()))
        self._settle(now_ns)
        lost_count = source.take_lost()
        overrun = lost_count > 0 and self._for_the_first_time(("overrun", None), now_ns)
        if lost_count:
            gaps["events"] = f"{lost_count} messages were lost: the kernel's ring was overwritten before it was read"
        return Reading(
            facts=KernelLogFacts(readable=True, events=tuple(events), lost_count=lost_count, source=source.name),
            gaps=gaps,
            urgent=self._is_urgent(events, now_ns) or overrun,
            more=source.behind or self._earlier_goes_on(now_ns),
            ask=(NVML,) if overrun else (),
        )

    def close(self) -> None:
        """What was read within the last minute is read again by the next agent: it may not have been sent."""
        self._settle(self._clock.monotonic_ns())
        self._let_go()
        self._end_earlier()
        if self._fabric is not None:
            self._fabric.close()

    def _of_earlier_boot(self, source: Source) -> list[KernelEvent]:
        """What the journal holds of the boot before this one, once; the journal as a source begins there by itself."""
        if self._earlier_done:
            return []
        if self._earlier is None:
            if self._clock.monotonic_ns() - self._begun_ns < EARLIER_AFTER_NS:
                return []
            if source.name != "kmsg" or self._written.get("earlier_of") == self._boot_id:
                self._earlier_done = True
                return []
            try:
                self._earlier = KernelJournal(
                    str(self._settings.journalctl),
                    boot_id=self._boot_id,
                    after="",
                    clock=self._clock,
                    only_earlier=True,
                )
            except OSError:  # no journal here: what it would have said is not known, and causes nothing
                self._earlier_done = True
                return []
            self._earlier_heard_ns = self._clock.monotonic_ns()
        try:
            lines = self._earlier_lots.of(self._earlier)
        except OSError:  # it has said everything, or there is no earlier boot
            self._end_earlier()
            return self._earlier_telling.tell([])
        if not lines:
            return []
        self._earlier_heard_ns = self._clock.monotonic_ns()
        return self._earlier_telling.tell(lines)

    def _earlier_goes_on(self, now_ns: int) -> bool:
        return self._earlier is not None and now_ns - self._earlier_heard_ns < EARLIER_SILENT_NS

    def _end_earlier(self) -> None:
        if self._earlier is not None:
            self._earlier_done = True
            self._earlier.close()
            self._earlier = None

    def _of_fabric_manager(self, gaps: dict[str, str]) -> list[KernelEvent]:
        """Its own log, on nodes that have one."""
        path = self._settings.fabric_manager_log
        if path is None or (self._fabric is None and not os.path.lexists(path)):
            return []
        try:
            if self._fabric is None:
                self._fabric = KernelFile(path, boot_id=self._boot_id, after="", clock=self._clock, daemon=True)
            return self._fabric_telling.tell(self._fabric_lots.of(self._fabric))
        except OSError as error:
            gaps["fabric_manager"] = f"{path}: {error.strerror or error}"
            if self._fabric is not None:
                with contextlib.suppress(OSError):
                    self._fabric.close()
                self._fabric = None
            return []

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

    def _is_urgent(self, events: Iterable[KernelEvent], now_ns: int) -> bool:
        urgent = False
        for event in events:
            if event.severity != "fatal" or event.drain != "yes" or event.boot_id != self._boot_id:
                continue
            urgent |= self._for_the_first_time((f"{event.kind} {event.xid}", event.pci or event.subject), now_ns)
        return urgent

    def _for_the_first_time(self, key: tuple[str, str | None], now_ns: int) -> bool:
        """Since a while: a storm of the same is not a thousand alarms."""
        if len(self._urgent_ns) > MOST_REMEMBERED:
            self._urgent_ns.clear()
        if now_ns - self._urgent_ns.get(key, now_ns - URGENT_AGAIN_NS) < URGENT_AGAIN_NS:
            return False
        self._urgent_ns[key] = now_ns
        return True

    def _after(self, source: str) -> str:
        saved = self._written
        of_this_boot = bool(self._boot_id) and saved.get("boot_id") == self._boot_id
        same = saved.get("source") == source and (of_this_boot or source != "kmsg")
        return saved.get("position", "") if same else ""

    def _saved_position(self) -> dict[str, str]:
        if self._cursor is None:
            return {}
        try:
            saved = small_json(self._cursor, dict[str, Any])
        except (OSError, ValueError):
            return {}
        return {key: str(value) for key, value in saved.items()}

    def _settle(self, now_ns: int) -> None:
        position: str | None = None
        while self._unsettled and now_ns - self._unsettled[0][0] >= SETTLED_NS:
            position = self._unsettled.popleft()[1]
        path = self._cursor
        if position is None or path is None or self._source is None:
            return
        self._written = {"source": self._source.name, "boot_id": self._boot_id, "position": position}
        if self._earlier_done:
            self._written["earlier_of"] = self._boot_id
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


def metrics(facts: KernelLogFacts) -> Iterable[Sample]:
    """Whether we hear anything at all; the events themselves are counted by the agent."""
    text = "1 where the kernel log can be read: without it Xids are seen only through NVML."
    yield Sample(name="gpuwatch_kernel_log_readable", help=text, value=float(facts.readable))


def open_reader(settings: Settings, clock: Clock | None = None, boot_id: str | None = None) -> _Reader:
    """A reader of this machine's log. Opens nothing yet: a log that cannot be read is said by each reading."""
    known = boot_id if boot_id is not None else this_boot_id()
    return _Reader(settings, clock or SystemClock(), known)


COLLECTOR = Collector(facts=KernelLogFacts, settings=Settings, open=open_reader, metrics=metrics)
