"""One report to one aggregator: HTTP/1.1 keep-alive on the standard library's own client, the lightest there is."""

from __future__ import annotations

import contextlib
import http.client
import socket
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from gpuwatch.model.wire import Ack

TIMEOUT_S = 10.0
MOST_REPLY_BYTES = 1 << 20
RETRY_AFTER_MOST_S = 300.0
REFUSED_FOR_EVER = frozenset({400, 403, 409, 413})


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one try."""

    kind: Literal["accepted", "refused", "again"]
    code: int = 0  # HTTP status; 0: there was no answer
    why: str = ""
    wait_s: float = 0.0  # the other side asked for that much patience
    repeated: bool = False


class Line:
    """A connection that is kept, and made anew when it broke. One thread uses it."""

    def __init__(self, url: str, *, token_file: str, ca_file: str, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        self.url = url
        self._path = parts.path.rstrip("/") + "/v1/reports"
        self._token_file = token_file
        self._token: str | None = None
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            import ssl  # here: a plain connection must not pay for it

            context = ssl.create_default_context(cafile=ca_file or None)
            self._connection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
        self._used = False

    def send(self, body: bytes) -> Outcome:
        """One try, and at once a second one where a kept connection turns out to have been closed meanwhile."""
        headers = {"Content-Type": "application/msgpack"}
        token = self._read_token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        for again in (self._used, False):
            try:
                self._connection.request("POST", self._path, body, headers)
                response = self._connection.getresponse()
                text = response.read(MOST_REPLY_BYTES)
                if not response.isclosed():
                    self._connection.close()
                self._used = True
                return self._judged(response.status, text, response.headers.get("Retry-After", ""))
            except (http.client.HTTPException, OSError, ValueError) as error:
                self.close()
                if not again or isinstance(error, TimeoutError):
                    return Outcome(kind="again", why=f"{type(error).__name__}: {error}")
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Forget the connection; the next try makes a new one."""
        self._used = False
        self._connection.close()

    def interrupt(self) -> None:
        """From another thread: end a try that waits."""
        sock = self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _judged(self, code: int, text: bytes, retry_after: str) -> Outcome:
        try:
            ack = msgspec.json.decode(text, type=Ack)
        except msgspec.DecodeError:
            ack = Ack(ok=False, error=text[:200].decode("utf-8", "replace"))
        if code == 200:
            return Outcome(kind="accepted", code=code, repeated=ack.repeated)
        if code == 401:
            self._token = None  # it may have been changed on disk
        wait_s = min(float(retry_after), RETRY_AFTER_MOST_S) if retry_after.isdigit() else 0.0
        kind: Literal["refused", "again"] = "refused" if code in REFUSED_FOR_EVER else "again"
        return Outcome(kind=kind, code=code, why=ack.error or f"HTTP {code}", wait_s=wait_s)

    def _read_token(self) -> str:
        if self._token is None and self._token_file:
            try:
                self._token = Path(self._token_file).read_text().strip()
            except OSError:
                return ""  # told at the start; the aggregator says 401 until it is there
        return self._token or ""
