"""One GPU event as the kernel log tells it: what it is, which GPU and process, how bad, what to do."""

from __future__ import annotations

import msgspec

_MARKS = ("from", "to", "unit", "subcode", "status", "link")  # with another of these it is another event
_NO_MARKS = (None,) * len(_MARKS)
Detail = str | int | bool | tuple[str, ...] | tuple[int, ...]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel message that means something. `details` are what only this kind of event has, in the order told."""

    kind: str  # `xid`, `sxid`, or an event's name, for example `gpu_init_failed`
    title: str  # the catalogue's name of it
    meaning: str
    severity: str  # info | warn | degraded | fatal
    action: str
    drain: str  # no | after_count | yes
    text: str  # the driver's own words after the number
    xid: int | None = None
    sxid: int | None = None
    pci: str | None = None  # `0000:9b:00`; a switch or port with its function, `0000:05:00.0`
    gpu_instance: int | None = None  # of a MIG GPU
    compute_instance: int | None = None
    pid: int | None = None
    name: str | None = None
    inferred: bool = False  # the words say it though no number was printed
    clears: bool = False  # good news: an earlier alarm of this GPU is over
    caused_by: int | None = None  # the Xid that the driver itself names as the cause
    suspect_peer: bool = False  # the other end of the link is more likely broken
    details: dict[str, Detail] = {}
    subject: str = ""  # which disk, file system, port, module or program, where it is not the PCI address
    family: str = ""  # events of one family about one subject are one fault; empty: the kind

    def fold_key(self) -> tuple[object, ...]:
        """Two events with the same key, close in time, are one that was printed twice."""
        if self.kind == "sxid":  # switches at both ends of a link report the same error
            return (self.sxid,)
        if self.subject:
            return (self.family or self.kind, self.subject)
        marks = tuple(map(self.details.get, _MARKS)) if self.details else _NO_MARKS
        return (self.kind, self.xid, self.pci, self.gpu_instance, self.compute_instance, self.caused_by, marks)
