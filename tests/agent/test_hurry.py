"""A source that was blind for a moment has another one read at once."""

from __future__ import annotations

import select
import time

from gpuwatch.agent.child import System
from gpuwatch.agent.frames import Frame, Unpacker
from gpuwatch.collectors.host import Settings


def test_a_probe_on_its_own_slow_clock_reads_when_it_is_asked_and_ends_when_its_input_does() -> None:
    child = System().start("host", Settings(interval_s=600.0))
    unpacker = Unpacker()

    def frames(count: int, within_s: float) -> list[Frame]:
        found: list[Frame] = []
        until = time.monotonic() + within_s
        while len(found) < count and time.monotonic() < until:
            if select.select([child], [], [], 0.2)[0]:
                found += unpacker.feed(child.read())
        return found

    assert len(frames(1, 20.0)) == 1
    assert frames(1, 0.5) == [], "nobody asked"
    child.hurry()
    assert len(frames(1, 20.0)) == 1
    for _ in range(200_000):  # asked more often than the pipe holds: never waited for
        child.hurry()
    assert frames(1, 20.0)
    child.let_go()
    until = time.monotonic() + 20.0
    while child.exit_code() is None and time.monotonic() < until:
        time.sleep(0.02)
    assert child.exit_code() == 0
    child.hurry()
