"""What the kernel says of the host's memory, and of the processor's own checks.

Forms: mm/oom_kill.c, mm/memory-failure.c, drivers/edac/edac_mc.c, arch/x86/kernel/cpu/mce, drivers/firmware/efi/cper.c
of the Linux kernel. Names of programs may hold blanks, commas and brackets: a name ends where the next field begins.
"""

from __future__ import annotations

import re

from gpuwatch.faults.event import Event
from gpuwatch.faults.named import named

HEADS = (
    "oom-kill:",
    "Out of memory",
    "Memory cgroup out of memory",
    "Killed process ",
    "Task in ",
    "Memory failure: ",
    "EDAC MC",
    "mce: ",
    "Uncorrected hardware memory",
)
WORDS = ("[Hardware Error]: ", "cpu clock throttled")
_KILL = re.compile(
    r"oom-kill:constraint=(?P<constraint>\w+),.*?(?:\boom_memcg=(?P<cgroup>[^,]{0,256}),.*?)?\btask=(?P<name>.{0,64}?),pid=(?P<pid>\d{1,10}),uid=",
    re.DOTALL,
)
_KILLED = re.compile(
    r"(?P<group>Memory cgroup out of memory: |Out of memory(?: \([^)]*\))?: )?Kill(?:ed)? process (?P<pid>\d{1,10})"
    r"(?:, UID \d+,)? \((?P<name>.*?)\)(?=$|[.,]| total-vm:| score )",
    re.DOTALL,
)
_TASK = re.compile(r"Task in \S+ killed as a result of limit of (?P<cgroup>\S+)")  # before Linux 4.19
_EDAC = re.compile(
    r"EDAC MC\d+: (?P<count>\d+) (?P<kind>UE|CE)\b.*? on (?P<dimm>(?:any memory|unknown (?:memory|label)|\S+))"
)
_CHECK = re.compile(
    r"(?:mce: )?\[Hardware Error\]: CPU (?P<cpu>\d+): Machine Check(?P<exception> Exception)?: [0-9a-f]+ "
    r"Bank (?P<bank>\d+)(?:: (?P<status>[0-9a-f]{1,16}))?"
)
_SAID = re.compile(
    r"(?:mce: )?\[Hardware Error\]: (?P<bad>Uncorrected, \w|System Fatal error|(?:Corrected|Deferred) error, no action)"
)
_LOGGED = re.compile(r"(?:mce: )?\[Hardware Error\]: Machine check events logged")
_BROKEN = re.compile(r"(?:mce: )?(?:\[Hardware Error\]: )?Uncorrected hardware memory error in ")
_PAGE = re.compile(
    r"Memory failure: 0x[0-9a-f]+: (?:"
    r"Sending SIGBUS to (?P<name>.*):(?P<pid>\d{1,10}) due to hardware memory corruption|recovery action for )"
)
_HOT = re.compile(r"(?:mce: )?CPU(?P<cpu>\d+): (?:Core|Package) temperature above threshold, cpu clock throttled")
_RECORD = re.compile(r"\{\d+\}\[Hardware Error\]: event severity: (?P<severity>\w+)")
_UNCORRECTED = 1 << 61  # bit UC of a bank's status, Intel SDM volume 3B chapter 16
_SEVERITY = {
    "fatal": ("fatal", "drain_replace", "yes"),
    "recoverable": ("degraded", "contact_support", "after_count"),
    "corrected": ("info", "none", "no"),
}
_GROUP = ("warn", "check_app", "no")  # a job that outgrew its own limit: the node has memory left


def read(message: str) -> Event | None:
    """The event of a message about memory, None if it is none."""
    found = _KILL.match(message)
    if found is not None:
        return _oom(message, found, group=found["constraint"] == "CONSTRAINT_MEMCG")
    found = _KILLED.match(message)
    if found is not None:
        if found["group"] is not None:
            return _oom(message, found, group=found["group"].startswith("Memory cgroup"))
        # The old kernels' second line of a kill does not say whose memory it was: `chains` knows.
        return named("oom", message, pid=int(found["pid"]), name=found["name"], subject=found["pid"])
    found = _TASK.match(message)
    if found is not None:
        details = {"scope": "cgroup", "cgroup": found["cgroup"]}
        return named("oom", message, subject=found["cgroup"], verdict=_GROUP, details=details)
    found = _EDAC.match(message)
    if found is not None:
        kind = "edac_ue" if found["kind"] == "UE" else "edac_ce"
        details = {"dimm": found["dimm"], "errors": int(found["count"])}
        return named(kind, message, subject=found["dimm"], details=details)
    return _machine_check(message)


def _machine_check(message: str) -> Event | None:
    found = _CHECK.match(message)
    if found is not None:
        uncorrected = found["exception"] is not None or int(found["status"] or "0", 16) & _UNCORRECTED
        kind = "mce_uncorrected" if uncorrected else "mce_corrected"
        cpu, bank = int(found["cpu"]), int(found["bank"])
        return named(kind, message, subject=f"cpu {cpu} bank {bank}", details={"cpu": cpu, "bank": bank})
    found = _SAID.match(message)
    if found is not None:
        return named("mce_uncorrected" if found["bad"][0] in "US" else "mce_corrected", message)
    if _LOGGED.match(message) is not None:
        return named("mce_logged", message)
    if _BROKEN.match(message) is not None:
        return named("memory_failure", message)
    found = _PAGE.match(message)
    if found is not None:
        return named(
            "memory_failure", message, pid=int(found["pid"]) if found["pid"] else None, name=found["name"] or None
        )
    found = _HOT.match(message)
    if found is not None:
        return named("cpu_throttled", message, details={"cpu": int(found["cpu"])})
    found = _RECORD.match(message)
    if found is not None and found["severity"] in _SEVERITY:
        return named("hw_error", message, subject=found["severity"], verdict=_SEVERITY[found["severity"]])
    return None


def _oom(text: str, found: re.Match[str], *, group: bool) -> Event:
    return named(
        "oom",
        text,
        pid=int(found["pid"]),
        name=found["name"],
        subject=found["pid"],
        verdict=_GROUP if group else None,
        details={"scope": "cgroup" if group else "node", "cgroup": found.groupdict().get("cgroup")},
    )
