"""Starts a probe child and holds its pipes. Knows nothing of deadlines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any, Protocol

import msgspec

from gpuwatch.sdk import processes

NOTE_BYTES = 128
PIPE_BYTES = 1 << 16  # what a pipe holds; more room would be taken from the system and given back each time


class Child(Protocol):
    """A running probe."""

    pid: int
    start_ticks: int

    def fileno(self) -> int:
        """Readable when it has said something, or ended."""

    def read(self) -> bytes:
        """What is there now; empty when there is nothing."""

    def exit_code(self) -> int | None:
        """None while it lives; negative: the signal that ended it."""

    def doing(self) -> str:
        """The call it was about to make."""

    def waits_for(self) -> str:
        """State, wait channel and stack."""

    def hurry(self) -> None:
        """Let it read now, if it is not in a call."""

    def send_away(self) -> None:
        """End its input: it leaves when the call it is in comes back."""

    def kill(self) -> None:
        """One SIGKILL; does not wait."""

    def let_go(self) -> None:
        """Close our ends: a child that can still run ends by itself."""


class Processes(Protocol):
    """What a probe's supervision needs of the operating system."""

    def start(self, source: str, settings: Any) -> Child:
        """A new child. Raises `OSError` where none can be started."""

    def is_alive(self, pid: int, ticks: int) -> bool:
        """Whether this very process is still there."""

    def kill_once(self, pid: int, ticks: int) -> None:
        """One SIGKILL to this very process."""

    def what_it_waits_for(self, pid: int) -> str:
        """State, wait channel and stack."""


class _ProcessChild:
    def __init__(self, source: str, settings: Any) -> None:
        self._note = os.memfd_create("gpuwatch-note", os.MFD_CLOEXEC)
        os.ftruncate(self._note, NOTE_BYTES)
        try:
            # A fresh interpreter, not a fork: the agent has threads, and NVML must be initialised where it is used.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpuwatch.agent.probe", source],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(self._note,),
                start_new_session=True,  # a Ctrl-C is the agent's business
                bufsize=0,
            )
        except OSError:
            os.close(self._note)
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self.pid = self._process.pid
        self.start_ticks = processes.start_ticks(self.pid) or 0
        os.set_blocking(self._out.fileno(), False)
        orders = {"settings": msgspec.to_builtins(settings), "note": self._note}
        with contextlib.suppress(BrokenPipeError):  # it has ended already: whoever watches it will see that
            self._in.write(json.dumps(orders).encode() + b"\n")
        os.set_blocking(self._in.fileno(), False)

    def fileno(self) -> int:
        return self._out.fileno()

    def read(self) -> bytes:
        try:
            return os.read(self._out.fileno(), PIPE_BYTES)
        except BlockingIOError:
            return b""

    def exit_code(self) -> int | None:
        return self._process.poll()

    def doing(self) -> str:
        return os.pread(self._note, NOTE_BYTES, 0).rstrip(b"\0").decode("utf-8", "replace")

    def waits_for(self) -> str:
        return processes.what_it_waits_for(self.pid)

    def hurry(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # it is gone, or has been asked a thousand times and hangs
            self._in.write(b"\n")

    def send_away(self) -> None:
        self._in.close()

    def kill(self) -> None:
        self._process.kill()

    def let_go(self) -> None:
        self._in.close()
        self._out.close()
        os.close(self._note)


class System:
    """The real `Processes`."""

    def start(self, source: str, settings: Any) -> Child:
        return _ProcessChild(source, settings)

    def is_alive(self, pid: int, ticks: int) -> bool:
        return processes.is_alive(pid, ticks)

    def kill_once(self, pid: int, ticks: int) -> None:
        processes.kill_once(pid, ticks)

    def what_it_waits_for(self, pid: int) -> str:
        return processes.what_it_waits_for(pid)


def exit_words(code: int) -> str:
    """How a child ended, for a person."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
