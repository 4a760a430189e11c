"""The grammar of the driver's Xid line, and the verdict on it.

    NVRM: Xid (PCI:dom:bus:dev GPU-I:nn GPU-CI:nn): number, pid=…, name=…, free text caused by previous Xid n

Every part after the number may be missing, and the line may stop anywhere. Source of the form: `kernel_rc.c` of
NVIDIA/open-gpu-kernel-modules 595.45.04; older drivers leave out `PCI:` or the domain, and quote placeholders.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from gpuwatch.faults import nvlink5, nvlink_registers, recovery
from gpuwatch.faults.catalogue import UNKNOWN_XID, xids
from gpuwatch.faults.event import Detail, Event

_XID = re.compile(
    r"""NVRM:\s+Xid\s*\(\s*(?:PCI:)?
    (?P<address>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2,4}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?(?![\w:])
    (?:[^()]{0,40}?\bGPU-I:\s*(?P<gpu_instance>\d{1,5}))?(?:[^()]{0,40}?\bGPU-CI:\s*(?P<compute_instance>\d{1,5}))?
    [^()]{0,80}\)\s*:\s*(?P<number>\d{1,9})(?!\w)(?P<rest>.*)""",
    re.VERBOSE | re.DOTALL,
)
_WRAPPABLE = re.compile(r"NVRM: Xid \([^)]*(?:$|\): (?:74|14[4-9]|150|154)\b)")
_PID = re.compile(r"\s*,\s*pid\s*=\s*([^,]*)")
_NAME = re.compile(r"\s*,\s*name\s*=\s*([^,\n]*)")
_CAUSE = re.compile(r"caused by previous Xid\s+(\d{1,9})")
_RST = re.compile(r"(?<!-)\bRST:\s*(Yes|No)")
_DRST = re.compile(r"\bD-RST:\s*(Yes|No)")

_REMAP_RECORDED = frozenset({63, 160})  # a row, a channel: repaired at the next reset
_CLEARING = frozenset({162})  # power smoothing is back, after a 163 (NVIDIA/NVSentinel#1252)
_MAX_PID = 1 << 31


class XidLine(msgspec.Struct, frozen=True, gc=False):
    """What was printed, not yet judged. Placeholders and pid 0 are None."""

    number: int
    pci: str
    text: str
    pid: int | None = None
    name: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@lru_cache(maxsize=256)  # a storm prints the same line thousands of times
def read(message: str) -> Event | None:
    """The event of an Xid message, None if it is none."""
    line = parse(message)
    return judge(line) if line is not None else None


def parse(message: str) -> XidLine | None:
    """The parts of an Xid message, None if it is none. The message must begin with the driver's name."""
    found = _XID.match(message)
    if found is None:
        return None
    rest = found["rest"]
    pid = name = None
    field = _PID.match(rest)
    if field is not None:
        pid, rest = _process_id(field[1]), rest[field.end() :]
    field = _NAME.match(rest)
    if field is not None:
        name, rest = _process_name(field[1]), rest[field.end() :]
    gpu_instance, compute_instance = found["gpu_instance"], found["compute_instance"]
    return XidLine(
        number=int(found["number"]),
        pci=_address(found["address"]),
        text=rest.lstrip(" ,\t").rstrip(),
        pid=pid,
        name=name,
        gpu_instance=int(gpu_instance) if gpu_instance else None,
        compute_instance=int(compute_instance) if compute_instance else None,
    )


