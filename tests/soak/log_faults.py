"""Faults in the kernel log, and of the kernel log."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from tests.soak.fault import Fault
from tests.soak.judge import Judge, Look
from tests.soak.site import GPUS, UUID, Site

FATAL = (46, 48, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 155, 158, 167, 169, 171, 172, 175)
HARMLESS = (11, 25, 43, 63, 66, 69, 93)
STORM_45, STORM = 11_760, 100_000
OTHERS = {
    # kind -> lines ({n}: a number of its own), whether a rule condemns the node for one of them
    "aer_fatal": (
        "pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0\n"
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
        True,
    ),
    "nvme_lost": ("nvme nvme{n}: Disabling device after reset failure: -19", True),
    "fs_read_only": ("EXT4-fs (sd{n}): Remounting filesystem read-only", True),
    "raid_failed": ("md/raid0md{n}: Disk failure on nvme{n}n1p1 detected, failing array.", True),
    "nic_fw_dead": ("mlx5_core 0000:d2:00.0: poll_health:825: device's health compromised - reached miss count.", True),
    "oom": (
        "Out of memory: Killed process {n} (python3) total-vm:53312244kB, anon-rss:31451456kB, file-rss:0kB",
        False,
    ),
    "soft_lockup": ("watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [cuda-EvtHandlr:{n}]", False),
    "hung_task": ("INFO: task jfsmount:{n} blocked for more than 120 seconds.", False),
    "sxid": ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up", True),
}
KINDS = frozenset(OTHERS)
NOISE = (
    "usb 1-1: new high-speed USB device number {n} using xhci_hcd",
    'audit: type=1400 audit({n}:1): apparmor="STATUS" operation="profile_load"',
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{n}: link becomes ready",
    "perf: interrupt took too long ({n} > 2500), lowering kernel.perf_event_max_sample_rate to 50000",
)
ALL_RULES = ("fatal_xid", "kernel_fault")


class KernelLog:
    """Writes the log as syslog does, each line with a time of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last_us = 0
        self._numbers = itertools.count(100_000)
        self._turn = {False: _combinations(HARMLESS), True: _combinations(FATAL)}
        self.measured_s: dict[int, float] = {}  # pid -> when, of lines that were written by themselves
        self._written: set[tuple[int, int]] = set()  # Xid and pid

    def number(self) -> int:
        return next(self._numbers)

    def stamped(self, text: str) -> str:
        lines = []
        for line in text.split("\n"):
            self._last_us = max(self._last_us + 1, time.monotonic_ns() // 1000)
            lines.append(f"[{self._last_us // 1_000_000:5}.{self._last_us % 1_000_000:06}] {line}\n")
        return "".join(lines)

    def write(self, *texts: str) -> None:
        self.raw("".join(map(self.stamped, texts)).encode())

    def raw(self, data: bytes) -> None:
        with self.path.open("ab", buffering=0) as log:
            log.write(data)

    def is_known(self, pid: int, xid: int) -> bool:
        """Whether such a line was written."""
        return (xid, pid) in self._written

    def storm(self, xid: int) -> int:
        """A process of which a storm of this Xid will tell."""
        pid = self.number()
        self._written.add((xid, pid))
        return pid

    def xid(self, *, fatal: bool) -> tuple[int, str, int, str]:
        """An Xid and a GPU of which nothing was said for long: number, address, pid, line."""
        number, address = next(self._turn[fatal])
        gpu, pid = address.rpartition(".")[0], self.number()
        self._written.add((number, pid))
        return number, gpu, pid, f"NVRM: Xid (PCI:{gpu}): {number}, pid={pid}, name=python, Ch 00000008"


def _combinations(xids: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    pairs = [(xid, address) for address in GPUS for xid in xids]
    random.Random(1).shuffle(pairs)
    return itertools.cycle(pairs)


def log_faults(site: Site, judge: Judge, chance: random.Random, log: KernelLog) -> dict[str, Callable[[], Fault]]:
    """Each makes one fault of its kind."""

    def readable(look: Look) -> bool:
        facts = look.facts(KernelLogFacts)
        return facts is not None and facts.readable and not look.evidence(ALL_RULES)

    def fatal(
        kind: str,
        before: Callable[[], None] | None = None,
        around: Callable[[str], None] | None = None,
        *,
        within_s: float = 25.0,
    ) -> Fault:
        """A fatal line; `before` it something happens to the log, or `around` writes it."""
        number, gpu, pid, line = log.xid(fatal=True)
        words = f"Xid {number} on GPU {gpu}"

        def inject() -> None:
            if before is not None:
                before()
            if around is not None:
                around(line)
                return
            log.measured_s[pid] = time.monotonic()
            log.write(line)

        def seen(look: Look) -> bool:
            uuid = UUID.format(GPUS.index(f"{gpu}.0"))
            found = look.evidence(["fatal_xid"], words)
            return bool(found) and found[0].subject.id in (uuid, f"m-1/{gpu}")

        def event(said: KernelEvent) -> bool:
            return (said.xid, said.pid, said.pci, said.drain) == (number, pid, gpu, "yes")

        return Fault(
            kind, inject, seen, judge.repaired, ("fatal_xid",), words, readable, event, within_s=within_s, hold_s=0.5
        )

    def harmless() -> Fault:
        number, gpu, pid, line = log.xid(fatal=False)
        said = lambda event: (event.xid, event.pid, event.pci) == (number, pid, gpu)  # noqa: E731
        return Fault(
            "xid_harmless",
            lambda: log.write(line),
            lambda _: True,
            judge.repaired,
            event=said,
            well=readable,
            hold_s=0.5,
        )

    def storm_45() -> Fault:
        gpu, pid = chance.choice(GPUS).rpartition(".")[0], log.storm(45)
        text = f"NVRM: Xid (PCI:{gpu}): 45, pid={pid}, name=python, Ch {{:08x}}"

        def inject() -> None:
            log.write(*(text.format(number) for number in range(STORM_45)))

        said = lambda event: (event.xid, event.pci, event.drain) == (45, gpu, "no")  # noqa: E731
        return Fault("xid_45_storm", inject, lambda _: True, judge.repaired, event=said, well=readable)

    def storm() -> Fault:
        def around(line: str) -> None:
            _, _, _, minor = log.xid(fatal=False)
            lines = [NOISE[number % len(NOISE)].format(n=number) for number in range(STORM)]
            lines[:: STORM // 500] = [minor] * 500
            lines[STORM // 2] = line
            log.write(*lines)

        return fatal("kernel_storm_100000", around=around, within_s=60.0)

    def other(kind: str) -> Fault:
        text, condemns = OTHERS[kind]
        text = text.format(n=chance.randrange(10, 100) if "dev" in kind else log.number())
        rules = ("kernel_fault",) if condemns else ()
        seen = (lambda look: bool(look.evidence(rules))) if condemns else (lambda _: True)
        said = lambda event: event.kind == kind  # noqa: E731
        return Fault(
            f"log_{kind}", lambda: log.write(text), seen, judge.repaired, rules, event=said, well=readable, hold_s=0.5
        )

    def rotate() -> None:
        log.path.replace(log.path.with_suffix(".1"))
        log.path.touch()

    def truncate() -> None:
        log.write("usb 1-1: one line more")
        with log.path.open("r+b") as file:
            file.truncate(0)
        time.sleep(1.0)

    def unreadable() -> Fault:
        aside = log.path.with_suffix(".aside")

        def inject() -> None:
            log.path.replace(aside)
            log.path.mkdir()

        def heal() -> None:
            log.path.rmdir()
            aside.replace(log.path)

        def seen(look: Look) -> bool:
            facts = look.facts(KernelLogFacts)
            said = facts is not None and not facts.readable
            return said and bool(look.evidence(["kernel_fault"], "cannot be read"))

        rules, words = ("kernel_fault",), "cannot be read"
        return Fault("log_unreadable", inject, seen, heal, rules, words, readable)

    garbage = lambda: log.raw(os.urandom(200_000) + b"\n")  # noqa: E731
    return {
        "xid_fatal": lambda: fatal("xid_fatal"),
        "xid_harmless": harmless,
        "xid_45_storm": storm_45,
        "kernel_storm_100000": storm,
        "log_rotated": lambda: fatal("log_rotated", rotate),
        "log_truncated": lambda: fatal("log_truncated", truncate),
        "log_garbage": lambda: fatal("log_garbage", garbage),
        "log_unreadable": unreadable,
        **{f"log_{kind}": partial(other, kind) for kind in OTHERS},
    }
