"""The usual report is answered where its last byte is parsed, with no task, scope or event: they cost half of it.

Usual is what an agent of ours sends: a POST with a length and a token on a connection that stays, one at a time, that
is accepted and has nothing to store. Everything else, each refusal among it, goes the ordinary way through the
application, as if it had just arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from gpuwatch.aggregator.bounded import BoundedHttp
from gpuwatch.aggregator.corked import Corked
from gpuwatch.model.wire import MAX_REPORT_BYTES

LOG = logging.getLogger("gpuwatch.server")
PATH = b"/v1/reports"

AtOnce = Callable[[bytes, bytes], bytes | None]
"""(token, body) -> the acknowledgement, or None: it cannot be told at once."""


def prompt_http(take_at_once: AtOnce) -> type[BoundedHttp]:
    """The protocol that asks this function first."""

    class Prompt(_PromptHttp):
        _take_at_once = staticmethod(take_at_once)

    return Prompt


class _PromptHttp(BoundedHttp):
    _take_at_once: AtOnce

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._parts: list[bytes] | None = None  # the body of a usual report so far
        self._token = b""

    def on_headers_complete(self) -> None:
        self._token = self._usual_token()
        if self._token:
            self._loose_bytes = 0
            self._parts = []
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._parts is None:
            super().on_body(body)
        else:
            self._loose_bytes = 0
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._parts is None:
            super().on_message_complete()
            return
        parts, self._parts = self._parts, None
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        answer = self._answer(body)
        if answer is None:
            super().on_headers_complete()
            super().on_body(body)
            super().on_message_complete()
            return
        self._loose_bytes = 0
        self._whole_s = self.loop.time()
        self.server_state.total_requests += 1
        assert isinstance(self.transport, Corked)
        self.transport.write_whole(answer)

    def _usual_token(self) -> bytes:
        """The token of a report that may be answered at once; empty: it may not. Its length bounds what is kept."""
        busy = self.cycle is not None and not self.cycle.response_complete  # pipelined: answers keep their order
        if self.url != PATH or busy or self.flow.write_paused or self.transport.is_closing():
            return b""
        parser = self.parser
        if parser.get_method() != b"POST" or parser.get_http_version() != "1.1" or not parser.should_keep_alive():
            return b""
        token, length = b"", -1
        for name, value in self.headers:  # names in lower case
            if name == b"authorization":
                token = value[7:].strip() if value[:7].lower() == b"bearer " else b""
            elif name == b"content-length":
                length = int(value) if value.isdigit() else -1
            elif name in (b"expect", b"transfer-encoding", b"upgrade"):
                return b""
        return token if 0 < length <= MAX_REPORT_BYTES else b""

    def _answer(self, body: bytes) -> bytes | None:
        try:
            said = self._take_at_once(self._token, body)
        except Exception:  # a bug of ours: raised in the parser it would be the sender's fault
            LOG.exception("a report failed")
            return None
        if said is None:
            return None
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said)
