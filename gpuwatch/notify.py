"""sd_notify for both processes: tells systemd how the service is, and feeds its watchdog. Silent without systemd."""

from __future__ import annotations

import contextlib
import os
import socket
import time

MOST_CHARACTERS = 1000  # of a status: a datagram that is too long is not delivered, and neither is the watchdog's word


class ServiceManager:
    """The service manager that started this process, or nobody."""

    def __init__(self, address: str | None = None, watchdog_us: str | None = None) -> None:
        """Takes `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` from the environment unless told."""
        self._address = os.environ.get("NOTIFY_SOCKET", "") if address is None else address
        us = os.environ.get("WATCHDOG_USEC", "") if watchdog_us is None else watchdog_us
        for_whom = os.environ.get("WATCHDOG_PID", "")
        ours = watchdog_us is not None or not for_whom or for_whom == str(os.getpid())
        self.watchdog_s: float | None = int(us) / 1e6 if ours and us.isdigit() and int(us) > 0 else None
        self._socket: socket.socket | None = None
        if self._address.startswith(("/", "@")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def ready(self, status: str) -> None:
        """The service works."""
        self._send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def reloading(self, status: str) -> None:
        """Settings are read again; to be followed by `ready`."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", f"STATUS={status}")

    def alive(self, status: str) -> None:
        """It still does; to be said more often than every half `watchdog_s`."""
        self._send("WATCHDOG=1", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """It ends on purpose."""
        self._send("STOPPING=1", f"STATUS={status}")

    def _send(self, *words: str) -> None:
        if self._socket is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        message = "\n".join(word.replace("\n", " ")[:MOST_CHARACTERS] for word in words)
        with contextlib.suppress(OSError):  # a manager that is busy or gone is no reason to stop watching the node
            self._socket.sendto(message.encode("utf-8", "replace"), address)
