"""One write for one answer. uvicorn writes head and body apart: two system calls here, two packets and wake-ups there.

A fifth of what a small request costs; thousands of them a second are our whole load.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Corked:
    """A transport that gathers what is written until the loop's next turn. Everything else is the real transport's."""

    __slots__ = ("_inner", "_loop", "_parts")

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Keep it until the loop's next turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def write_whole(self, data: bytes) -> None:
        """An answer in one piece, after what is kept: nothing more will come that it could wait for."""
        self._flush()
        if not self._inner.is_closing():
            self._inner.write(data)

    def close(self) -> None:
        """Write what is kept, then close."""
        self._flush()
        self._inner.close()

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            if not self._inner.is_closing():
                self._inner.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class CorkedHttp(HttpToolsProtocol):
    """uvicorn's protocol over such a transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Corked(transport, self.loop))  # type: ignore[arg-type]
