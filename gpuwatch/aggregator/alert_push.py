"""Tells one Alertmanager what is open and what is over, again and again, in a thread of its own: nobody waits for it.

Alertmanager keeps alerts in memory and lets those expire that are not told again. So open ones are repeated, and when
it was away for a while everything is told anew, also what ended meanwhile; it knows itself what it has paged for.
While there is nothing to tell an empty list proves that it would be taken: the rules of Prometheus take over when that
proof gets old. An alert that is refused for what it is holds up no other one; and it is no success, so they stand in.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.aggregator.alertmanager import AlertError, Alertmanager
from gpuwatch.aggregator.alerts import Alert, body
from gpuwatch.clock import Clock
from gpuwatch.errors import GpuwatchError

LOG = logging.getLogger("gpuwatch.alerts")
LOOK_S = 1.0
BEAT_S = 30.0  # the proof that it listens is no older than that
ENDED_AGAIN_S = 900.0  # an end is repeated for so long: it may die between taking and telling it
"""… and for as long as anything is open, since that may have kept it quiet (`inhibit_rules`): it tells no end then."""
AHEAD_S = 5.0  # its clock and ours may differ by so much; its own counts for when an alert expires
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
        self._told: dict[str, tuple[tuple[object, ...], int]] = {}  # alert -> what, and when (monotonic)
        self._beat_ns: int | None = None
        self._failed_in_a_row = 0
        self.failure_count = 0
        self.told_count = 0  # alerts that were taken, repeated ones too
        self.open_count = 0
        self.refused_count = 0  # alerts refused for what they are
        self.success_monotonic_ns: int | None = None  # when it last took what we had to say
        self._open_ns: int | None = None  # when an alert was last open
        self._its_clock: tuple[int, int] | None = None  # what it said last, and when that was (monotonic)
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

    def age_s(self) -> float | None:
        """Seconds since it last took what we had to say; None: never."""
        success_ns = self.success_monotonic_ns
        return None if success_ns is None else (self._clock.monotonic_ns() - success_ns) / 1e9

    def _tell(self, alerts: Sequence[Alert]) -> None:
        now_ns = self._clock.monotonic_ns()
        if self.open_count:
            self._open_ns = now_ns
        due = [alert for alert in alerts if self._is_due(alert, now_ns)]
        if not due and self._beat_ns is not None and now_ns - self._beat_ns < BEAT_S * 1e9:
            return
        if due and self._its_clock is None:
            self._post([])  # ask first what time it is
        refused: list[AlertError] = []
        for batch in _batches(due):
            refused += self._post(batch)
            self._told |= {alert.id: (alert.told(), now_ns) for alert in batch}
        if refused:
            raise refused[0]
        self.success_monotonic_ns = self._beat_ns = now_ns
        known = {alert.id for alert in alerts}
        self._told = {name: told for name, told in self._told.items() if name in known}

    def _post(self, batch: Sequence[Alert]) -> list[AlertError]:
        """Why some are refused for what they are; all others are told. Raises `AlertError` where none can be."""
        ahead_ns = self._ahead_ns()
        told = [alert.moved(ahead_ns) for alert in batch] if ahead_ns else batch
        now_unix_ns = self._clock.unix_ns() + ahead_ns
        try:
            said = self._receiver.post(body(told, now_unix_ns=now_unix_ns, expires_s=self._settings.expires_s))
        except AlertError as error:
            if not error.refused or not batch:
                raise
            if len(batch) == 1:
                self.refused_count += 1
                return [error.about(batch[0].labels)]
            half = len(batch) // 2
            return self._post(batch[:half]) + self._post(batch[half:])
        self.told_count += len(batch)
        if said is not None:
            self._its_clock = (said, self._clock.monotonic_ns())
        return []

    def _ahead_ns(self) -> int:
        """How far its clock is before ours, where that matters: by ours, an open alert could have expired there."""
        if self._its_clock is None:
            return 0
        said_ns, at_ns = self._its_clock
        ahead_ns = said_ns + (self._clock.monotonic_ns() - at_ns) - self._clock.unix_ns()
        return ahead_ns if abs(ahead_ns) > AHEAD_S * 1e9 else 0

    def _is_due(self, alert: Alert, now_ns: int) -> bool:
        told, at_ns = self._told.get(alert.id, ((), 0))
        if told != alert.told():
            return True
        if alert.ended_unix_ns is not None:
            long_ago_ns = self._clock.unix_ns() - int(ENDED_AGAIN_S * 1e9)
            quiet = self._open_ns is None or now_ns - self._open_ns > ENDED_AGAIN_S * 1e9
            if quiet and alert.ended_unix_ns < long_ago_ns:
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


def _batches(due: Sequence[Alert]) -> Iterator[Sequence[Alert]]:
    """In the order of their ranks, none of two; one empty batch where nothing is due."""
    for rank in sorted({alert.rank for alert in due}) or [0]:
        same = [alert for alert in due if alert.rank == rank]
        for at in range(0, max(1, len(same)), BATCH):
            yield same[at : at + BATCH]
