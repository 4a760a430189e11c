"""Events and decisions in words, for a person at three in the morning."""

from __future__ import annotations

from gpuwatch.faults.catalogue import UNKNOWN_XID, events, xids
from gpuwatch.faults.event import Event
from gpuwatch.faults.incidents import Decision, Told

SEVERITY = {
    "info": "no fault",
    "warn": "warning: the GPU itself works",
    "degraded": "degraded: works, but not as it should",
    "fatal": "fatal: do not use this GPU before it is repaired",
}
ACTION = {
    "none": "nothing",
    "check_app": "check the program; the GPU is healthy",
    "restart_app": "restart the job",
    "contact_support": "ask a person: open a case with the vendor, with this log",
    "reset_gpu": "reset the GPU once its jobs are gone",
    "reboot": "reboot the node",
    "drain_replace": "replace the machine (power it off; a warm reboot may not help)",
}
DRAIN = {
    "no": "no",
    "after_count": "only if it repeats; one event of this kind does not drain a node",
    "yes": "yes",
}
NODE_SEVERITY = {
    "info": "no fault",
    "warn": "warning: the node works",
    "degraded": "degraded: works, but not as it should",
    "fatal": "fatal: do not use it before it is repaired",
}
LOOKED_FOR = (
    "NVIDIA driver messages (NVRM: Xid …, GPU fallen off the bus, RmInitAdapter failed, API mismatch), NVSwitch SXid, "
    "network cards, PCI Express, disks and file systems, memory, lock-ups and panics, only in lines that the kernel "
    "itself wrote; the fabric manager's, networkd's and Slurm's own lines; output of nvidia-smi, lspci and ibstat"
)
_THINGS = {
    "array": "array",
    "dev": "device",
    "dimm": "memory module",
    "server": "file server",
    "cpus": "processors",
    "cpu": "processor",
}
_TOLD = frozenset({*_THINGS, "via", "device", "with_nvswitch", "switch", "link", "value", "client", "module"})


def headline(event: Event) -> str:
    """`Xid 79: GPU fell off the bus`."""
    if event.xid is not None:
        return f"Xid {event.xid}: {event.title}"
    if event.sxid is not None:
        return f"SXid {event.sxid}: {event.title}"
    return f"{event.title} ({event.kind})"


def how_bad(event: Event) -> str:
    """The severity in words, of the thing that the event is about."""
    return of_severity(
        event.severity, gpu=event.kind == "sxid" or event.kind not in events(), switch=event.kind == "sxid"
    )


def of_severity(severity: str, *, gpu: bool, switch: bool = False) -> str:
    """The same of a row of the catalogue."""
    words = (SEVERITY if gpu else NODE_SEVERITY)[severity]
    return words.replace("this GPU", "the GPUs of this switch") if switch else words


def where(event: Event, ports: tuple[str, ...] = (), uuid: str = "", serial: str = "") -> str:
    """Which GPU, MIG instance, switch or port."""
    if event.kind == "sxid" or event.kind.startswith("fm_nvswitch"):
        return "switch " + ", ".join(ports or (event.pci or "unknown",))
    if event.kind == "pcie_link_down":
        return f"port {event.pci}"
    if event.kind.startswith("driver_"):
        return "the node's driver, no single GPU"
    if event.kind in events() and (event.pci is None or "." in event.pci):
        return _thing(event)
    if event.pci is None:
        return "the log names no GPU"
    words = [f"GPU {event.pci}"]
    if event.gpu_instance is not None:
        words.append(f"MIG instance {event.gpu_instance}")
    if event.compute_instance is not None:
        words.append(f"compute instance {event.compute_instance}")
    return ", ".join([*words, *([uuid] if uuid else []), *([f"serial {serial}"] if serial else [])])


def _thing(event: Event) -> str:
    """What the event is about where it is no GPU."""
    words = [f"{label} {_list(event.details[key])}" for key, label in _THINGS.items() if key in event.details]
    if event.pci is not None:
        driver = event.details.get("device")
        words.append(f"PCI device {event.pci}" + (f" ({driver})" if driver is not None else ""))
    if "via" in event.details:
        words.append(f"behind port {event.details['via']}")
    return ", ".join(words) or "the node"


def process(event: Event, pids: int = 1) -> str:
    """Whose work it hit, as far as the line says."""
    if event.pid is None and event.name is None:
        return "none named"
    words = []
    if event.name is not None:
        words.append(event.name)
    if event.pid is not None:
        words.append(f"pid {event.pid}")
    if pids > 1:
        words.append(f"and {pids - 1} more")
    return ", ".join(words)


