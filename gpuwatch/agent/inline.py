"""A source that is read inside the agent, by a crew of threads: one that blocks all the same blocks nobody else.

Gauges are replaced by each reading. Events (facts that have `events`) are kept until a report has taken them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from gpuwatch.agent.answers import Latest
from gpuwatch.agent.crew import Crew
from gpuwatch.agent.reading import Answer, Readings
from gpuwatch.clock import Clock
from gpuwatch.collectors import Collector
from gpuwatch.model.moment import Moment
from gpuwatch.model.wire import NO_FACTS, Envelope
from gpuwatch.sdk.processes import thread_waits_for

NS = 10**9
MAX_EVENTS_A_REPORT = 250  # each up to almost two kilobytes; a report may have a megabyte, and training needs half
MAX_EVENTS_HELD = 20_000
REST_S = 0.05  # after a reading that leaves more, or that a descriptor asked for: a storm of events is read in lumps
CHATTER_REST_S = 0.5  # after a reading that a descriptor asked for: a chatty log wakes us no oftener than this …
CHATTER_BURST = 5  # … but after so many: a dying GPU's first line must not delay the one that says so by half a second
LOOK_SELDOM = 20  # intervals between two looks for events where none can be read at present
MOST_INTERVALS = 60
AWAY_S = 1.0  # we look this much too late: it was us who slept (SIGSTOP, a frozen machine), not the source
NEVER_NS = 1 << 62

_encode = msgspec.msgpack.Encoder().encode


class Inline:
    """One source of those that a crew reads."""

    own_clock = False

    def __init__(
        self,
        name: str,
        leaf: Collector[Any],
        settings: Any,
        *,
        clock: Clock,
        wake: Callable[[], None],
        state_dir: Path | None = None,
        owner: bool = True,
        crew: Crew | None = None,
    ) -> None:
        """`wake` is called from a thread when an answer is there. `state_dir`: what outlives the agent; only its
        `owner` writes there. Without a `crew` that others send off it has one of its own."""
        self.name = name
        self._readings = Readings(name, leaf, settings, clock=clock, state_dir=state_dir, owner=owner)
        self._own_crew = crew is None
        self._crew = crew or Crew(wake, clock)
        self._interval_s = float(settings.interval_s)
        self._deadline_s = leaf.deadline_s
        self._has_events = "events" in leaf.facts.__struct_fields__  # type: ignore[attr-defined]
        self._look_ns: int | None = None  # when to look for events though nothing says that there are any
        self._woken = False  # the descriptor asked for the reading that is under way
        self._clock = clock
        self._ask_file: Callable[[], int] | None = None  # the reader's descriptor, where it has one
        self._asked_ns: int | None = None
        self._asked_unix_ns = 0
        self._due_ns = 0
        self._rest_until_ns = 0
        self._wakings = CHATTER_BURST * 1.0  # left before a chatty log is read seldomer
        self._wakings_at_ns = 0
        self._latest: Latest | None = None
        self._events: deque[Any] = deque()
        self._lost_events = 0
        self._told: Latest | None = None  # the last answer that held events, without them
        self._failures = 0
        self._took_s = 0.0  # of the reading before
        self._urgent = False
        self._counts: Counter[str] = Counter()
        self.behind = False  # the last reading left events that can be read at once
        self.on_facts: Callable[[Any], None] | None = None  # told every reading's facts, on the loop's thread
        self.on_ask: Callable[[tuple[str, ...]], None] | None = None  # told which other sources should read at once

    def meet(self, others: Callable[[str], Any]) -> None:
        """`others(name)`: the last facts of another source, for a reader that joins them with its own."""
        self._readings.others = others

    def change(self, settings: Any) -> None:
        """Go on with other settings, from the next reading on. What was read and not told yet stays.

        Where more than the interval is another, the source is opened anew, and a kernel log is read from its beginning
        or its cursor again: to the same ids, but the agent's own counters count it once more.
        """
        self._readings.settings = settings
        self._interval_s = float(settings.interval_s)
        self._failures, self._due_ns = 0, 0
        self._look_ns = 0 if self._has_events else None

    def tick(self, now: Moment) -> None:
        """Take what was answered; notice when it is late."""
        answers = self._readings.answers
        while not answers.empty():  # nobody else takes them
            self._absorb(answers.get_nowait(), now)
        if self._look_ns is not None and now.monotonic_ns >= self._look_ns:
            self._ask(now)
        if self._asked_ns is not None and self.busy() and self._is_late(self._asked_ns, now):
            self.give_up(now)

    def give_up(self, now: Moment) -> None:
        """Nobody waits for it any longer: it is hung unless it has answered."""
        if self._asked_ns is not None and self.busy():
            thread_id, waited_s = self._readings.thread_id, (now.monotonic_ns - self._asked_ns) / NS
            waits = thread_waits_for(thread_id) if thread_id else "no thread was free to begin it"
            reason = f"no answer for more than {min(waited_s, self._deadline_s):.3g} s; {waits}"
            self._now_latest(
                Latest(
                    collector=self.name,
                    status="hung",
                    at_unix_ns=now.unix_ns,
                    reason=reason,
                    since_unix_ns=self._asked_unix_ns,
                )
            )

    def _is_late(self, asked_ns: int, now: Moment) -> bool:
        """Whether its time is over. Where nobody looked when it was, its time begins anew."""
        late_s = (now.monotonic_ns - asked_ns) / NS - self._deadline_s
        if late_s > AWAY_S:
            self._asked_ns = now.monotonic_ns
            return False
        return late_s >= 0

    def fileno(self) -> int:
        if self._asked_ns is not None or self._ask_file is None:
            return -1
        return -1 if self._clock.monotonic_ns() < self._rest_until_ns else self._descriptor()

    def _descriptor(self) -> int:
        try:
            return -1 if self._ask_file is None else int(self._ask_file())
        except (OSError, ValueError):
            return -1

    def readable(self, now: Moment) -> None:
        self._woken = True
        self._ask(now)

    def ask(self, now: Moment) -> None:
        if now.monotonic_ns >= self._due_ns:
            self._ask(now)

    def busy(self) -> bool:
        return self._asked_ns is not None and (self._latest is None or self._latest.status != "hung")

    def fresh_ns(self) -> int | None:
        return None  # it answers only when asked

    def expected_ns(self, _after_ns: int) -> int | None:
        return None

    def wake_ns(self) -> int:
        """When it is late, or events may wait; when it is merely due, it is asked with the others: one waking."""
        if self._asked_ns is not None:
            return self._asked_ns + int(self._deadline_s * NS) if self.busy() else NEVER_NS
        look_ns = NEVER_NS if self._look_ns is None else self._look_ns
        if self._ask_file is None or self._clock.monotonic_ns() >= self._rest_until_ns:
            return look_ns
        return min(look_ns, self._rest_until_ns)

    def latest(self) -> Latest | None:
        return self._latest

    def take(self) -> tuple[Envelope, bool] | None:
        if (self._events or self._lost_events) and self._told is not None:
            return self._take_events(self._told)
        return None if self._latest is None else (_envelope(self._latest), False)

    def _take_events(self, told: Latest) -> tuple[Envelope, bool]:
        """Events that were read travel as read, even where the source has failed since."""
        taken = tuple(self._events.popleft() for _ in range(min(len(self._events), MAX_EVENTS_A_REPORT)))
        lost_count, self._lost_events = self._lost_events, 0
        facts = msgspec.structs.replace(told.facts, events=taken, lost_count=lost_count)
        return _envelope(msgspec.structs.replace(told, facts=facts)), bool(taken)

    def has_more(self) -> bool:
        return bool(self._events)

    def urgent(self) -> bool:
        was, self._urgent = self._urgent, False
        return was

    def readings(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        if self._readings.end():
            self._crew.ask(self._readings, first=self._has_events)
            self._begin()

    def _ask(self, now: Moment) -> None:
        if self._asked_ns is None:
            self._asked_ns, self._asked_unix_ns = now.monotonic_ns, now.unix_ns
            self._readings.thread_id = 0
            self._crew.ask(self._readings, first=self._has_events)
            self._begin()

    def _begin(self) -> None:
        if self._own_crew:
            self._crew.send_off()

    def _absorb(self, answer: Answer, now: Moment) -> None:
        latest = answer.latest
        begun_ns, self._asked_ns = self._asked_ns or now.monotonic_ns, None
        self._ask_file = self._readings.descriptor()
        rest_s = REST_S if answer.more else self._chatter_rest_s(now) if self._woken else 0.0
        self._rest_until_ns = now.monotonic_ns + int(rest_s * NS)
        interval_s = self._interval_s
        if latest.status in ("failed", "unsupported"):
            self._failures += 1
            interval_s *= min(MOST_INTERVALS, 2 ** (self._failures - 1))
        else:
            self._failures = 0
        slow_s, self._took_s = min(latest.took_s, self._took_s), latest.took_s
        if slow_s > interval_s / 2:  # twice in a row: once may be us who slept
            interval_s = max(interval_s, 4 * slow_s)  # reading can harm
        # A reading is due a little early, so that a report that comes a little early still asks for it.
        self._due_ns = begun_ns + int(interval_s * 0.9 * NS)
        if self._has_events and (self._descriptor() < 0 or self._woken):
            # Nothing will wake us for the next event; or a half-told one is ended by hearing nothing after it.
            rounds = 1 if not latest.gaps and latest.status == "ok" else LOOK_SELDOM
            self._look_ns = now.monotonic_ns + int(interval_s * rounds * NS)
        else:
            self._look_ns = None
        self.behind = answer.more
        if answer.more:
            self._look_ns = self._rest_until_ns
        self._woken = False
        if latest.facts is not None and self.on_facts is not None:
            self.on_facts(latest.facts)
        if latest.facts is not None and self._has_events:
            latest = self._hold_events(latest)
        self._urgent |= answer.urgent
        if answer.ask and self.on_ask is not None:
            self.on_ask(answer.ask)
        self._now_latest(latest)

    def _chatter_rest_s(self, now: Moment) -> float:
        """Twice a second on end, a few times at once."""
        rest_s = min(CHATTER_REST_S, self._interval_s)
        passed_s = (now.monotonic_ns - self._wakings_at_ns) / NS
        self._wakings = min(float(CHATTER_BURST), self._wakings + passed_s / rest_s) - 1.0
        self._wakings_at_ns = now.monotonic_ns
        return max(REST_S, (1.0 - self._wakings) * rest_s)

    def _hold_events(self, latest: Latest) -> Latest:
        """The answer without its events, which are kept."""
        self._events.extend(latest.facts.events)
        self._lost_events += latest.facts.lost_count
        while len(self._events) > MAX_EVENTS_HELD:
            self._events.popleft()
            self._lost_events += 1
        self._told = msgspec.structs.replace(
            latest, facts=msgspec.structs.replace(latest.facts, events=(), lost_count=0)
        )
        return self._told

    def _now_latest(self, latest: Latest) -> None:
        self._urgent |= self._latest is None or self._latest.status != latest.status
        self._counts[latest.status] += 1
        self._latest = latest


def _envelope(latest: Latest) -> Envelope:
    """As it travels. What a file said and no record can hold (a number of 65 bits, half a letter) fails its source, not
    the agent."""
    try:
        _encode((latest.reason, latest.gaps))
        return latest.envelope(NO_FACTS if latest.facts is None else msgspec.Raw(_encode(latest.facts)))
    except (OverflowError, ValueError, TypeError) as error:
        reason = f"what was read cannot be sent: {type(error).__name__}: {str(error)!a}"
        failed = msgspec.structs.replace(latest, status="failed", reason=reason, gaps={}, facts=None)
        return failed.envelope(NO_FACTS)
