"""What happens to the agent itself and to its aggregator."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from functools import partial

from tests.soak.fault import Fault
from tests.soak.judge import Judge, Look
from tests.soak.site import Site

STOPPED_S = 20.0
HOUR_S = 3600.0


def agent_faults(site: Site, judge: Judge, chance: random.Random) -> dict[str, Callable[[], Fault]]:
    """Each makes one fault of its kind."""

    def tell(number: signal.Signals) -> None:
        site.processes[-1].send_signal(number)

    def speaks(look: Look) -> bool:
        """It is live again, and all of its sources have been heard since."""
        return look.view is not None and look.status("kernel_log") == "ok" and look.status("host") == "ok"

    def reload() -> Fault:
        interval_s = 0.6 if site.top["interval_s"] == 0.5 else 0.5

        def inject() -> None:
            site.top["interval_s"] = interval_s
            site.nvml["interval_s"] = interval_s
            site.config()
            tell(signal.SIGHUP)

        seen = lambda look: look.report.interval_s == interval_s  # noqa: E731
        return Fault("sighup_good_config", inject, seen)

    def broken() -> Fault:
        begun = site.log().count("is refused")

        def inject() -> None:
            (site.folder / "agent.toml").write_bytes(b"interval_s = \xff\x00 [collectors\n")
            tell(signal.SIGHUP)

        def heal() -> None:
            site.config()
            tell(signal.SIGHUP)

        seen = lambda look: look.view is not None and site.log().count("is refused") > begun  # noqa: E731
        return Fault("sighup_broken_config", inject, seen, heal)

    def stopped() -> Fault:
        begun_s = [0.0]

        def inject() -> None:
            begun_s[0] = time.monotonic()
            tell(signal.SIGSTOP)
            time.sleep(STOPPED_S)
            tell(signal.SIGCONT)

        seen = lambda look: look.arrived_s > begun_s[0] + STOPPED_S and speaks(look)  # noqa: E731
        return Fault("agent_stopped_20s", inject, seen, disturbs=True)

    def killed() -> Fault:
        before = site.processes[-1]
        known = set(judge.sequences)

        def inject() -> None:
            site.count_lost()
            before.kill()
            before.wait()
            time.sleep(0.5)  # RestartSec
            site.start()

        seen = lambda look: look.report.agent_id not in known and speaks(look)  # noqa: E731
        return Fault("agent_killed", inject, seen, disturbs=True)

    def aggregator(mode: str) -> Fault:
        begun_s = [0.0]

        def inject() -> None:
            judge.mode = mode
            time.sleep(chance.uniform(3.0, 8.0))
            judge.mode = "ok"
            begun_s[0] = time.monotonic()

        seen = lambda look: look.arrived_s > begun_s[0] and speaks(look)  # noqa: E731
        return Fault(f"aggregator_{mode}", inject, seen, disturbs=True)

    def clock() -> Fault:
        ahead_s = chance.choice((-HOUR_S, HOUR_S))

        def seen(look: Look) -> bool:
            told_s = look.report.sent_unix_ns / 1e9 - time.time()
            return look.view is not None and abs(told_s - ahead_s) < 60

        well = lambda look: speaks(look) and abs(look.report.sent_unix_ns / 1e9 - time.time()) < 60  # noqa: E731
        kind = f"clock_{ahead_s / HOUR_S:+.0f}h"
        back = lambda: site.step_clock(0)  # noqa: E731
        return Fault(kind, lambda: site.step_clock(ahead_s), seen, back, well=well, disturbs=True, hold_s=5.0)

    return {
        "sighup_good_config": reload,
        "sighup_broken_config": broken,
        "agent_stopped_20s": stopped,
        "agent_killed": killed,
        "clock": clock,
        **{f"aggregator_{mode}": partial(aggregator, mode) for mode in ("away", "garbage", "slow", "stuck", "busy")},
    }
