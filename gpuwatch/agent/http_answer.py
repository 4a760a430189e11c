"""One HTTP/1.1 answer from a kept connection. The usual one is read at once: `http.client` takes an agent more CPU for
it than everything else about sending a report.

Usual is a 200 with a length on a connection that stays. All else goes through `http.client`, as if it had just arrived.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
from typing import NamedTuple

_FIRST_BYTES = 1 << 16
_OTHER = rb"(?:(?!transfer-encoding:|connection:|content-length:)[!-9;-~]+:[^\r\n]*\r\n)*"
_USUAL = re.compile(
    rb"HTTP/1\.1 200 [^\r\n]*\r\n" + _OTHER + rb"content-length:[ \t]*(\d{1,7})[ \t]*\r\n" + _OTHER + rb"\r\n",
    re.IGNORECASE,
)


class Answer(NamedTuple):
    """Of the body at most so many bytes as were asked for."""

    code: int
    body: bytes
    retry_after: str = ""
    stays: bool = True  # the connection can be used again


def read_answer(sock: socket.socket, most_bytes: int) -> Answer:
    """The answer to a POST. Raises what a socket and `http.client` raise."""
    begun = sock.recv(_FIRST_BYTES)
    usual = _USUAL.match(begun)
    if usual is not None and (size := int(usual[1])) <= most_bytes:
        head_bytes = usual.end()
        while len(begun) < head_bytes + size and (more := sock.recv(_FIRST_BYTES)):
            begun += more
        if len(begun) == head_bytes + size:
            return Answer(200, begun[head_bytes:])
    response = http.client.HTTPResponse(_Begun(sock, begun), method="POST")  # type: ignore[arg-type]
    response.begin()
    body = response.read(most_bytes)
    stays = response.isclosed() and not response.will_close
    return Answer(response.status, body, response.headers.get("Retry-After", ""), stays)


class _Begun(io.RawIOBase):
    """A socket of which some bytes were read already."""

    def __init__(self, sock: socket.socket, held: bytes) -> None:
        self._sock = sock
        self._held = memoryview(held)
        self._ended = not held

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What `http.client` reads from."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._ended:
            return 0
        if not self._held:
            return self._sock.recv_into(buffer)
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        return size
