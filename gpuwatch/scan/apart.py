"""Work in a process of its own that is left behind when it takes too long.

A thread that is stuck in the kernel keeps its whole process from ending, and who waits for that process (a scheduler's
prolog) would wait as long. So the look is made in a fork, which holds none of our caller's pipes, and we go without it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

MOST_BYTES = 64 << 20
MOST_DESCRIPTORS = 65_536


def apart(work: Callable[[], bytes], deadline_s: float) -> bytes | None:
    """What `work` returned; None where it has not ended in time, or ended without a result."""
    ours, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(work, ours, its)
    os.close(its)
    try:
        return _received(ours, time.monotonic() + deadline_s)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(ours)
        _bury(pid)


def _bury(pid: int) -> None:
    """One that has ended is taken from the table; one that is stuck is left to init."""
    with contextlib.suppress(ChildProcessError):
        for _ in range(40):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(0.005)


def _child(work: Callable[[], bytes], ours: int, its: int) -> None:
    try:
        os.close(ours)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        os.closerange(3, its)  # a lock that our caller holds, say: left behind, we would hold it for ever
        os.closerange(its + 1, MOST_DESCRIPTORS)
        view = memoryview(work())
        while view:
            view = view[os.write(its, view) :]
    finally:
        os._exit(0)


def _received(pipe: int, until_s: float) -> bytes | None:
    parts: list[bytes] = []
    while (left_s := until_s - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left_s)[0]:
            break
        part = os.read(pipe, 1 << 16)
        if not part:
            return b"".join(parts) or None
        parts.append(part)
        if sum(map(len, parts)) > MOST_BYTES:
            break
    return None
