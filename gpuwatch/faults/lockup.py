"""What the kernel says when it stands still or dies, and of programs that die.

Forms: kernel/{watchdog,hung_task,panic}.c, kernel/rcu/tree_stall.h, fs/file_table.c, arch/x86/mm/fault.c,
arch/x86/kernel/traps.c of the Linux kernel. A name may hold blanks and colons: the pid stands behind the last colon.
"""

from __future__ import annotations

import re

from gpuwatch.faults.event import Event
from gpuwatch.faults.named import named

HEADS = (
    "watchdog: ",
    "NMI watchdog: ",
    "Watchdog detected",
    "BUG: ",
    "rcu: INFO",
    "INFO: ",
    "Kernel panic",
    "Kernel Panic",
    "---[ end Kernel panic",
    "kernel BUG at ",
    "Oops: ",
    "Internal error: Oops",
    "general protection fault",
    "VFS: file-max",
    "traps: ",
    "segfault at ",
)
WORDS = ("]: segfault at ", "] general protection ", "] trap ")
LONG_S = 60  # a virtual machine that was paused reports what a busy one does: up to half a minute
MANY_CPUS = 2

_SOFT = re.compile(
    r"(?:(?:NMI )?watchdog: )?BUG: soft lockup - CPU#(?P<cpu>\d{1,5}) stuck for (?P<seconds>\d{1,9})(?:s| seconds)!"
    r"(?: \[(?P<name>.*):(?P<pid>\d{1,10})\])?",
    re.DOTALL,
)
_HARD = re.compile(r"(?:(?:NMI )?watchdog: )?Watchdog detected hard LOCKUP on cpu ?(?P<cpu>\d{1,5})", re.IGNORECASE)
_RCU = re.compile(r"(?:rcu: )?INFO: rcu\w* (?:self-)?detected (?:expedited )?stalls? on CPU")
_HUNG = re.compile(
    r"INFO: task (?P<name>.*):(?P<pid>\d{1,10}) blocked (?:in I/O wait )?for more than (?P<seconds>\d{1,9}) seconds",
    re.DOTALL,
)
_PANIC = re.compile(r"(?:---\[ end )?Kernel [Pp]anic - not syncing")
_OOPS = re.compile(
    r"BUG: (?:kernel NULL pointer dereference|unable to handle )|kernel BUG at \S+:\d+!"
    r"|Oops: (?:[0-9a-f]{4}|\w[\w ,]*) ?\[#\d+\]|general protection fault.*\[#\d+\]|Internal error: Oops"
)
_WORK = re.compile(r"BUG: workqueue lockup - pool .* stuck for (?P<seconds>\d{1,9})s!")
_FILES = re.compile(r"VFS: file-max limit \d+ reached")
_SEGFAULT = re.compile(  # the kernel knows 15 bytes of a name; what is longer has another program's words before it
    r"(?:(?P<name>[^\n\"'][^\n]{0,14}?)\[(?P<pid>\d{1,10})\]: )?segfault at \S+ ip \S+ sp \S+ error \w+"
    r"(?: in (?P<lib>[^\s\[]+)(?:\[[^\]]*\])?)?"
)
_TRAP = re.compile(
    r"(?:traps: )?(?P<name>[^\n\"'][^\n]{0,14}?)\[(?P<pid>\d{1,10})\] (?:trap )?(?P<trap>[\w -]{1,64}?) ip:\S+ sp:\S+"
    r" error:\w+(?: in (?P<lib>[^\s\[]+))?"
)


def read(message: str) -> Event | None:
    """The event of a message about the kernel itself, None if it is none."""
    found = _SOFT.match(message)
    if found is not None:
        return named(
            "soft_lockup",
            message,
            pid=int(found["pid"]) if found["pid"] else None,
            name=found["name"],
            details={"cpu": int(found["cpu"]), "seconds": int(found["seconds"])},
        )
    found = _HUNG.match(message)
    if found is not None:
        name, seconds = found["name"], int(found["seconds"])
        return named("hung_task", message, pid=int(found["pid"]), name=name, subject=name, details={"seconds": seconds})
    found = _SEGFAULT.match(message) or _TRAP.match(message)
    if found is not None:
        trap = found.groupdict().get("trap")
        lib = found["lib"]
        return named(
            "app_trap" if trap else "segfault",
            message,
            pid=int(found["pid"]) if found["pid"] else None,
            name=found["name"],
            subject=f"{found['name'] or ''} {lib or ''}",
            details={"lib": lib, "trap": trap},
        )
    found = _WORK.match(message)
    if found is not None:
        return named("workqueue_lockup", message, details={"seconds": int(found["seconds"])})
    found = _HARD.match(message)
    if found is not None:
        return named("hard_lockup", message, details={"cpu": int(found["cpu"])})
    for kind, pattern in (
        ("rcu_stall", _RCU),
        ("kernel_panic", _PANIC),
        ("kernel_oops", _OOPS),
        ("file_max", _FILES),
    ):
        if pattern.match(message) is not None:
            return named(kind, message)
    return None
