"""One heartbeat call, beside a round trip over a Unix socket between two Python processes pinned to one core."""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable

from gpuwatch.training import Heartbeat
from tests.benchmarks.row import Row


def measure(*, quick: bool = False) -> list[Row]:
    """Medians of the best of several rounds, taken in turns, both pinned to the same core."""
    rounds, calls = (3, 10_000) if quick else (7, 40_000)
    core = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            beat = Heartbeat("bench", rank=0, world_size=1, directory=folder)
            assert beat.on, "the heartbeat is off: /dev/shm is no local file system here?"
            ours, peer = [], []
            pinger, answerer = _answerer()
            try:
                for _ in range(rounds):
                    ours.append(_median_ns(lambda n: beat.step(n, 4096), calls))
                    peer.append(_median_ns(lambda _: _round_trip(pinger), calls // 10))
            finally:
                pinger.close()
                os.waitpid(answerer, 0)
            beat.close()
    finally:
        os.sched_setaffinity(0, before)
    step_ns, trip_ns = min(ours), min(peer)
    return [
        Row(
            what="one heartbeat call",
            budget="≤ 1 µs median; ≤ 1/5 of a Unix socket round trip",
            measured=f"{step_ns / 1e3:.2f} µs (best of {rounds} medians; all: "
            f"{', '.join(f'{value / 1e3:.2f}' for value in ours)})",
            beside=f"round trip {trip_ns / 1e3:.2f} µs (ratio {step_ns / trip_ns:.2f})",
            met=step_ns <= 1000 and step_ns <= trip_ns / 5,
        )
    ]


def _median_ns(call: Callable[[int], object], calls: int) -> float:
    took = []
    clock = time.perf_counter_ns
    for n in range(calls):
        begun = clock()
        call(n)
        took.append(clock() - begun)
    return statistics.median(took)


def _round_trip(pinger: socket.socket) -> None:
    pinger.send(b"x" * 92)
    pinger.recv(128)


def _answerer() -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        while data := theirs.recv(128):
            theirs.send(data)
        os._exit(0)
    theirs.close()
    return ours, child
