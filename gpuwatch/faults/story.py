"""A log's events told once: repeats folded, good news applied.

A GPU that prints the same Xid 800,000 times (NVIDIA/NVSentinel#1120) is one event with a count.
"""

from __future__ import annotations

import msgspec

from gpuwatch.faults.event import Detail, Event
from gpuwatch.faults.incidents import BURST_S, Decision, Told, decide, group, weight
from gpuwatch.faults.prefix import Record
from gpuwatch.faults.stamps import apart

MAX_PIDS = 64
LATEST_TELLS_ALL = frozenset({"soft_lockup"})  # its interpreter counts the processors; their last number is the truth
OUT_OF_ORDER_US = 5_000_000  # processors print out of order by less; time that goes back by more is a new boot
CLEARED_BY = {154: 154, 162: 163}  # a 154 to 0x0 ends the 154 before it, 162 ends 163 (NVIDIA/NVSentinel#1252)


class Story:
    """Told event by event; `ending` groups them. Memory grows with different events, not with repeats."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self._open: dict[tuple[object, ...], Told] = {}
        self._boot = 0
        self._uptime_us = 0
        self._latest: Told | None = None

    def booted(self) -> None:
        """The machine started again here: nothing after this belongs to anything before it."""
        self._boot += 1
        self._open.clear()
        self._uptime_us = 0

    def tell(self, event: Event, record: Record) -> None:
        """One more event, in the order of the log."""
        if record.uptime_us is not None:
            if record.uptime_us + OUT_OF_ORDER_US < self._uptime_us:
                self.booted()
            self._uptime_us = max(self._uptime_us, record.uptime_us)
        key = event.fold_key()
        known = self._open.get(key)
        if known is not None and not apart(known.last, record, BURST_S):
            _fold(known, event, record)
        else:
            known = Told(event, record, record, record.repeats, self._boot)
            self.told.append(known)
            self._open[key] = known
            if event.clears:
                self._clear(known)
        self._latest = known
        if event.pid is not None and len(known.pids) < MAX_PIDS:
            known.pids[event.pid] = None
        if event.kind == "sxid" and event.pci is not None:
            known.ports[event.pci] = None

    def repeated(self, count: int, line: int) -> None:
        """`last message repeated N times`, if the event was the message just before."""
        if self._latest is not None and self._latest.last.line == line - 1:
            self._latest.lines += count

    def ending(self) -> Decision:
        """Group into incidents, mark each one's root, decide for the whole."""
        return decide(self.told, group(self.told))

    def _clear(self, news: Told) -> None:
        wanted = CLEARED_BY.get(news.event.xid or 0)
        for told in self.told:
            if told is not news and told.event.xid == wanted and told.event.pci == news.event.pci:
                told.cleared = True
        for key in [key for key, told in self._open.items() if told.cleared]:
            del self._open[key]  # the same alarm once more is a new one


def _fold(known: Told, event: Event, record: Record) -> None:
    old = known.event
    printed = old.inferred and not event.inferred  # the number was printed after all
    if printed:
        known.first, known.lines = record, 0
    if event.inferred <= old.inferred:  # words that repeat a printed number add nothing
        known.lines += record.repeats
        known.last = record
    if event == old:
        return
    blamed = "via" in event.details and "via" not in old.details  # the port's error has got its device
    known.event = msgspec.structs.replace(
        event if printed or blamed or weight(event) > weight(old) else old,
        pid=old.pid if old.pid is not None else event.pid,
        name=old.name if old.name is not None else event.name,
        details=event.details if blamed or event.kind in LATEST_TELLS_ALL else _merged(old, event),
    )


def _merged(first: Event, later: Event) -> dict[str, Detail]:
    """The first line's details, with what later lines add. Several links, switches or adapters become a list."""
    old, new = first.details, later.details
    if old == new:
        return old
    merged = {**new, **old}
    if later.kind == "efa_admin_timeout":
        names = [*_words(old.get("dev")), *_words(new.get("dev"))]
        if len(set(names)) > 1:
            merged["dev"] = tuple(dict.fromkeys(names))
    if later.kind == "sxid":
        for key in ("switch", "link"):
            both = {*_numbers(old.get(key)), *_numbers(new.get(key))}
            if len(both) > 1:
                merged[key] = tuple(sorted(both))
        if "data_only" in merged and not ("data_only" in old and "data_only" in new):
            del merged["data_only"]
    return merged


def _words(value: Detail | None) -> tuple[str, ...]:
    if isinstance(value, tuple):
        return tuple(word for word in value if isinstance(word, str))
    return (value,) if isinstance(value, str) else ()


def _numbers(value: Detail | None) -> tuple[int, ...]:
    if isinstance(value, tuple):
        return tuple(number for number in value if isinstance(number, int))
    return (value,) if isinstance(value, int) else ()
