"""One machine's record, and the view of it that the thinking rooms get.

The server's thread swaps `heard`, `findings` and `events`, each an immutable value in one step; the executor's threads
swap `lifecycle`; everything else belongs to the brain's thread. A reader may see a record between two swaps, never half
a value.
"""

from __future__ import annotations

import msgspec

from gpuwatch.aggregator.facts import LazyFacts
from gpuwatch.aggregator.heard import Heard, Prior
from gpuwatch.clouds import CloudMachine
from gpuwatch.model.evidence import Finding
from gpuwatch.model.facts.kernel_log import KernelEvent
from gpuwatch.model.run import RunView
from gpuwatch.model.states import Lifecycle
from gpuwatch.model.view import CloudSays, NodeView, SchedulerSays, Source
from gpuwatch.store.records import LastSeen

MAX_EVENTS = 256  # of one machine in memory; a storm beyond it says nothing new
NEVER_NS = 1 << 62


class AgedEvent(msgspec.Struct, frozen=True):
    """A kernel event, and when it happened by our monotonic clock."""

    event: KernelEvent
    monotonic_ns: int


class Machine:
    """What is known of one machine. See the module for who may write what."""

    __slots__ = (
        "cloud",
        "cloud_record",
        "domain",
        "events",
        "expected_gpu_count",
        "fills_slot",
        "findings",
        "first_seen_monotonic_ns",
        "group",
        "heard",
        "lifecycle",
        "lifecycle_monotonic_ns",
        "machine",
        "ordered_boot",
        "pool",
        "prior",
        "prior_seen",
        "repaired_monotonic_ns",
        "run",
        "scheduler",
        "slot",
        "view",
        "view_until_ns",
        "viewed",
    )

    def __init__(self, machine: str, slot: str, now_monotonic_ns: int) -> None:
        self.machine = machine
        self.slot = slot
        self.pool = ""
        self.domain = ""
        self.group = ""
        self.expected_gpu_count: int | None = None
        self.fills_slot = False  # by the fleet, under its lock
        self.lifecycle = Lifecycle.PROVISIONING
        self.lifecycle_monotonic_ns = 0  # when it last changed in this process
        self.first_seen_monotonic_ns = now_monotonic_ns
        self.ordered_boot = ""  # the boot that an action of ours ends; by the executor's threads
        self.repaired_monotonic_ns = 0  # its kernel events up to then are history; by the executor's threads
        self.prior: Prior | None = None  # known of an earlier process of ours
        self.prior_seen: LastSeen | None = None
        self.heard: Heard | None = None  # by the server's thread
        self.findings: tuple[Finding, ...] = ()  # of the rules that run when a report arrives; by the server's thread
        self.events: tuple[AgedEvent, ...] = ()  # by the server's thread
        self.scheduler: SchedulerSays | None = None
        self.cloud: CloudSays | None = None
        self.cloud_record: CloudMachine | None = None
        self.run: RunView | None = None
        self.view: NodeView | None = None  # None: the brain changed something since it was built
        self.viewed: tuple[object, ...] = ()  # what other threads may have changed, as it was then
        self.view_until_ns = 0  # then an event of it expires

    def current_view(self, expires_ns: int, now_monotonic_ns: int) -> NodeView:
        """The view, built again only if something changed. For the brain's thread."""
        heard, events, lifecycle, fills = self.heard, self.events, self.lifecycle, self.fills_slot
        repaired_ns = self.repaired_monotonic_ns
        was = self.viewed
        unchanged = was and was[0] is heard and was[1] is events and was[2] is lifecycle and was[3] is fills
        unchanged = unchanged and was[4] == repaired_ns
        if self.view is None or not unchanged or now_monotonic_ns >= self.view_until_ns:
            self.view, self.view_until_ns = build_view(self, heard, events, expires_ns, now_monotonic_ns)
            self.viewed = (heard, events, lifecycle, fills, repaired_ns)
        return self.view

    def last_seen(self) -> LastSeen:
        """What of it must survive a restart."""
        heard = self.heard
        if heard is None:
            if self.prior_seen is not None:
                return msgspec.structs.replace(self.prior_seen, slot=self.slot, lifecycle=str(self.lifecycle))
            return LastSeen(machine=self.machine, slot=self.slot, pool=self.pool, lifecycle=str(self.lifecycle))
        return LastSeen(
            machine=self.machine,
            slot=self.slot,
            pool=self.pool,
            lifecycle=str(self.lifecycle),
            boot_id=heard.boot,
            agent_id=heard.agent_id,
            sequence=heard.sequence,
            last_report_unix_ns=heard.last.unix_ns,
            interval_s=heard.interval_s,
            goodbye=heard.goodbye,
            earlier_boots=heard.earlier_boots,
        )


def build_view(
    record: Machine, heard: Heard | None, events: tuple[AgedEvent, ...], expires_ns: int, now_monotonic_ns: int
) -> tuple[NodeView, int]:
    """The view of one machine, and the moment until which its events stay as they are."""
    until_ns = NEVER_NS
    live: list[AgedEvent] = []
    if heard is not None and events:  # of this boot and not expired; the rest are history and never cause an action
        limit_ns = max(now_monotonic_ns - expires_ns, record.repaired_monotonic_ns)
        live = [aged for aged in events if aged.event.boot_id == heard.boot and aged.monotonic_ns > limit_ns]
        until_ns = min((aged.monotonic_ns for aged in live), default=NEVER_NS) + expires_ns
    sources: dict[str, Source] = {}
    envelopes = {}
    for name, item in heard.sources.items() if heard is not None else ():
        envelope = item.envelope
        envelopes[name] = envelope
        sources[name] = Source(
            collector=name,
            status=envelope.status,
            received_monotonic_ns=item.monotonic_ns,
            # Not after the node's last word: before its clock stepped back it was later than now.
            at_unix_ns=min(envelope.at_unix_ns, heard.sent_unix_ns) if heard is not None else envelope.at_unix_ns,
            took_s=envelope.took_s,
            reason=envelope.reason,
            since_unix_ns=envelope.since_unix_ns,
            abandoned_count=envelope.abandoned_count,
        )
    seen = record.prior_seen
    view = NodeView(
        slot=record.slot,
        machine=record.machine,
        boot=heard.boot if heard is not None else seen.boot_id if seen is not None else None,
        pool=record.pool,
        lifecycle=record.lifecycle,
        expected_gpu_count=record.expected_gpu_count,
        last_report_monotonic_ns=None if heard is None else heard.last.monotonic_ns,
        last_report_unix_ns=heard.last.unix_ns if heard is not None else seen.last_report_unix_ns if seen else None,
        interval_s=heard.interval_s if heard is not None else seen.interval_s if seen is not None else 5.0,
        goodbye=heard.goodbye if heard is not None else seen.goodbye if seen is not None else None,
        goodbye_monotonic_ns=None if heard is None else heard.goodbye_monotonic_ns,
        previous_boot=None if heard is None or not heard.earlier_boots else heard.earlier_boots[-1],
        boot_changed_monotonic_ns=None if heard is None else heard.boot_changed_monotonic_ns,
        previous_goodbye=heard is not None
        and (heard.previous_goodbye or heard.earlier_boots[-1:] == (record.ordered_boot,)),
        facts=LazyFacts(envelopes),
        sources=sources,
        events=tuple(aged.event for aged in live),
        scheduler=record.scheduler,
        cloud=record.cloud,
        run=record.run,
        domain=record.domain,
        first_seen_monotonic_ns=record.first_seen_monotonic_ns,
        group=record.group,
        fills_slot=record.fills_slot,
    )
    return view, until_ns
