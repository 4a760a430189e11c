"""What the thinking rooms see: every node with what each witness last said of it, and the fleet as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from gpuwatch.model.facts.kernel_log import KernelEvent
from gpuwatch.model.policy import Policy
from gpuwatch.model.run import RunView
from gpuwatch.model.states import Lifecycle
from gpuwatch.model.wire import Goodbye, Status

F = TypeVar("F")


class MissingFact(LookupError):
    """A rule asked for a fact that is not known. `assess` turns it into `Unknown`."""


class Source(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One envelope as received: everything but its facts."""

    collector: str
    status: Status
    received_monotonic_ns: int
    at_unix_ns: int
    took_s: float = 0.0
    reason: str | None = None
    since_unix_ns: int | None = None
    abandoned_count: int = 0


class SchedulerSays(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's word on one slot."""

    state: str  # idle | allocated | draining | drained | down | unknown
    received_monotonic_ns: int
    reason: str = ""
    drain_owner: str = ""  # "" not drained | "gpuwatch" | "foreign"
    jobs: tuple[str, ...] = ()


class CloudSays(msgspec.Struct, frozen=True, kw_only=True):
    """The cloud's word on one machine."""

    state: str  # running | starting | stopped | failed | releasing | gone | unknown
    received_monotonic_ns: int
    because: str = ""
    absent_because: str = ""  # for gone: scaled_in | evicted | stopped | powered_down | surplus | unexplained


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One machine in one slot. `facts` holds decoded fact records by type, only those whose source is `ok`."""

    slot: str
    machine: str
    boot: str | None
    pool: str
    lifecycle: Lifecycle
    expected_gpu_count: int | None
    last_report_monotonic_ns: int | None  # None: never heard of since the aggregator's start
    interval_s: float = 5.0
    last_report_unix_ns: int | None = None
    goodbye: Goodbye | None = None
    goodbye_monotonic_ns: int | None = None
    previous_boot: str | None = None  # the boot before this one, if it changed
    boot_changed_monotonic_ns: int | None = None
    previous_goodbye: bool = False  # the earlier boot said goodbye, or we ordered the reboot
    facts: Mapping[type, Any] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    events: tuple[KernelEvent, ...] = ()  # of this boot, after the last repair, not expired
    scheduler: SchedulerSays | None = None
    cloud: CloudSays | None = None
    run: RunView | None = None
    domain: str = ""  # failure domain: rack, switch, placement group
    first_seen_monotonic_ns: int | None = None
    group: str = ""  # the cloud's group that this machine belongs to; empty: its pool's name
    fills_slot: bool = True  # False: another machine does, and this one waits to take over, or only claims the slot

    def fact(self, kind: type[F]) -> F:
        """The latest facts of this type, or `MissingFact` with the reason."""
        found = self.facts.get(kind)
        if found is None:
            raise MissingFact(f"no {kind.__name__} from {self.slot}")
        return found  # type: ignore[no-any-return]

    def silent_s(self, now_monotonic_ns: int) -> float | None:
        """Seconds since the last report; None if there never was one."""
        if self.last_report_monotonic_ns is None:
            return None
        return (now_monotonic_ns - self.last_report_monotonic_ns) / 1e9

    def said_goodbye(self) -> bool:
        """The last thing it sent was a goodbye: its silence has a reason."""
        return self.goodbye is not None and (self.goodbye_monotonic_ns or 0) >= (self.last_report_monotonic_ns or 0)

    def ought_to_speak(self) -> bool:
        """It has spoken since the aggregator's start, said no goodbye, and nobody took it away."""
        return (
            self.last_report_monotonic_ns is not None
            and self.lifecycle is not Lifecycle.RETIRED
            and not self.said_goodbye()
            and (self.cloud is None or self.cloud.state not in ("gone", "releasing"))
        )

    def is_silent(self, now_monotonic_ns: int, after_intervals: float) -> bool:
        """It ought to speak, and more reports than that are missing."""
        last_ns = self.last_report_monotonic_ns
        if last_ns is None or now_monotonic_ns - last_ns <= after_intervals * self.interval_s * 1e9:
            return False
        return self.ought_to_speak()


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """One cloud group: who owns its size, and how many machines it wants."""

    name: str
    owner: str  # "gpuwatch" or the controller that owns it
    target_count: int | None
    refuses: tuple[str, ...] = ()  # settings under which we must not act, each named
    reimages: bool = False  # its cloud can give a machine a fresh system disk


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """The whole fleet at one moment, and how well we ourselves see."""

    nodes: tuple[NodeView, ...]
    runs: tuple[RunView, ...] = ()
    groups: tuple[GroupView, ...] = ()
    blind_because: str = ""  # not empty: the aggregator suspects itself; nobody is condemned for silence
    started_monotonic_ns: int = 0
    policies: Mapping[str, Policy] = field(default_factory=dict)  # by pool; a pool without one has the default
    order_key: str = ""  # the public key with which we sign orders to the hands of nodes; empty: we cannot
