"""From when to when each machine is billed: the provider's own record where it has one, else first and last seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpuwatch.aggregator.expected import expected_gpus
from gpuwatch.aggregator.machine import Machine
from gpuwatch.aggregator.settings import Settings
from gpuwatch.clouds import CloudMachine, CloudSnapshot
from gpuwatch.model.ledger import LedgerLine, LifecycleChanged, LifeEnded, LifeStarted, snap_ns
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Lifecycle


class Lives:
    """Which lives are written down already."""

    def __init__(self, settings: Settings, written: Iterable[LedgerLine]) -> None:
        self._settings = settings
        self._started: dict[str, str] = {}  # machine -> source of its start
        self._ended: dict[str, str] = {}
        for line in written:
            self._note(line)

    def of_cloud(
        self, snapshot: CloudSnapshot, fault_of: Callable[[str], str | None], now_unix_ns: int
    ) -> list[LedgerLine]:
        """What the provider's list says that is not written yet. `fault_of`: the fault behind a creation's key."""
        lines: list[LedgerLine] = []
        for item in snapshot.machines:
            if item.slot is None:
                continue
            if item.started_unix_ns is not None and self._started.get(item.machine) != "provider":
                start = self._start_of(item, item.started_unix_ns, fault_of(item.action_id))
                lines.append(start)
                if item.machine not in self._started:
                    lines.append(self._first_lifecycle(start, now_unix_ns))
            known = self._started.get(item.machine) is not None or item.started_unix_ns is not None
            if item.ended_unix_ns is not None and known and self._ended.get(item.machine) != "provider":
                lines.append(LifeEnded(at_unix_ns=snap_ns(item.ended_unix_ns), machine=item.machine, source="provider"))
        for line in lines:
            self._note(line)
        return lines

    def of_fleet(
        self, records: Iterable[Machine], listed: Mapping[str, object] | None, now: Moment
    ) -> list[LedgerLine]:
        """Machines that report and are on no provider's list. `listed`: the list; None: there is no provider to ask."""
        lines: list[LedgerLine] = []
        for record in records:
            heard = record.heard
            if heard is None or record.machine in self._started or (listed is not None and record.machine in listed):
                continue
            pool = self._settings.pools[record.pool]
            start = LifeStarted(
                at_unix_ns=snap_ns(now.unix_ns - (now.monotonic_ns - record.first_seen_monotonic_ns)),
                machine=record.machine,
                slot=record.slot,
                pool=record.pool,
                gpu_count=expected_gpus(pool) or 0,
                provider=pool.provider,
                region=pool.region,
                sku=pool.sku,
                price_kind=pool.price_kind,
                source="seen",
            )
            lines += [start, self._first_lifecycle(start, now.unix_ns)]
        for line in lines:
            self._note(line)
        return lines

    def end(self, machine: str, at_unix_ns: int) -> list[LedgerLine]:
        """It left the fleet and no provider says when its billing ended."""
        if machine not in self._started or machine in self._ended:
            return []
        line = LifeEnded(at_unix_ns=snap_ns(at_unix_ns), machine=machine, source="seen")
        self._note(line)
        return [line]

    def _start_of(self, item: CloudMachine, started_unix_ns: int, fault: str | None) -> LifeStarted:
        place = self._settings.place(item.slot or "")
        pool = self._settings.pools[place.pool]
        return LifeStarted(
            at_unix_ns=snap_ns(started_unix_ns),
            machine=item.machine,
            slot=item.slot or "",
            pool=place.pool,
            gpu_count=item.gpu_count if item.gpu_count is not None else expected_gpus(pool, item.sku) or 0,
            provider=pool.provider or item.provider,
            region=pool.region or item.region,
            sku=pool.sku or item.sku,
            price_kind=item.price_kind if pool.price_kind == "ondemand" else pool.price_kind,
            source="provider",
            fault=fault,
        )

    def _first_lifecycle(self, start: LifeStarted, now_unix_ns: int) -> LifecycleChanged:
        """A young machine is being provisioned. What an old one did before we came is not known: no provisioning."""
        age_s = (now_unix_ns - start.at_unix_ns) / 1e9
        old = age_s > self._settings.pools[start.pool].policy.join_deadline_s
        return LifecycleChanged(
            at_unix_ns=start.at_unix_ns,
            machine=start.machine,
            slot=start.slot,
            lifecycle=str(Lifecycle.IN_SERVICE if old else Lifecycle.PROVISIONING),
            because="it was there before gpuwatch was" if old else "its billing began",
        )

    def _note(self, line: LedgerLine) -> None:
        if isinstance(line, LifeStarted):
            if self._started.get(line.machine) != "provider":
                self._started[line.machine] = line.source
        elif isinstance(line, LifeEnded):
            self._ended[line.machine] = line.source
