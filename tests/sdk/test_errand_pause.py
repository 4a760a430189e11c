"""Who asks is stopped for a while: the time in which we slept is not the errand's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ASKS = """
import sys
from gpuwatch.sdk.errand import Errands
said = Errands("pause").ask({"x": ["sh", "-c", sys.argv[1]]}, deadline_s=0.6)["x"]
print(said.status, said.out.decode().strip(), flush=True)
"""
STOPPED_S = 1.9


def child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


def asked(errand: str, *, its_own: bool) -> str:
    """What an asking process says that is stopped as soon as its errand is under way; `its_own`: that one too."""
    with subprocess.Popen([sys.executable, "-c", ASKS, errand], stdout=subprocess.PIPE, text=True) as process:
        while not (child := child_of(process.pid)):
            time.sleep(0.002)
        stopped = (process.pid, child) if its_own else (process.pid,)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)
        return process.communicate(timeout=20)[0].strip()


@pytest.mark.parametrize(
    ("errand", "its_own", "said"),
    [
        ("sleep 0.2; echo hello", False, "ok hello"),  # it was there long before we woke
        ("sleep 0.2; echo hello", True, "ok hello"),  # the whole machine stood still
        ("exec sleep 60", False, "late"),
    ],
)
def test_an_errand_has_its_time_though_we_slept(errand: str, its_own: bool, said: str) -> None:
    assert asked(errand, its_own=its_own) == said
