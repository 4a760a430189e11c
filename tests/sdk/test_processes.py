"""A process is known by pid and start; what it waits for can be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from gpuwatch.sdk import processes


def test_this_process_is_itself_and_no_later_one() -> None:
    ticks = processes.start_ticks(os.getpid())
    assert ticks is not None
    assert processes.is_alive(os.getpid(), ticks)
    assert not processes.is_alive(os.getpid(), ticks + 1)
    assert processes.start_ticks(2**22 + 1) is None


def test_a_child_waits_dies_once_and_is_gone_as_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    ticks = processes.start_ticks(child.pid)
    assert ticks is not None
    for _ in range(100):
        if "state S" in (text := processes.what_it_waits_for(child.pid)):
            break
    assert "wait channel" in text
    if os.access(f"/proc/{child.pid}/stack", os.R_OK) and os.geteuid() == 0:
        assert re.search(r", kernel stack \w+( < \w+)+$", text), text
    processes.kill_once(child.pid, ticks + 1)  # another process with its pid: spared
    assert child.poll() is None
    processes.kill_once(child.pid, ticks)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_alive(child.pid, ticks)
    child.communicate()
    assert processes.what_it_waits_for(child.pid) == "the process is gone"
