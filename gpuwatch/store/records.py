"""What the store keeps beside the ledger, as records."""

from __future__ import annotations

import msgspec

from gpuwatch.model.facts.kernel_log import KernelEvent
from gpuwatch.model.wire import Goodbye

EventKey = tuple[str, str]
"""Machine and event id: what makes two deliveries the same event."""


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel event of one machine."""

    machine: str
    slot: str
    boot_id: str
    happened_unix_ns: (
        int  # by the aggregator's clock: when it was received, less the age it had by the node's own clock
    )
    event: KernelEvent

    def key(self) -> EventKey:
        """The same for each delivery of it."""
        return self.machine, self.event.id


class LastSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a machine over an aggregator's restart."""

    machine: str
    slot: str
    lifecycle: str
    boot_id: str | None = None
    agent_id: str = ""
    sequence: int = -1
    last_report_unix_ns: int | None = None
    interval_s: float = 5.0
    goodbye: Goodbye | None = None
    earlier_boots: tuple[str, ...] = ()
    pool: str = ""


class SagaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One action with its steps; the body is the executor's own record."""

    action_id: str
    ended: bool
    started_unix_ns: int
    body: bytes


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A person agreed to one action, until it expires."""

    action_id: str
    who: str
    approved_unix_ns: int
    expires_unix_ns: int


class HumanHold(msgspec.Struct, frozen=True, kw_only=True):
    """A person wants hands off this slot."""

    slot: str
    who: str
    because: str
    at_unix_ns: int
