"""The lanes of a soak: in each, one fault after the other is made, must be seen, is held, healed, and must be over."""

from __future__ import annotations

import collections
import random
import threading
import time
import traceback
from collections.abc import Callable

from gpuwatch.model.facts.kernel_log import KernelEvent
from tests.soak.fault import Calm, Fault, Force, Tally
from tests.soak.judge import Judge, Look
from tests.soak.log_faults import KernelLog

Makers = dict[str, Callable[[], Fault]]

LIVES_SHARE = 0.4  # of the time in which the agent may be killed; then one life shows whether it leaks
REST_S = 65.0  # what drains nobody is told once a minute: the same kind is not made again sooner
RARE = {"agent_killed": 45.0, "agent_stopped_20s": 150.0, "kernel_storm_100000": 90.0, "xid_45_storm": 65.0}
MEASURED = "xid_fatal"  # made often, to see how fast it leaves
PAUSE_S = (0.5, 3.0)
CALM_S = (8.0, 20.0)  # after a fault of the agent itself: in this time the others can be seen


class Soak:
    """One run. `seed` gives each lane's order of faults."""

    def __init__(self, judge: Judge, force: Force, log: KernelLog, *, seed: int, minutes: float) -> None:
        self.judge, self.force, self.log = judge, force, log
        self.seed = seed
        self.calm = Calm()
        self.tallies: dict[str, Tally] = collections.defaultdict(Tally)
        self.missed: list[str] = []
        self.broken: list[str] = []
        self.latencies_s: list[tuple[float, bool]] = []  # of fatal lines, and whether NVML hung meanwhile
        self.begun_s = time.monotonic()
        self.end_s = self.begun_s + 60 * minutes
        self._lives_end_s = self.begun_s + LIVES_SHARE * 60 * minutes
        self._lock = threading.Lock()

    def run(self, lanes: dict[str, Makers], meanwhile: Callable[[], None]) -> None:
        """All lanes until their ends; `meanwhile` is called again and again."""
        threads = [threading.Thread(target=self._lane, args=pair, daemon=True) for pair in lanes.items()]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            meanwhile()

    def wait(
        self, mark: int, true: Callable[[Look], bool], clock_s: Callable[[], float], within_s: float
    ) -> Look | None:
        """The first report after the mark of which it is true; None: it did not come by this clock."""
        end_s = clock_s() + within_s
        while True:
            for look in self.judge.since(mark):
                mark += 1
                if true(look):
                    return look
            if clock_s() >= end_s:
                return None
            with self.judge.told:
                self.judge.told.wait(0.25)

    def _lane(self, name: str, makers: Makers) -> None:
        chance = random.Random(f"{self.seed}/{name}")
        last_s: dict[str, float] = {}
        try:
            while time.monotonic() < self.end_s:
                time.sleep(chance.uniform(*PAUSE_S))
                kind = self._choose(chance, makers, last_s)
                if kind:
                    last_s[kind] = time.monotonic()
                    self._one(makers[kind](), chance)
        except Exception:
            self.broken.append(f"lane {name}: {traceback.format_exc()}")

    def _choose(self, chance: random.Random, makers: Makers, last_s: dict[str, float]) -> str:
        if MEASURED in makers and chance.random() < 0.5:
            return MEASURED
        now_s = time.monotonic()

        def ready(kind: str) -> bool:
            if kind == "agent_killed" and now_s > self._lives_end_s:
                return False
            rest_s = RARE.get(kind, REST_S if kind.startswith("log_") else 0.0)
            return now_s - last_s.get(kind, -1e9) >= rest_s

        choices = [kind for kind in makers if ready(kind)]
        return chance.choice(choices) if choices else ""

    def _one(self, fault: Fault, chance: random.Random) -> None:
        self.force.begin(fault)
        if fault.disturbs:
            with self.calm.disturbed():
                self._run(fault, chance, time.monotonic)
            time.sleep(chance.uniform(*CALM_S))
        else:
            self._run(fault, chance, self.calm.now_s)
        self.force.end(fault)

    def _run(self, fault: Fault, chance: random.Random, clock_s: Callable[[], float]) -> None:
        mark, begun_s = self.judge.mark(), time.monotonic()
        fault.inject()
        event = self.wait(mark, _tells(fault.event), clock_s, fault.within_s) if fault.event else None
        look = self.wait(mark, fault.seen, clock_s, fault.within_s)
        first = event if fault.event else look
        with self._lock:
            tally = self.tallies[fault.kind]
            tally.injected += 1
            if look is not None and first is not None:
                lost_s = 0.0 if fault.disturbs else self.calm.disturbed_s(begun_s, first.arrived_s)
                tally.delays_s.append(max(0.0, first.arrived_s - begun_s - lost_s))
            else:
                lacks = "its event" if first is None else "its kind"
                self._miss(f"{fault.kind}: {lacks} was not seen within {fault.within_s:.0f} s", begun_s)
        if fault.kind == MEASURED and event is not None:
            self._measure(event)
        time.sleep(chance.uniform(0.0, fault.hold_s))
        mark = self.judge.mark()
        fault.heal()
        if self.wait(mark, fault.is_over, clock_s, fault.well_within_s) is None:
            with self._lock:
                self._miss(f"{fault.kind}: not well again within {fault.well_within_s:.0f} s", begun_s)

    def _miss(self, what: str, begun_s: float) -> None:
        sources = [] if (view := self.judge.last_view()) is None else list(view.sources.values())
        bad = [
            (s.collector, s.status, (s.reason or "")[:120]) for s in sources if s.status not in ("ok", "unsupported")
        ]
        words = f"at {begun_s - self.begun_s:.0f} s {what}; in force {self.force.now()}; sources {bad}"
        self.missed.append(words)
        print(words, flush=True)

    def _measure(self, look: Look) -> None:
        """How long a fatal line took to us, where nothing but faults of the node could hold it up."""
        for event in look.events:
            begun_s = self.log.measured_s.get(event.pid or 0)
            if begun_s is not None and not self.calm.disturbed_s(begun_s - 1.0, look.arrived_s):
                hung = any(kind.startswith("nvml_hung") for kind in self.force.now())
                self.latencies_s.append((look.arrived_s - begun_s, hung))


def _tells(event: Callable[[KernelEvent], bool]) -> Callable[[Look], bool]:
    return lambda look: any(event(said) for said in look.events)
