"""One look in words: what is known of each source, then the findings, grouped by what they have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any

from gpuwatch.faults.sentences import ACTION
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.facts.infiniband import InfinibandFacts
from gpuwatch.model.facts.kernel_log import KernelLogFacts
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.facts.pcie import PcieFacts
from gpuwatch.model.facts.services import ServicesFacts
from gpuwatch.model.facts.training import TrainingFacts
from gpuwatch.rules import Rule
from gpuwatch.scan import EXIT_CODES, Look, Remark

LOCAL_ACTION = {  # asked for by this look alone; no planner knows them
    "check_machine": "see what machine this is: it has no NVIDIA GPU on its PCI bus, and no driver either",
    "install_driver": "install the NVIDIA driver (module and libraries of one version); a reboot alone brings none",
}
MOST_EVENTS_SHOWN = 20
MOST_SUBJECTS_SHOWN = 16
NOTHING_KNOWN = "what could not be looked at is not known to be well"


def as_text(seen: Look, rules: Mapping[str, Rule[Any]]) -> str:
    """For people."""
    lines = [f"{seen.slot}: {seen.statement}"]
    for source in seen.sources:
        if source.status != "ok" and source.reason != seen.statement:
            lines.append(f"  {source.collector}: {source.status}: {source.reason}")
        elif source.status == "ok":
            lines += [f"  {line}" for line in _facts(source.facts)]
    shown = [event for event in seen.events if event.boot_id in ("", seen.boot_id)]
    for event in shown[-MOST_EVENTS_SHOWN:]:
        xid = "" if event.xid is None else f" Xid {event.xid}"
        times = f" ({event.count} times)" if event.count > 1 else ""
        lines.append(f"  kernel{xid} {event.pci or ''} {event.severity}: {event.text[:100]}{times}")
    for level, rule, remarks in grouped(seen.remarks):
        lines += ["", f"{level.upper()}: {headline(rule, rules)}"]
        lines += [f"  seen     {remark.subject}: {remark.because}" for remark in remarks[:MOST_SUBJECTS_SHOWN]]
        if len(remarks) > MOST_SUBJECTS_SHOWN:
            lines.append(f"           and {len(remarks) - MOST_SUBJECTS_SHOWN} more like these: --json has them all")
        known = rules.get(rule)
        matters = (known.matters if known is not None and level != "unknown" else "") or (
            NOTHING_KNOWN if level == "unknown" else ""
        )
        lines += [f"  matters  {matters}"] if matters else []
        for action in sorted({remark.action for remark in remarks} - {"none"}):
            lines.append(f"  do       {(ACTION | LOCAL_ACTION).get(action, action.replace('_', ' '))}")
        lines += [f"  source   {known.source}"] if known is not None and known.source and level != "unknown" else []
    level = seen.level()
    ending = {"ok": "OK: nothing wrong was found", "unknown": "unknown: not everything could be looked at"}
    lines += ["", ending.get(level, f"worst: {level}") + f" (exit code {EXIT_CODES[level]})"]
    return "\n".join(lines)


def headline(rule: str, rules: Mapping[str, Rule[Any]]) -> str:
    """The rule's own first sentence, else its name."""
    return rules[rule].title() if rule in rules else f"source {rule}"


def grouped(remarks: tuple[Remark, ...]) -> Iterator[tuple[str, str, list[Remark]]]:
    """Level, rule and their remarks, in the order that they have."""
    key: Callable[[Remark], tuple[str, str]] = lambda remark: (remark.level, remark.rule)  # noqa: E731
    for (level, rule), found in groupby(remarks, key):
        yield level, rule, list(found)


def _facts(facts: Any) -> list[str]:
    if isinstance(facts, NvmlFacts):
        return [_gpu(gpu) for gpu in facts.gpus]
    if isinstance(facts, HostFacts):
        used = _of(facts.memory_used_bytes, facts.memory_total_bytes)
        words = f"host: load {_known(facts.load1)}, memory {used}, processes stuck in the kernel "
        return [words + _known(facts.blocked_process_count)]
    if isinstance(facts, KernelLogFacts):
        return [f"kernel log: read from {facts.source}" if facts.readable else "kernel log: cannot be read"]
    if isinstance(facts, TrainingFacts):
        living = sum(beat.alive is not False for beat in facts.beats)
        return [f"training: {living} of {len(facts.beats)} ranks live"] if facts.beats else ["training: no heartbeats"]
    if isinstance(facts, InfinibandFacts):
        active = sum(port.state == "active" for port in facts.ports)
        expected = sum(port.expected for port in facts.ports)
        return [f"RDMA: {active} of {len(facts.ports)} ports active, {expected} must be"]
    if isinstance(facts, PcieFacts):
        kinds = Counter(device.kind for device in facts.devices if not device.gone)
        return ["PCI: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))]
    if isinstance(facts, ServicesFacts):
        states = (f"{unit.name.removesuffix('.service')} {unit.active_state}" for unit in facts.units)
        return ["services: " + (", ".join(states) or "none of those that are watched")]
    return []


def _gpu(gpu: Gpu) -> str:
    head = f"GPU {gpu.index} {gpu.pci or '?'} {gpu.name or '?'}"
    if gpu.error is not None:
        return f"{head}: refuses, NVML code {gpu.error}"
    busy = "?" if gpu.utilization_ratio is None else f"{gpu.utilization_ratio * 100:.0f}"
    heat = "?" if gpu.temperature_celsius is None else str(gpu.temperature_celsius)
    power = "?" if gpu.power_watts is None else f"{gpu.power_watts:.0f}"
    memory = _of(gpu.memory_used_bytes, gpu.memory_total_bytes)
    return f"{head}: {busy} %, {memory}, {power} W, {heat} °C, {len(gpu.pids)} processes"


def _of(used: int | None, total: int | None) -> str:
    if used is None or total is None:
        return "? GiB"
    return f"{used / (1 << 30):.1f} of {total / (1 << 30):.1f} GiB"


def _known(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"
