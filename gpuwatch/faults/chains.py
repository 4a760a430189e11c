"""Faults that the kernel tells in several messages: joined here, so that each is one event.

- An error of the bus: the port's lines, and those of the devices behind it, in any order; the device is what is told.
- A dead disk: errors of what lay on it follow from it.
- A program killed for memory: the first line says whose memory ran out.
- A node that stands still: one processor for a while passes, several for a minute do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gpuwatch.faults import lockup, pcie
from gpuwatch.faults.event import Event
from gpuwatch.faults.named import GPU_DRIVERS, named
from gpuwatch.faults.prefix import Record
from gpuwatch.faults.stamps import apart

CHAIN_S = 10.0  # the lines of one error of the bus come within moments
RECOVERY_S = 120.0  # a port waits a minute for the devices behind it, after a reset that takes some seconds
AFTERMATH_S = 600.0  # how long a dead disk's users go on complaining
TOGETHER_S = 120.0  # a stuck processor is reported again every 20 s or so
MAX_HELD = 16
MAX_CPUS = 4096
HANG = ("fatal", "reboot", "yes")
LOST = ("fatal", "drain_replace", "yes")


@dataclass(slots=True)
class _Error:
    event: Event
    root: str
    record: Record


class Chains:
    """Of one boot. Keeps a few words between messages, nothing that grows."""

    def __init__(self) -> None:
        self._error: _Error | None = None
        self._victims: list[tuple[str, str, Record]] = []  # told before their port said what happened
        self._behind: list[tuple[str, str, Record]] = []  # port, device: errors that a port told of a device
        self._dead: tuple[str, Record] | None = None
        self._killed: Record | None = None  # a program's end was told, with whose memory ran out
        self._limit: tuple[Event, Record] | None = None  # a group reached its limit: the program is named next
        self._stuck: dict[int, tuple[int, Record]] = {}  # processor -> longest, last told

    def no_recovery(self, driver: str, pci: str, record: Record) -> list[Event]:
        """A driver cannot bring its device back."""
        error = self._error
        if error is None or apart(error.record, record, CHAIN_S):
            if len(self._victims) < MAX_HELD:
                self._victims.append((driver, pci, record))
            return []
        if "via" in error.event.details or error.event.details.get("device") != pcie.PORT:
            # It has its device already: this is that device's driver, or another function of it.
            mine = pci.partition(".")[0] == (error.event.pci or "").partition(".")[0]
            return [_given_up(error.event, driver, pci)] if mine and driver in GPU_DRIVERS else []
        return [self._blame(error.event, driver, pci, error.root, record)]

    def join(self, event: Event, record: Record) -> list[Event]:
        """The event as it is to be told, or nothing where it follows from one that was."""
        if event.kind in ("aer_fatal", "aer_nonfatal"):
            return [self._bus(event, record)]
        if event.kind == "aer_recovered":
            return self._recovered(event, record)
        if event.kind == "nvme_lost":
            self._dead = (event.subject, record)
        elif event.kind in ("disk_io_error", "disk_beyond_end") and self._is_aftermath(event, record):
            return []
        elif event.kind == "soft_lockup":
            return [self._lockup(event, record)]
        elif event.kind == "oom":
            return self._kill(event, record)
        return [event]

    def flush(self) -> list[Event]:
        """Devices that nothing was said of but that they cannot recover."""
        held, self._victims = self._victims, []
        told: list[Event] = []
        for driver, pci, record in held:
            kind = "aer_fatal" if driver in GPU_DRIVERS else "aer_nonfatal"
            told.append(named(kind, record.message, pci=pci, subject=pci, details={"device": driver}))
        limit, self._limit = self._limit, None
        return [*told, limit[0]] if limit is not None else told

    def _bus(self, event: Event, record: Record) -> Event:
        before, via = self._error, event.details.get("via")
        if isinstance(via, str) and event.pci is not None:
            self._behind = [*self._behind[-MAX_HELD + 1 :], (via, event.pci, record)]
        if self._victims and not apart(self._victims[-1][2], record, CHAIN_S):
            driver, pci, _ = self._victims[0]
            self._victims.clear()
            return self._blame(event, driver, pci, event.subject, record)
        self._victims.clear()
        if before is not None and event.subject == before.root and not apart(before.record, record, CHAIN_S):
            before.record = record
            if "via" in before.event.details and "via" not in event.details:
                return msgspec.structs.replace(
                    event, pci=before.event.pci, details=event.details | before.event.details
                )
            return event
        self._error = _Error(event, event.subject, record)
        return event

    def _recovered(self, event: Event, record: Record) -> list[Event]:
        """The port says it for every device behind it."""
        mine = [told for told in self._behind if told[0] == event.pci and not apart(told[2], record, RECOVERY_S)]
        self._behind = [told for told in self._behind if told not in mine]
        details = {"via": event.subject}
        return [
            msgspec.structs.replace(event, pci=pci, subject=pci, details=details)
            for pci in dict.fromkeys(pci for _, pci, _ in mine)
        ] or [event]

    def _kill(self, event: Event, record: Record) -> list[Event]:
        """Up to three lines of one kill; the last may name another process, a child of the one that was chosen."""
        limit, self._limit = self._limit, None
        if limit is not None and (event.pid is None or apart(limit[1], record, CHAIN_S)):
            return [limit[0], *self._kill(event, record)]  # nobody was named
        if event.pid is None:
            self._limit = (event, record)
            return []
        if "scope" not in event.details:
            if self._killed is not None and not apart(self._killed, record, CHAIN_S):
                return []
            if limit is None:
                return [event] if " total-vm:" in event.text else []
            event = msgspec.structs.replace(limit[0], pid=event.pid, name=event.name, subject=event.subject)
        self._killed = record
        return [event]

    def _blame(self, event: Event, driver: str, pci: str, root: str, record: Record) -> Event:
        via = event.details.get("via", root)
        blamed = msgspec.structs.replace(
            event, pci=pci, subject=root, details=event.details | {"via": via, "device": driver}
        )
        blamed = _given_up(blamed, driver, pci) if driver in GPU_DRIVERS else blamed
        self._error = _Error(blamed, root, record)
        return blamed

    def _is_aftermath(self, event: Event, record: Record) -> bool:
        if self._dead is None or apart(self._dead[1], record, AFTERMATH_S):
            return False
        dev = event.details.get("dev")
        return dev is None or str(dev).startswith(("dm-", "md", f"{self._dead[0]}n"))

    def _lockup(self, event: Event, record: Record) -> Event:
        cpu, seconds = event.details["cpu"], event.details["seconds"]
        assert isinstance(cpu, int)
        assert isinstance(seconds, int)
        self._stuck = {number: told for number, told in self._stuck.items() if not apart(told[1], record, TOGETHER_S)}
        if len(self._stuck) < MAX_CPUS:
            self._stuck[cpu] = (seconds, record)
        longest = max(told[0] for told in self._stuck.values())
        if len(self._stuck) == 1:
            return event
        details = {"cpus": tuple(sorted(self._stuck)), "seconds": longest}
        event = msgspec.structs.replace(event, details=details)
        long = sum(1 for told in self._stuck.values() if told[0] >= lockup.LONG_S)
        if long < lockup.MANY_CPUS:
            return event
        severity, action, drain = HANG
        return msgspec.structs.replace(event, severity=severity, action=action, drain=drain)


def _given_up(event: Event, driver: str, pci: str) -> Event:
    """Whatever the port calls it, a GPU that its driver cannot bring back is lost (open-gpu-kernel-modules#1229)."""
    if event.kind != "aer_nonfatal":
        return event
    severity, action, drain = LOST
    details = event.details | {"device": driver}
    return msgspec.structs.replace(event, pci=pci, severity=severity, action=action, drain=drain, details=details)
