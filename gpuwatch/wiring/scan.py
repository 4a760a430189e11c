"""`gpuwatch scan`: one look at this node, as text or JSON, with an exit code for whoever called it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import gpuwatch.collectors
from gpuwatch.agent.child import System
from gpuwatch.agent.identity import Identity, identify
from gpuwatch.agent.settings import AgentSettings, checked, load
from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector
from gpuwatch.errors import ConfigError
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.facts.kernel_log import KernelLogFacts
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.facts.training import TrainingFacts
from gpuwatch.registry import leaves
from gpuwatch.scan import EXIT_CODES, Look, look

MOST_EVENTS_SHOWN = 20


def run(*, as_json: bool = False, config: Path | None = None, expected_gpus: int | None = None) -> int:
    """Look, print, and say how bad it is: 0 ok, 1 warning, 2 critical, 3 unknown.

    `config`: an agent's settings file, for its collectors' tables; none is needed. `expected_gpus`: how many there
    should be; without it, as many as are on the PCI bus.
    """
    doors = leaves(gpuwatch.collectors, "COLLECTOR", Collector)
    settings = checked({}, doors, file="") if config is None else load(config, doors)
    seen = look(
        _identity(settings.agent),
        doors,
        settings.collectors,
        clock=SystemClock(),
        processes=System(),
        state_dir=Path(settings.agent.state_dir),
        expected_gpus=expected_gpus,
    )
    print(json.dumps(as_object(seen), indent=2) if as_json else as_text(seen))
    return EXIT_CODES[seen.level()]


def as_object(seen: Look) -> dict[str, Any]:
    """For programs: findings, sources with their facts by name, and events."""
    return {
        "slot": seen.slot,
        "machine": seen.machine,
        "boot_id": seen.boot_id,
        "at_unix_ns": seen.at_unix_ns,
        "level": seen.level(),
        "exit_code": EXIT_CODES[seen.level()],
        "statement": seen.statement,
        "findings": [_plain(remark) for remark in seen.remarks],
        "events": [_plain(event) for event in seen.events],
        "sources": {source.collector: _plain(source) for source in seen.sources},
    }


def as_text(seen: Look) -> str:
    """For people."""
    lines = [f"{seen.slot}: {seen.statement}"]
    for source in seen.sources:
        if source.status != "ok" and source.reason != seen.statement:
            lines.append(f"  {source.collector}: {source.status}: {source.reason}")
        elif source.status == "ok":
            lines += [f"  {line}" for line in _facts_in_words(source.facts)]
    shown = [event for event in seen.events if event.boot_id in ("", seen.boot_id)]
    for event in shown[-MOST_EVENTS_SHOWN:]:
        xid = "" if event.xid is None else f" Xid {event.xid}"
        times = f" ({event.count} times)" if event.count > 1 else ""
        lines.append(f"  kernel{xid} {event.pci or ''} {event.severity}: {event.text[:100]}{times}")
    lines.append("")
    for remark in seen.remarks:
        action = "" if remark.action == "none" else f"; do: {remark.action.replace('_', ' ')}"
        lines.append(f"{remark.level.upper():9}{remark.subject}: {remark.because}{action} [{remark.rule}]")
    lines.append({"ok": "OK: nothing wrong was found"}.get(seen.level(), f"worst: {seen.level()}"))
    return "\n".join(lines)


def _facts_in_words(facts: Any) -> list[str]:
    if isinstance(facts, NvmlFacts):
        return [_gpu_in_words(gpu) for gpu in facts.gpus]
    if isinstance(facts, HostFacts):
        used = _of(facts.memory_used_bytes, facts.memory_total_bytes)
        words = f"host: load {_known(facts.load1)}, memory {used}, processes that cannot be woken "
        return [words + _known(facts.blocked_process_count)]
    if isinstance(facts, KernelLogFacts):
        return [f"kernel log: read from {facts.source}" if facts.readable else "kernel log: cannot be read"]
    if isinstance(facts, TrainingFacts):
        living = sum(beat.alive is not False for beat in facts.beats)
        return [f"training: {living} of {len(facts.beats)} ranks live"] if facts.beats else ["training: no heartbeats"]
    return []


def _gpu_in_words(gpu: Gpu) -> str:
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
    return "?" if value is None else f"{value:g}"


def _plain(value: Any) -> Any:
    """Records as objects with field names; on the wire they are arrays."""
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _identity(agent: AgentSettings) -> Identity:
    try:
        return identify(agent)
    except ConfigError:  # a machine without an id can be looked at all the same
        return identify(msgspec.structs.replace(agent, machine="unknown"))
