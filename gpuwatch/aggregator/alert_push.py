"""Tells one Alertmanager what is open and what is over, again and again, in a thread of its own: nobody waits for it.

Alertmanager keeps alerts in memory and lets those expire that are not told again. So open ones are repeated, and when
it was away for a while everything is told anew, also what ended meanwhile; it knows itself what it has paged for.
While there is nothing to tell an empty list proves that it would be taken: the rules of Prometheus take over when that
proof gets old.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.aggregator.alertmanager import Alertmanager
from gpuwatch.aggregator.alerts import Alert, body
from gpuwatch.clock import Clock
from gpuwatch.errors import GpuwatchError

LOG = logging.getLogger("gpuwatch.alerts")
LOOK_S = 1.0
BEAT_S = 30.0  # the proof that it listens is no older than that
ENDED_AGAIN_S = 900.0  # an end is repeated for so long: it may die between taking and telling it
BATCH = 200
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class Pusher:
    """`start` and `stop` are the thread; `turn` is one look, for whoever brings a clock."""

    def __init__(
        self, url: str, settings: AlertmanagerSettings, alerts: Callable[[], Sequence[Alert]], clock: Clock
    ) -> None:
        self._receiver = Alertmanager(url, settings)
        self.name = self._receiver.name
        self._settings = settings
        self._alerts = alerts
        self._clock = clock
        self._told: dict[str, tuple[tuple[object, ...], int]] = {}  # fault -> what, and when (monotonic)
        self._beat_ns: int | None = None
        self._failed_in_a_row = 0
        self.failure_count = 0
        self.told_count = 0  # alerts that were taken, repeated ones too
        self.open_count = 0
        self.success_unix_ns: int | None = None  # when it last took what we had to say
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"alerts {self.name}", daemon=True)

    def start(self) -> None:
        """From now on, until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """No more. What is open stays open until it expires: a restart is no end of any incident."""
        self._stopped.set()

    def turn(self) -> float:
        """Look, and tell what has to be told. Seconds until the next look."""
        try:
            alerts = self._alerts()
            self.open_count = sum(1 for alert in alerts if alert.ended_unix_ns is None)
            self._tell(alerts)
        except Exception as error:  # a bug in a story must not silence the others for ever
            return self._failed(error)
        if self._failed_in_a_row:
            LOG.info("Alertmanager %s takes alerts again", self.name)
        self._failed_in_a_row = 0
        return LOOK_S

    def _tell(self, alerts: Sequence[Alert]) -> None:
        now_ns = self._clock.monotonic_ns()
        due = [alert for alert in alerts if self._is_due(alert, now_ns)]
        if not due and self._beat_ns is not None and now_ns - self._beat_ns < BEAT_S * 1e9:
            return
        for at in range(0, max(1, len(due)), BATCH):
            batch = due[at : at + BATCH]
            now_unix_ns = self._clock.unix_ns()
            self._receiver.post(body(batch, now_unix_ns=now_unix_ns, expires_s=self._settings.expires_s))
            self._told |= {alert.fault: (alert.told(), now_ns) for alert in batch}
            self.told_count += len(batch)
            self.success_unix_ns, self._beat_ns = now_unix_ns, now_ns
        known = {alert.fault for alert in alerts}
        self._told = {fault: told for fault, told in self._told.items() if fault in known}

    def _is_due(self, alert: Alert, now_ns: int) -> bool:
        told, at_ns = self._told.get(alert.fault, ((), 0))
        if told != alert.told():
            return True
        if alert.ended_unix_ns is not None and self._clock.unix_ns() - alert.ended_unix_ns > ENDED_AGAIN_S * 1e9:
            return False
        return now_ns - at_ns >= self._settings.resend_s * 1e9

    def _failed(self, error: Exception) -> float:
        """Everything has to be told anew: it may come back with an empty memory."""
        if self._stopped.is_set():  # what we ask is closed already
            return LOOK_S
        self._told.clear()
        self._beat_ns = None
        self.failure_count += 1
        if not self._failed_in_a_row:
            if isinstance(error, GpuwatchError):
                LOG.warning("%s", error)
            else:
                LOG.error("alerts could not be told", exc_info=error)
        wait_s = RETRY_S[min(self._failed_in_a_row, len(RETRY_S) - 1)]
        self._failed_in_a_row += 1
        return wait_s

    def _work(self) -> None:
        wait_s = 0.0
        while not self._stopped.wait(wait_s):
            wait_s = self.turn()
