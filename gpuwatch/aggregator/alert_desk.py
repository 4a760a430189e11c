"""Which alerts there should be now, and which ended lately: incidents, shared causes, what waits for a person."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from gpuwatch.aggregator.alert_flaps import without_flaps
from gpuwatch.aggregator.alert_needs import alert_of_need
from gpuwatch.aggregator.alert_runs import AlertRuns
from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.aggregator.alert_shared import alert_of_shared
from gpuwatch.aggregator.alerts import RESOLVED_S, Alert, alert_of
from gpuwatch.aggregator.needs import Need
from gpuwatch.aggregator.sharing import Together
from gpuwatch.clock import Clock

FRESH_S = 1.0


class AlertDesk:
    """Reads what the others tell. Safe to ask from several threads."""

    def __init__(
        self,
        *,
        settings: AlertmanagerSettings,
        cluster: str,
        page_url: str,
        runs: AlertRuns,
        open_faults: Callable[[], Mapping[str, str]],
        incidents: Callable[[], list[dict[str, Any]]],
        shared: Callable[[], tuple[Together, ...]],
        needs: Callable[[], tuple[Need, ...]],
        unblock: Callable[[Need], str],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._page_url = page_url
        self._runs = runs
        self._open_faults = open_faults  # empty while no incident is open
        self._incidents = incidents
        self._shared = shared
        self._needs = needs
        self._unblock = unblock
        self._clock = clock
        self._lock = threading.Lock()
        self._alerts: tuple[Alert, ...] = ()
        self._made_ns: int | None = None
        self._quiet = False  # nothing was open when they were made
        self._standing: dict[str, Alert] = {}  # no incidents: these are in no ledger, and we remember what ended

    def alerts(self) -> tuple[Alert, ...]:
        """Open ones first, of these what keeps others quiet. Raises `StoreError`."""
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            if self._made_ns is not None and now_ns - self._made_ns < FRESH_S * 1e9:
                return self._alerts
            needs, shared = self._needs(), self._shared()
            open_now = bool(self._open_faults() or needs or shared)
            if open_now or not self._quiet:  # the price is worked out only for whom it interests: not while all is well
                self._alerts = self._made(needs, shared)
                self._quiet = not open_now and all(alert.ended_unix_ns is not None for alert in self._alerts)
            self._made_ns = now_ns
            return self._alerts

    def _made(self, needs: tuple[Need, ...], shared: tuple[Together, ...]) -> tuple[Alert, ...]:
        since_ns = self._clock.unix_ns() - int(RESOLVED_S * 1e9)
        incidents = self._incidents()
        alerts = [
            alert_of(
                incident,
                run=self._runs.run_of(incident["fault"]),
                cluster=self._cluster,
                page_url=self._page_url,
                settings=self._settings,
            )
            for incident in without_flaps(incidents, self._clock.unix_ns())
            if incident["closed_unix_ns"] is None or incident["closed_unix_ns"] > since_ns
        ]
        prices = {incident["fault"]: incident["price"] for incident in incidents}
        open_at = {one["slot"]: one["fault"] for one in incidents if one["slot"] and one["closed_unix_ns"] is None}
        self._keep(
            [self._of_shared(one, prices, open_at) for one in shared] + [self._of_need(one, prices) for one in needs],
            since_ns,
        )
        # What keeps others quiet goes first: Alertmanager asks for it as soon as it has one that began long ago.
        found = [*self._standing.values(), *alerts]
        return tuple(sorted(found, key=lambda alert: alert.ended_unix_ns is not None))

    def _of_shared(self, one: Together, prices: Mapping[str, Any], open_at: Mapping[str, str]) -> Alert:
        return alert_of_shared(
            one,
            prices=prices,
            faults=open_at,
            cluster=self._cluster,
            page_url=self._page_url,
            settings=self._settings,
        )

    def _of_need(self, one: Need, prices: Mapping[str, Any]) -> Alert:
        return alert_of_need(
            one,
            command=self._unblock(one),
            run=self._runs.run_of(one.fault) if one.fault else "",
            prices=prices,
            cluster=self._cluster,
            page_url=self._page_url,
            settings=self._settings,
        )

    def _keep(self, found: list[Alert], since_ns: int) -> None:
        """What was there and is not found any more has ended now; what ended long ago is forgotten."""
        now_ns = self._clock.unix_ns()
        here = {alert.id: alert for alert in found}
        for name, alert in self._standing.items():
            if name not in here:
                ended = alert if alert.ended_unix_ns is not None else alert.over(now_ns)
                if (ended.ended_unix_ns or now_ns) > since_ns:
                    here[name] = ended
        self._standing = here
