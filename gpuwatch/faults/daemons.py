"""Which other programs may speak of a node's faults, and each of what only.

Nobody is believed for another: the kernel's words count from the kernel alone, the fabric manager's from its service,
and so on. In a log file the tag before the message says who wrote it; in the journal the fields that the journal itself
writes (`_SYSTEMD_UNIT`, `_UID`, `_COMM`), which no program can set. A job runs inside Slurm's own unit, so there the
account counts too. A program that quotes them (a monitor, a health check) is not in this table, and stays unheard.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpuwatch.faults import fabric_manager, nvml_words
from gpuwatch.faults.event import Event
from gpuwatch.faults.named import named
from gpuwatch.faults.prefix import Record, clean, is_syslog_head, wall_clock

WORDS = (*fabric_manager.WORDS, " carrier", "NVML: ")

_TAGGED = re.compile(r"(?P<tag>[\w.-]{4,40})(?:\[\d{1,10}\])?: (?P<said>.*)", re.DOTALL)
_SLURM_LOG = re.compile(
    r"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?\] (?:\[[\w.+]+\] )?(?P<said>error: .*NVML: .*)", re.DOTALL
)
_CARRIER = re.compile(r"(?P<dev>ib[\w.-]*): (?P<what>Lost|Gained) carrier")  # others are containers' and management's
_NVML = re.compile(r"(?:error: )?NVML: .*?\((?P<code>\d{1,4})\): (?P<words>.*)", re.DOTALL)
_NVML_WORDS = re.compile(r"(?:error: )?Failed to init(?:ialize)? NVML: (?P<words>.*)", re.DOTALL)


def networkd(said: str) -> Event | None:
    """An InfiniBand interface that lost or got its carrier (facebookresearch/gcm link flap check)."""
    found = _CARRIER.match(said)
    if found is None:
        return None
    kind = "ib_link_down" if found["what"] == "Lost" else "ib_link_up"
    return named(kind, said, subject=found["dev"], details={"dev": found["dev"]})


def slurm(said: str) -> Event | None:
    """What NVML answered Slurm's daemon, by its number (LSSI-ETH/plmfit#40). Most numbers are no fault."""
    found = _NVML.match(said)
    if found is not None:
        return nvml_words.told(said, int(found["code"]))
    found = _NVML_WORDS.match(said)
    return nvml_words.told(said, nvml_words.code_of(found["words"])) if found is not None else None


Grammar = Callable[[str], Event | None]
BY_TAG: dict[str, Grammar] = {
    "nv-fabricmanager": fabric_manager.read,
    "nvidia-fabricmanager-start.sh": fabric_manager.read,
    "nvidia-fabricmanager": fabric_manager.read,
    "systemd-networkd": networkd,
    "slurmd": slurm,
    "slurmstepd": slurm,
}
STEP = "slurmstepd"  # puts its host's name behind its own
UNITS: dict[
    str, tuple[Grammar, frozenset[str] | None]
] = {  # unit -> grammar, and its programs where jobs live there too
    "nvidia-fabricmanager.service": (fabric_manager.read, None),
    "systemd-networkd.service": (networkd, None),
    "slurmd.service": (slurm, frozenset({"slurmd", "slurmstepd"})),
    "slurmstepd.scope": (slurm, frozenset({"slurmstepd"})),
}


def in_text(line: str, number: int = 0) -> tuple[Event, Record] | None:
    """A line of a log file that one of them wrote: by its tag, or in the form of its own log."""
    text = clean(line)
    own = fabric_manager.OWN_LOG.match(text)
    if own is not None:
        return _told(fabric_manager.read, own["said"], text[: own.start("said")], number)
    own = _SLURM_LOG.match(text)
    if own is not None:
        return _told(slurm, own["said"], text[: own.start("said")], number)
    for tag, grammar in BY_TAG.items():
        place = text.find(tag)
        found = _TAGGED.match(text, place) if place >= 0 else None
        mine = found is not None and (found["tag"] == tag or found["tag"].startswith(f"{STEP}-"))
        if found is not None and mine and (place == 0 or is_syslog_head(text[:place])):
            return _told(grammar, found["said"], text[:place], number)
    return None


def in_journal(unit: str, uid: str, program: str, message: str) -> Event | None:
    """An entry of the journal, by the fields that the journal itself writes."""
    known = UNITS.get(unit)
    if known is None:
        return None
    grammar, programs = known
    if programs is not None and (uid != "0" or program not in programs):
        return None
    own = fabric_manager.OWN_LOG.match(message)
    return grammar(own["said"] if own is not None else message)


def _told(grammar: Grammar, said: str, head: str, number: int) -> tuple[Event, Record] | None:
    event = grammar(said)
    if event is None:
        return None
    stamp = head.strip("[ ").split("]")[0] if head.startswith("[") else wall_clock(head)
    return event, Record(message=said, stamp=stamp, wall=stamp, line=number)
