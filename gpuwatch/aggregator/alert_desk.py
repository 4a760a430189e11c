"""Which alerts there should be now: every open incident, and every one that ended lately. Asked by all pushers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gpuwatch.aggregator.alert_runs import AlertRuns
from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.aggregator.alerts import RESOLVED_S, Alert, alert_of
from gpuwatch.clock import Clock

FRESH_S = 1.0


class AlertDesk:
    """Reads what the overview tells. Safe to ask from several threads."""

    def __init__(
        self,
        *,
        settings: AlertmanagerSettings,
        cluster: str,
        page_url: str,
        runs: AlertRuns,
        open_faults: Callable[[], object],
        incidents: Callable[[], list[dict[str, Any]]],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._page_url = page_url
        self._runs = runs
        self._open_faults = open_faults  # falsy while no incident is open
        self._incidents = incidents
        self._clock = clock
        self._lock = threading.Lock()
        self._alerts: tuple[Alert, ...] = ()
        self._made_ns: int | None = None
        self._quiet = False  # nothing was open when they were made

    def alerts(self) -> tuple[Alert, ...]:
        """Open ones first. Raises `StoreError`."""
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            if self._made_ns is not None and now_ns - self._made_ns < FRESH_S * 1e9:
                return self._alerts
            open_now = bool(self._open_faults())
            if open_now or not self._quiet:  # the price is worked out only for whom it interests: not while all is well
                self._alerts = self._made()
                self._quiet = not open_now and all(alert.ended_unix_ns is not None for alert in self._alerts)
            self._made_ns = now_ns
            return self._alerts

    def _made(self) -> tuple[Alert, ...]:
        since_ns = self._clock.unix_ns() - int(RESOLVED_S * 1e9)
        return tuple(
            alert_of(
                incident,
                run=self._runs.run_of(incident["fault"]),
                cluster=self._cluster,
                page_url=self._page_url,
                settings=self._settings,
            )
            for incident in self._incidents()
            if incident["closed_unix_ns"] is None or incident["closed_unix_ns"] > since_ns
        )
