"""Doubting ourselves: when it is likelier that we cannot see than that the whole fleet fell silent.

While blind, nobody is condemned for silence and no new harm is done. Sight is held to be back only some time after the
cause has gone, because the agents need a round of reports to be heard again.
"""

from __future__ import annotations

from gpuwatch.model.moment import Moment

CLOCK_STEP_S = 5.0  # more than NTP slews in one tick
PAUSE_S = 10.0  # a tick so late means that we stood still (stopped, swapped out, migrated): what we know is old
LAG_S = 5.0  # the server's event loop is this far behind: reports wait unread
QUIET_S = 15.0  # not one report of anybody for so long, three usual intervals


class Blindness:
    """Asked once a tick."""

    def __init__(self, started: Moment) -> None:
        self._last = started
        self._started = started
        self._until_ns = 0
        self._because = ""
        self.clock_step_count = 0

    def look(
        self,
        now: Moment,
        *,
        lag_s: float,
        store_error: str,
        heard_monotonic_ns: int | None,
        expected_machine_count: int,
        interval_s: float,
        tick_s: float,
    ) -> str:
        """Why we should not trust our eyes; empty if nothing speaks against it.

        `heard_monotonic_ns`: the last report of anybody. `interval_s`: the longest reporting interval of the fleet.
        """
        tick_ns = now.monotonic_ns - self._last.monotonic_ns
        step_s = (now.unix_ns - self._last.unix_ns - tick_ns) / 1e9
        self._last = now
        recovery_s = max(QUIET_S, 2 * interval_s)
        quiet_s = max(QUIET_S, 3 * interval_s)
        if abs(step_s) > CLOCK_STEP_S:
            self.clock_step_count += 1
            self._doubt(f"our wall clock stepped by {step_s:+.0f} s", now, recovery_s)
        if tick_ns / 1e9 > max(PAUSE_S, 5 * tick_s):
            self._doubt(f"this process stood still for {tick_ns / 1e9:.0f} s", now, recovery_s)
        if lag_s > LAG_S:
            self._doubt(f"our server is {lag_s:.0f} s behind with reading reports", now, recovery_s)
        since_ns = self._started.monotonic_ns if heard_monotonic_ns is None else heard_monotonic_ns
        unheard_s = now.age_s(since_ns)
        if expected_machine_count > 1 and unheard_s > quiet_s:
            self._doubt(
                f"no agent at all has been heard for {unheard_s:.0f} s: suspect our own network", now, recovery_s
            )
        if store_error:
            self._doubt(f"the ledger cannot be written: {store_error}", now, 0.0)
        return self._because if now.monotonic_ns <= self._until_ns else ""

    def _doubt(self, because: str, now: Moment, recovery_s: float) -> None:
        self._because = because
        self._until_ns = max(self._until_ns, now.monotonic_ns + int(recovery_s * 1e9))
