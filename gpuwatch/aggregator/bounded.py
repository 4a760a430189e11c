"""What one connection may cost us. Anybody who reaches the port can open some, without any token.

uvicorn's parser takes a head, a chunk's extension or trailers of any length, and waits for the rest of a request for
ever. Here what comes without ever making something whole is bounded in bytes, and every request in time; and the last
file descriptors are kept for the ledger.
"""

from __future__ import annotations

import asyncio
import resource

from gpuwatch.aggregator.corked import CorkedHttp

MAX_HEAD_BYTES = 65_536
MAX_REQUEST_S = 120.0  # from the request before to this one's last byte; above the keep-alive time
OWN_FILES = 200  # descriptors that no connection gets
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedHttp(CorkedHttp):
    """uvicorn's protocol with these bounds. `give_up_if_slow` is called every few seconds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._whole_s = self.loop.time()  # when the last request was whole
        self._loose_bytes = 0  # came since the last whole head or piece of a body
        if len(self.connections) > max(OWN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OWN_FILES):
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._loose_bytes += len(data)
        super().data_received(data)
        if self._loose_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_TOO_LONG)
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._loose_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._loose_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._loose_bytes = 0
        self._whole_s = self.loop.time()
        super().on_message_complete()

    def give_up_if_slow(self) -> None:
        """End it if no request became whole for too long; also one whose client does not take our answer."""
        if self.loop.time() - self._whole_s > MAX_REQUEST_S:
            self.transport.abort()