def judge(line: XidLine) -> Event:
    """The event, with severity, action and drain by the catalogue and by what the text adds. Never raises."""
    row = xids().get(line.number, UNKNOWN_XID)
    severity, action, drain, meaning = row.severity, row.action, row.drain, row.meaning
    clears = line.number in _CLEARING
    suspect_peer = False
    details: dict[str, Detail] = {}
    if line.number == 154:
        wanted = recovery.read(line.text)
        severity, action, drain, details = wanted.severity, wanted.action, wanted.drain, wanted.details
        clears = wanted.value == 0
        meaning = f"The driver changed the recovery that it wants for this GPU: {wanted.note}"
    elif line.number in nvlink5.XIDS:
        decoded = nvlink5.decode(line.number, line.text, row)
        severity, action, drain, details = decoded.severity, decoded.action, decoded.drain, decoded.details
        suspect_peer = decoded.suspect_peer
        meaning = meaning.partition(" decode text")[0].rstrip(".;")  # the rest says how to use the table: done here
    elif line.number == 74:
        details, harmless = nvlink_registers.read(line.text)
        if harmless:
            severity, action, drain = "warn", "none", "no"
    elif line.number in _REMAP_RECORDED:
        details["pending_reset"] = True
    if "RST:" in line.text:
        for key, pattern in (("rst", _RST), ("drst", _DRST)):
            flag = pattern.search(line.text)
            if flag is not None:
                details[key] = flag[1].lower()
    cause = _CAUSE.search(line.text)
    return Event(
        kind="xid",
        title=row.name,
        meaning=meaning,
        severity=severity,
        action=action,
        drain=drain,
        text=line.text,
        xid=line.number,
        pci=line.pci,
        gpu_instance=line.gpu_instance,
        compute_instance=line.compute_instance,
        pid=line.pid,
        name=line.name,
        clears=clears,
        caused_by=int(cause[1]) if cause else None,
        suspect_peer=suspect_peer,
        details=details,
    )


def lost_gpu(pci: str, text: str) -> Event:
    """A GPU that fell off the bus, told in words without a number: the same fault as Xid 79."""
    event = judge(XidLine(number=79, pci=pci, text=text))
    return msgspec.structs.replace(event, inferred=True)


def wants_more(message: str) -> bool:
    """Whether a line break may have cut this message where the rest decides: in its address, its registers, a 154."""
    if _WRAPPABLE.match(message) is None:
        return False
    line = parse(message)
    if line is None:
        return ")" not in message
    if line.number == 154:
        return recovery.read(line.text).value is None
    return not line.text.endswith(")")


def joined(message: str, rest: str) -> str | None:
    """A cut message with the line after it, None if that line cannot be its rest."""
    line = parse(message)
    if line is None:
        return message + rest if re.match(r"[0-9a-fA-F:. ]*\)", rest) else None
    if line.number == 154:
        longer = f"{message} {rest}" if not message.endswith("0x") else message + rest
        return longer if recovery.read(longer).value is not None else None
    if "(" in line.text:
        if not re.fullmatch(r"[0-9a-fA-Fx, ]+\)?\s*", rest):
            return None
        cut = re.search(r"(?:0x?[0-9a-fA-F]{0,7}|0)$", message) and not re.search(r"0x[0-9a-fA-F]{8}$", message)
        return message + ("" if cut and not rest.startswith("0x") else " ") + rest
    if re.search(r"\bLink\b|\(0x|\b(?:non)?fatal\b", rest, re.IGNORECASE) is None:
        return None
    tight = message[-1].isdigit() and rest[0].isdigit()
    return message + ("" if tight else " ") + rest


@lru_cache(maxsize=64)
def _address(text: str) -> str:
    """`dom:bus:dev` in the joining form. Drivers before 2010 printed a four-digit bus and no domain: `0001:00`."""
    parts = text.lower().split(":")
    domain = int(parts[0], 16) if len(parts) == 3 else 0
    return f"{domain:04x}:{parts[-2][-2:]}:{parts[-1]}"


def _process_id(text: str) -> int | None:
    digits = text.strip().strip("'\"")
    if not digits.isdecimal() or len(digits) > 10:
        return None
    return int(digits) if 0 < int(digits) < _MAX_PID else None


def _process_name(text: str) -> str | None:
    name = text.strip()
    if len(name) > 1 and name[0] == name[-1] and name[0] in "'\"":
        name = name[1:-1]
    bare = name.lstrip("'\"")
    if not bare or (bare[0] == "<" and "<unknown>".startswith(bare)):
        return None
    return name
