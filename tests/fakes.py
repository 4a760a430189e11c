"""Hand-written stand-ins that several rooms' tests share: a clock, a node, a fleet. Fakes, never mocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.run import RankView, RunView
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.view import FleetView, NodeView, Source

S = 1_000_000_000
T0 = Moment(1_790_000_000 * S, 50_000 * S)
"""The tests' now: some second of 2026, fifty thousand seconds after the aggregator's boot."""


@dataclass(slots=True)
class FakeClock:
    """Both clocks, moved by hand. `step_wall` is what an operator or NTP does to the wall clock alone."""

    unix: int = T0.unix_ns
    monotonic: int = T0.monotonic_ns

    def unix_ns(self) -> int:
        return self.unix

    def monotonic_ns(self) -> int:
        return self.monotonic

    def moment(self) -> Moment:
        return Moment(self.unix, self.monotonic)

    def pass_s(self, seconds: float) -> Moment:
        self.unix += int(seconds * S)
        self.monotonic += int(seconds * S)
        return self.moment()

    def step_wall(self, seconds: float) -> None:
        self.unix += int(seconds * S)


def later(moment: Moment, seconds: float) -> Moment:
    """The same clocks, so many seconds on."""
    return Moment(moment.unix_ns + int(seconds * S), moment.monotonic_ns + int(seconds * S))


def gpus(count: int = 8, **changes: Any) -> tuple[Gpu, ...]:
    """So many healthy GPUs."""
    made = []
    for index in range(count):
        usual: dict[str, Any] = {"uuid": f"GPU-{index}", "pci": f"0000:{0x10 + index:02x}:00", "recovery_action": 0}
        made.append(Gpu(**{"index": index} | usual | changes))
    return tuple(made)


def nvml(**changes: Any) -> NvmlFacts:
    """Eight healthy GPUs under a loaded driver."""
    usual: dict[str, Any] = {"driver_version": "570.1", "gpus": gpus(), "pci_gpu_count": 8, "driver_loaded": True}
    return NvmlFacts(**usual | changes)


def source(collector: str, at: Moment = T0, **changes: Any) -> Source:
    """An envelope that came in just now."""
    usual: dict[str, Any] = {
        "collector": collector,
        "status": "ok",
        "received_monotonic_ns": at.monotonic_ns,
        "at_unix_ns": at.unix_ns,
    }
    return Source(**usual | changes)


def node_view(slot: str = "gpu01", *, at: Moment = T0, silent_s: float = 1.0, **changes: Any) -> NodeView:
    """A healthy node that reported `silent_s` ago; any field of `NodeView` may be changed."""
    heard = later(at, -silent_s)
    usual: dict[str, Any] = {
        "slot": slot,
        "machine": f"m-{slot}",
        "boot": "boot-1",
        "pool": "h100",
        "lifecycle": Lifecycle.IN_SERVICE,
        "expected_gpu_count": 8,
        "last_report_monotonic_ns": heard.monotonic_ns,
        "last_report_unix_ns": heard.unix_ns,
        "first_seen_monotonic_ns": T0.monotonic_ns - 3600 * S,
        "facts": {NvmlFacts: nvml(), KernelLogFacts: KernelLogFacts(readable=True), HostFacts: HostFacts()},
        "sources": {name: source(name, heard) for name in ("nvml", "kernel_log", "host")},
    }
    return NodeView(**usual | changes)


def with_nvml(view: NodeView, **changes: Any) -> NodeView:
    """The same node with other NVML facts."""
    return replace(view, facts=dict(view.facts) | {NvmlFacts: nvml(**changes)})


def fleet_view(*nodes: NodeView, **changes: Any) -> FleetView:
    """A fleet whose aggregator has run for an hour."""
    usual: dict[str, Any] = {"nodes": nodes, "started_monotonic_ns": T0.monotonic_ns - 3600 * S}
    return FleetView(**usual | changes)


def xid_event(number: int = 79, *, at: Moment = T0, **changes: Any) -> KernelEvent:
    """One fatal, draining Xid of the GPU at 0000:10:00."""
    usual: dict[str, Any] = {
        "id": f"boot-1/{number}/{at.unix_ns}",
        "at_unix_ns": at.unix_ns,
        "kind": "xid",
        "text": "words of the driver",
        "xid": number,
        "pci": "0000:10:00",
        "severity": "fatal",
        "action": "drain_replace",
        "drain": "yes",
        "boot_id": "boot-1",
    }
    return KernelEvent(**usual | changes)


def evidence(rule: str = "probe_hung", machine: str = "m-gpu01", **changes: Any) -> Evidence:
    """A conclusive word of the agent that the driver failed."""
    usual: dict[str, Any] = {
        "rule": rule,
        "subject": Subject("machine", machine),
        "argues_for": Health.DRIVER_FAILED,
        "because": f"{rule} says so",
        "conclusive": True,
        "action": "reboot",
    }
    return Evidence(**usual | changes)


def rank_view(rank: int, machine: str, *, at: Moment = T0, moved_s: float = 0.0, **changes: Any) -> RankView:
    """One rank that last moved `moved_s` ago and was read just now."""
    moved = later(at, -moved_s)
    usual: dict[str, Any] = {
        "rank": rank,
        "machine": machine,
        "slot": machine.removeprefix("m-"),
        "step": 100,
        "phase": "train",
        "alive": True,
        "received_monotonic_ns": at.monotonic_ns,
        "moved_monotonic_ns": moved.monotonic_ns,
        "step_end_unix_ns": moved.unix_ns,
        "still_s": moved_s,
    }
    return RankView(**usual | changes)


def run_view(*ranks: RankView, at: Moment = T0, **changes: Any) -> RunView:
    """A live attempt of run `opt` over these ranks."""
    usual: dict[str, Any] = {
        "run": "opt",
        "attempt": "opt.1",
        "machines": tuple(dict.fromkeys(rank.machine for rank in ranks)),
        "ranks": ranks,
        "world_size": len(ranks),
        "step": min((rank.step for rank in ranks if rank.step is not None), default=None),
        "phase": "train",
        "moved_monotonic_ns": max((rank.moved_monotonic_ns for rank in ranks), default=at.monotonic_ns),
        "usual_step_s": 10.0,
    }
    return RunView(**usual | changes)


def facts_without(view: NodeView, kind: type) -> Mapping[type, Any]:
    """The node's facts without one of them."""
    return {key: value for key, value in view.facts.items() if key is not kind}
