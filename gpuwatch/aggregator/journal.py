"""The brain's pen: lines gather during a tick and are written together; what was said already is not said again.

When the ledger cannot be written the lines are kept and tried again at the next tick; meanwhile the brain counts as
blind, so nothing new is done that could not be written down.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from gpuwatch.errors import StoreError
from gpuwatch.model.ledger import (
    HealthChanged,
    HoldNoted,
    LedgerLine,
    LifecycleChanged,
    ProvenUp,
    SpareQuota,
    snap_ns,
)
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Hold
from gpuwatch.model.states import Health
from gpuwatch.model.verdict import Verdict
from gpuwatch.model.view import NodeView
from gpuwatch.store.sqlite import Store

LOG = logging.getLogger("gpuwatch.ledger")
MAX_PENDING = 100_000
FIRST_ROUND_S = 60.0  # after our start every agent needs time to be heard
QUIET_HOLDS = frozenset({"in_progress"})  # an action is under way, and tells its own steps
_BROKEN = frozenset({Health.DEAD, Health.DRIVER_FAILED})


class Journal:
    """What has been written of each machine, and what waits to be."""

    def __init__(self, store: Store, started: Moment) -> None:
        self._store = store
        self._started = started
        self._pending: list[LedgerLine] = []
        self._health: dict[str, tuple[str, int]] = {}  # machine -> what was written last, and its moment
        self._holds: dict[tuple[str, str], str] = {}  # slot and machine -> the reason that was written last
        self._quotas: dict[str, int] = {}
        self.error = ""  # why the last write failed
        for line in store.lines_of("health", "spare_quota"):
            self._remember(line)

    def add(self, lines: Iterable[LedgerLine]) -> None:
        """To be written at the end of the tick. Boundaries are snapped to ticks here, once."""
        for line in lines:
            at_ns = snap_ns(line.at_unix_ns)
            self._pending.append(line if at_ns == line.at_unix_ns else msgspec.structs.replace(line, at_unix_ns=at_ns))
        del self._pending[: max(0, len(self._pending) - MAX_PENDING)]

    def write(self) -> bool:
        """Write what has gathered. False, and `error` says why, if it cannot be."""
        lines = self._pending
        if not lines:
            self.error = ""
            return True
        try:
            self._store.append(lines)
        except StoreError as error:
            if not self.error:
                LOG.error("%s", error)
            self.error = f"{error.what}: {error.why}"
            return False
        if self.error:
            LOG.info("the ledger can be written again")
        self.error = ""
        self._pending = []
        for line in lines:
            self._remember(line)
        return True

    def health(self, verdict: Verdict, view: NodeView, fault: str | None, now: Moment) -> None:
        """Tell a change of health, at the moment that the ledger's definition asks for."""
        was, was_at_ns = self._health.get(verdict.machine, ("", 0))
        if was == verdict.health:
            return
        unheard = view.last_report_monotonic_ns is None and verdict.health in (Health.JOINING, Health.UNKNOWN)
        if unheard and (not was or now.age_s(self._started.monotonic_ns) < FIRST_ROUND_S):
            return  # nothing is known of it yet; that we have just begun is no change of its health
        at_ns = now.unix_ns
        if verdict.health in _BROKEN:
            at_ns = min(at_ns, verdict.onset_unix_ns or view.last_report_unix_ns or at_ns)
        line = HealthChanged(
            at_unix_ns=at_ns,
            machine=verdict.machine,
            slot=verdict.slot,
            health=str(verdict.health),
            because=verdict.because,
            fault=fault,
        )
        lines: list[LedgerLine] = [line]
        if was == Health.DEAD and verdict.health not in _BROKEN and _up_since(view, was_at_ns, now):
            lines.append(ProvenUp(at_unix_ns=was_at_ns, machine=verdict.machine, until_unix_ns=now.unix_ns))
        self.add(lines)
        self._health[verdict.machine] = (str(verdict.health), at_ns)

    def lifecycle(self, view: NodeView, to: str, because: str, fault: str | None, now: Moment) -> None:
        """Tell a change of lifecycle that is no step of an action."""
        line = LifecycleChanged(
            at_unix_ns=now.unix_ns, machine=view.machine, slot=view.slot, lifecycle=to, because=because, fault=fault
        )
        self.add([line])

    def holds(self, holds: Iterable[Hold], now: Moment) -> None:
        """Tell each hold when it begins and when its reason changes."""
        current: dict[tuple[str, str], str] = {}
        for hold in holds:
            subject = (hold.slot, hold.machine)
            current[subject] = hold.reason
            if hold.reason in QUIET_HOLDS or self._holds.get(subject) == hold.reason:
                continue
            self.add(
                [
                    HoldNoted(
                        at_unix_ns=now.unix_ns,
                        slot=hold.slot,
                        machine=hold.machine,
                        reason=hold.reason,
                        because=hold.because,
                        fault=hold.fault,
                    )
                ]
            )
        self._holds = current

    def quota(self, pool: str, count: int, now: Moment) -> None:
        """Tell how many free nodes of a pool are spare by intention, where that changed."""
        if self._quotas.get(pool, 0) != count:
            self.add([SpareQuota(at_unix_ns=now.unix_ns, pool=pool, count=count)])
            self._quotas[pool] = count

    def _remember(self, line: LedgerLine) -> None:
        if isinstance(line, HealthChanged):
            self._health[line.machine] = (line.health, line.at_unix_ns)
        elif isinstance(line, SpareQuota):
            self._quotas[line.pool] = line.count


def _up_since(view: NodeView, unix_ns: int, now: Moment) -> bool:
    """It speaks, and it has not booted since then: it was up all along, only unheard."""
    last_ns, booted_ns = view.last_report_monotonic_ns, view.boot_changed_monotonic_ns
    since_ns = now.monotonic_ns - (now.unix_ns - unix_ns)
    return last_ns is not None and last_ns > since_ns and (booted_ns is None or booted_ns < since_ns)
