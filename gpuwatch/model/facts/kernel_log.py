"""What the kernel log said of GPUs, switches and the node. Events, not gauges."""

from __future__ import annotations

import msgspec


class KernelEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event. The id is stable over re-reads: boot id + kernel sequence number, or + stamp + hash of the line."""

    id: str
    at_unix_ns: int
    kind: str  # `xid`, or an event name of the fault catalogue
    text: str  # the kernel's own words, at most 400 characters
    xid: int | None = None
    pci: str | None = None
    pid: int | None = None
    name: str | None = None
    severity: str = "warn"  # info | warn | degraded | fatal
    action: str = "none"
    drain: str = "no"  # no | after_count | yes
    boot_id: str = ""
    count: int = 1  # folded repeats of the same line
    clears: bool = False  # good news: an earlier alarm of this GPU is over
    inferred: bool = False  # the words say it though no Xid number was printed
    sxid: int | None = None  # of an NVSwitch
    subject: str = ""  # which disk, port, file system, memory module or program, where it is not the PCI address


class KernelLogFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """New events since the last report, and whether the log can be read at all."""

    readable: bool
    events: tuple[KernelEvent, ...] = ()
    lost_count: int = 0  # records that the ring buffer dropped before we read them
    source: str = ""  # kmsg | journal | file


FACTS = KernelLogFacts
