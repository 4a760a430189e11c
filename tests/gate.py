"""A network between agents and aggregator that a test may cut: a small TCP relay with four states.

`open`: bytes pass. `refuse`: nobody listens, and what was connected is reset. `stall`: connections stand, no byte
passes. `mute`: what agents say arrives, the answers do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import Literal

State = Literal["open", "refuse", "stall", "mute"]
POLL_S = 0.02
CHUNK = 65536


class Gate:
    """Listens on `port` and passes on to `to_port`, both on loopback, in a thread of its own."""

    def __init__(self, to_port: int = 0) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.to_port = to_port
        self._state: State = "open"
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._pairs: set[asyncio.StreamWriter] = set()
        threading.Thread(target=self._loop.run_forever, name="gate", daemon=True).start()
        self._call(self._listen())

    def set(self, state: State) -> None:
        """From now on. Connections that stalled go on, or are reset, with their bytes as they lay."""
        self._call(self._change(state))

    def close(self) -> None:
        """No more."""
        self.set("refuse")
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _call(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)  # type: ignore[arg-type]

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._pair, "127.0.0.1", self.port)

    async def _change(self, state: State) -> None:
        if state == "refuse":
            if self._server is not None:
                self._server.close()
                self._server = None
            for writer in list(self._pairs):
                _reset(writer)
        else:
            if self._state == "mute":  # answers that were swallowed never come: such a connection is of no use
                for writer in list(self._pairs):
                    _reset(writer)
            await self._listen()
        self._state = state

    async def _pair(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.to_port)
        except OSError:
            _reset(writer)
            return
        self._pairs |= {writer, far_writer}
        try:
            await asyncio.gather(self._pass(reader, far_writer, True), self._pass(far_reader, writer, False))
        finally:
            self._pairs -= {writer, far_writer}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                while self._state == "stall":
                    await asyncio.sleep(POLL_S)
                if self._state == "mute" and not up:
                    continue
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """RST, as from a machine that knows nothing of the connection."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
