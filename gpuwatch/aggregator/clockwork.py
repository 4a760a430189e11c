"""Work by the wall clock: bills, retention, tidying. APScheduler keeps the times; nothing that watches depends on it.

APScheduler waits by wall clock: after a step an hour back it would fire nothing for an hour. So it is told of each step
(`clock_stepped`), and counts anew from then on.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler

from gpuwatch.clock import Clock
from gpuwatch.clouds import Cloud
from gpuwatch.errors import GpuwatchError
from gpuwatch.store.sqlite import Store

LOG = logging.getLogger("gpuwatch.clockwork")
DAY_S = 86_400


class Clockwork:
    """Begins with `start`, and stops without waiting for anything."""

    def __init__(
        self, *, store: Store, clock: Clock, event_days: int, cloud: Cloud | None, provider: str, bill_every_s: float
    ) -> None:
        self._store = store
        self._clock = clock
        self._event_days = event_days
        self._cloud = cloud
        self._provider = provider
        self._errors: dict[str, str] = {}
        self._scheduler: Any = BackgroundScheduler(
            timezone="UTC", job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1}
        )
        self._jobs: list[tuple[Callable[[], None], float]] = [(self.tidy, DAY_S)]
        if cloud is not None:
            self._jobs.append((self.import_bill, bill_every_s))

    def start(self) -> None:
        """From now on."""
        logging.getLogger("apscheduler").setLevel(logging.WARNING)
        self._add()
        self._scheduler.start()

    def stop(self) -> None:
        """No more."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def clock_stepped(self) -> None:
        """All times that were waited for are wrong: count them anew from the clock as it is now."""
        if self._scheduler.running:
            self._add()

    def tidy(self) -> None:
        """Forget old kernel events; keep the file and the memory small."""
        before_ns = self._clock.unix_ns() - self._event_days * DAY_S * 10**9
        self._try("tidying", lambda: self._store.forget_events(before_ns))
        self._try("tidying", self._store.optimize)
        gc.collect()

    def import_bill(self) -> None:
        """The provider's newest word on what it charges."""
        cloud = self._cloud
        if cloud is not None:
            self._try("the bill", lambda: self._store.set_bill(self._provider, cloud.bill()))

    def _add(self) -> None:
        for work, every_s in self._jobs:
            self._scheduler.add_job(work, "interval", seconds=every_s, id=work.__name__, replace_existing=True)

    def _try(self, what: str, work: Callable[[], object]) -> None:
        try:
            work()
        except GpuwatchError as error:
            if self._errors.get(what) != error.what:
                LOG.warning("%s: %s", what, error)
            self._errors[what] = error.what
        except Exception as error:  # a cloud leaf's bug must not end the clockwork
            if self._errors.get(what) != str(error):
                LOG.exception("%s failed", what)
            self._errors[what] = str(error)
        else:
            self._errors.pop(what, None)