def notes(told: Told, others: list[Told]) -> list[str]:
    """What the text of this event adds, a sentence each."""
    event, details = told.event, told.event.details
    said: list[str] = []
    if told.cleared:
        said.append("A later line says that this is over.")
    if event.inferred:
        said.append("No Xid was printed; the driver's words mean the same as Xid 79.")
    if event.xid == 154:
        said.append(f"Recovery action: from {_number(details, 'from')} to {_number(details, 'to')}.")
    if event.xid == 45 and event.caused_by is None:
        said.append("45 is never the cause: look for another Xid of this GPU just before it, or a job that was killed.")
    if event.caused_by is not None:
        seen = any(other.event.xid == event.caused_by and other.event.pci == event.pci for other in others)
        there = "it is in this log" if seen else "it is not in this log, look further up"
        said.append(f"The driver itself names Xid {event.caused_by} as the cause ({there}); that one decides.")
    if "unit" in details or "registers" in details:
        said.append(_link_layer(event))
    elif "link" in details or "switch" in details:
        said.append(", ".join(f"{key} {_list(details[key])}" for key in ("switch", "link") if key in details) + ".")
    elif event.kind in events():
        more = [_detail(key, value) for key, value in details.items() if key not in _TOLD]
        said += [", ".join(more)[:1].upper() + ", ".join(more)[1:] + "."] if more else []
    if "with_nvswitch" in details:
        said.append(f"On a model with NVSwitches: {details['with_nvswitch']}.")
    for key in ("disagree", "check"):
        if key in details:
            said.append(f"{str(details[key])[:1].upper()}{str(details[key])[1:]}.")
    if details.get("follow_xid154"):
        said.append("NVIDIA's advice here is to see what Xid 154 or the GPU's recovery action asks for.")
    if event.suspect_peer:
        said.append("This sub-code points to the other end of the link: suspect the peer.")
    if details.get("pending_reset"):
        said.append("Takes effect at the next reset: plan one when the GPU is idle.")
    if "rst" in details:
        said.append(
            f"The driver says: reset needed {details['rst']}, drain and reset {details.get('drst', 'not said')}."
        )
    if details.get("client") or details.get("module"):
        said.append(f"Library {details.get('client', 'unknown')}, kernel module {details.get('module', 'unknown')}.")
    return said


def _detail(key: str, value: object) -> str:
    """One more thing that a line says, in words that can be read without knowing our names."""
    if key == "scope":
        return f"the memory of the {value} ran out"
    return f"for {value} s" if key == "seconds" else f"{key.replace('_', ' ')} {_list(value)}"


def decision(verdict: Decision) -> str:
    """One line for the whole log."""
    if verdict.root is None:
        return "no drain: what was reported is over, the driver says that the GPU is healthy again"
    cause = f"{headline(verdict.root)}, {where(verdict.root)}"
    named = verdict.root.caused_by if verdict.root.xid == 45 else None
    if named is not None and verdict.drain == "no":
        row = xids().get(named, UNKNOWN_XID)
        return (
            f"no drain by these lines alone, but they follow Xid {named} ({row.name}: {row.action}, "
            f"drain {row.drain}), whose own line is not here: find it. Because: {cause}"
        )
    what = ACTION[verdict.action]
    if verdict.drain == "yes":
        peer = "; suspect the other end of the link" if verdict.suspect_peer else ""
        return f"drain the node, then {what} ({verdict.action}){peer}. Because: {cause}"
    if verdict.action == "none":  # "no drain; nothing" would leave open whether there was anything to say
        again = "; drain only if it repeats" if verdict.drain == "after_count" else ""
        return f"no drain, and nothing needs to be done now{again}. Because: {cause}"
    if verdict.drain == "after_count":
        return f"no drain; {what} ({verdict.action}); drain only if it repeats. Because: {cause}"
    return f"no drain; {what} ({verdict.action}). Because: {cause}"


def _link_layer(event: Event) -> str:
    details = event.details
    words = []
    for key, label in (("unit", "unit"), ("link", "link"), ("subcode", "sub-code"), ("status", "status")):
        if key in details:
            words.append(f"{label} {details[key]}")
    if "published" in details:
        words.append(f"published as {details['published']}")
    if "then" in details:
        words.append(f"then: {str(details['then']).replace('_', ' ')}")
    if details.get("registers_incomplete"):
        words.append("the line was cut in its registers")
    return ", ".join(words)[:1].upper() + ", ".join(words)[1:] + "."


def _number(details: dict[str, object] | object, key: str) -> str:
    value = details.get(key) if isinstance(details, dict) else None
    return f"0x{value:x}" if isinstance(value, int) else "unknown"


def _list(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
