"""Every source once, all at the same time, each in a thread of its own: nobody waits for one that hangs."""

from __future__ import annotations

import select
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from gpuwatch.agent.answers import Latest
from gpuwatch.agent.book import Book, ChildRecord
from gpuwatch.agent.child import Processes
from gpuwatch.agent.frames import Unpacker
from gpuwatch.agent.identity import Identity
from gpuwatch.agent.inline import Inline
from gpuwatch.agent.release import ReleaseFile
from gpuwatch.clock import Clock
from gpuwatch.collectors import Collector
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.moment import Moment

NS = 10**9
MOST_EVENT_ROUNDS = 200  # a long log comes in pieces
LAST_WORDS_S = 0.3  # from the deadline: to say what a source that hangs is waiting for


class Sources:
    """The sources of this node, read once."""

    def __init__(
        self,
        identity: Identity,
        doors: Mapping[str, Collector[Any]],
        *,
        clock: Clock,
        processes: Processes,
        state: Path,
    ) -> None:
        """`state`: where an agent keeps the records of its probes."""
        self._identity = identity
        self._doors = doors
        self._clock = clock
        self._processes = processes
        self._state = state

    def read(self, settings: Mapping[str, Any], deadline_s: float) -> tuple[list[Latest], list[KernelEvent]]:
        """An answer of each source named in `settings`, in that order; one that gave none in time has hung."""
        until_ns = self._clock.monotonic_ns() + int(deadline_s * NS)
        answers: dict[str, Latest] = {}
        events: list[KernelEvent] = []

        def work(name: str) -> None:
            door = self._doors[name]
            if door.can_hang:
                answers[name] = self._in_child(name, door, settings[name], until_ns - int(LAST_WORDS_S * NS))
            else:
                answers[name], more = self._in_thread(name, door, settings[name], until_ns - int(LAST_WORDS_S * NS))
                events.extend(more)

        begun_unix_ns = self._clock.unix_ns()
        threads = [threading.Thread(target=work, args=(name,), name=f"look-{name}", daemon=True) for name in settings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, (until_ns - self._clock.monotonic_ns()) / NS))
        late = f"no answer within {deadline_s:g} s"
        heard = dict(answers)
        return [
            heard.get(name) or Latest(collector=name, status="hung", at_unix_ns=begun_unix_ns, reason=late)
            for name in settings
        ], list(events)

    def _in_child(self, name: str, door: Collector[Any], settings: Any, until_ns: int) -> Latest:
        clock, identity = self._clock, self._identity
        at_unix_ns = clock.unix_ns()
        if released := ReleaseFile(self._state).reason(Moment(at_unix_ns, clock.monotonic_ns())):
            return Latest(collector=name, status="failed", at_unix_ns=at_unix_ns, reason=released)
        ours = Book(self._state, f"scan-{name}")
        for record in (Book(self._state, name).read(), ours.read()):
            if self._is_stuck(record):
                # The agent, or an earlier look, has a child there that cannot be killed: another would be stuck too.
                return Latest(
                    collector=name,
                    status="hung",
                    at_unix_ns=at_unix_ns,
                    reason=record.reason,
                    since_unix_ns=record.since_unix_ns,
                    abandoned_count=1,
                )
        begun_ns = clock.monotonic_ns()
        child = self._processes.start(name, settings)
        unpacker = Unpacker()
        try:
            while (left_s := (until_ns - clock.monotonic_ns()) / NS) > 0:
                select.select([child], [], [], left_s)
                for frame in unpacker.feed(child.read()):
                    facts = msgspec.msgpack.decode(frame.facts, type=door.facts) if frame.status == "ok" else None
                    return Latest(
                        collector=name,
                        status=frame.status,
                        at_unix_ns=frame.at_unix_ns,
                        took_s=frame.took_s,
                        reason=frame.reason,
                        facts=facts,
                        gaps=frame.gaps,
                    )
                if (code := child.exit_code()) is not None:
                    why = f"its probe ended with code {code}"
                    return Latest(collector=name, status="failed", at_unix_ns=at_unix_ns, reason=why)
            doing = child.doing()
            where = f" in {doing}" if doing else ""
            waited_s = (clock.monotonic_ns() - begun_ns) / NS
            reason = f"no answer for more than {waited_s:.0f} s{where}; child {child.waits_for()}"
            child.kill()  # once, and not waited for
            ours.write(
                ChildRecord(
                    pid=child.pid,
                    start_ticks=child.start_ticks,
                    boot_id=identity.boot_id,
                    since_unix_ns=at_unix_ns,
                    reason=reason,
                    killed=True,
                )
            )
            return Latest(collector=name, status="hung", at_unix_ns=at_unix_ns, reason=reason, since_unix_ns=at_unix_ns)
        except ProbeError as error:
            child.kill()
            return Latest(collector=name, status="failed", at_unix_ns=at_unix_ns, reason=error.what)
        finally:
            child.let_go()

    def _is_stuck(self, record: ChildRecord | None) -> TypeGuard[ChildRecord]:
        return (
            record is not None
            and record.boot_id == self._identity.boot_id
            and record.killed
            and self._processes.is_alive(record.pid, record.start_ticks)
        )

    def _in_thread(
        self, name: str, door: Collector[Any], settings: Any, until_ns: int
    ) -> tuple[Latest, list[KernelEvent]]:
        clock = self._clock
        answered = threading.Event()
        source = Inline(name, door, settings, clock=clock, wake=answered.set, state_dir=self._state, owner=False)
        events: list[KernelEvent] = []

        def keep(facts: Any) -> None:
            if isinstance(facts, KernelLogFacts):
                events.extend(facts.events)

        source.on_facts = keep
        answer: Latest | None = None
        quiet = 0  # readings without an event: one may end what was half told, so a log is read until two are
        has_events = "events" in door.facts.__struct_fields__  # type: ignore[attr-defined]
        for _ in range(MOST_EVENT_ROUNDS if has_events else 1):
            before = len(events)
            answered.clear()
            source.readable(Moment(clock.unix_ns(), clock.monotonic_ns()))
            answered.wait(max(0.0, (until_ns - clock.monotonic_ns()) / NS))
            now = Moment(clock.unix_ns(), clock.monotonic_ns())
            source.tick(now)
            if not answered.is_set():
                source.give_up(now)  # our deadline is nearer than its own
            answer = source.latest()
            quiet = quiet + 1 if len(events) == before and not source.behind else 0
            if answer is None or answer.status != "ok" or quiet == 2:
                break
        source.close()
        if answer is None:
            answer = Latest(collector=name, status="hung", at_unix_ns=clock.unix_ns(), reason="no answer in time")
        return answer, events
