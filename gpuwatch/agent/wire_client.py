"""One report to one aggregator: HTTP/1.1 keep-alive on the standard library's own client, the lightest there is."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from gpuwatch.agent.http_answer import read_answer
from gpuwatch.model.wire import Ack
from gpuwatch.sdk.trust import trusted

TIMEOUT_S = 10.0  # for one connect, one write, one read; who tries for longer is interrupted by the sender
MOST_REPLY_BYTES = 1 << 20
RETRY_AFTER_MOST_S = 300.0
REFUSED_FOR_EVER = frozenset({400, 403, 409, 413})
TOO_LARGE = 413  # whoever says it: a proxy that is between us will say it again
_ACK = msgspec.json.Decoder(Ack)
WHY_CHARACTERS = 200  # of what the other side says: it goes to logs and to the service manager


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one try."""

    kind: Literal["accepted", "refused", "again"]
    code: int = 0  # HTTP status; 0: there was no answer
    why: str = ""
    wait_s: float = 0.0  # the other side asked for that much patience
    repeated: bool = False


class Line:
    """A connection that is kept, and made anew when it broke. One thread uses it."""

    def __init__(
        self,
        url: str,
        *,
        token_file: str,
        ca_file: str,
        timeout_s: float = TIMEOUT_S,
        on_order: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_order` is given what an accepted report's reply brings for this node's hands."""
        parts = urlsplit(url)
        self.url = url
        self._host, self._port = parts.hostname or "", parts.port
        self._path = parts.path.rstrip("/") + "/v1/reports"
        self._head = b""  # of every request
        self._secure = parts.scheme == "https"
        self._token_file = token_file
        self._token: str | None = None
        self._ca_file = ca_file
        self._timeout_s = timeout_s
        self._on_order = on_order
        self._connection: http.client.HTTPConnection | None = None
        self._used = False

    def send(self, body: bytes) -> Outcome:
        """One try, and at once a second one where a kept connection turns out to have been closed meanwhile."""
        token = self._read_token()
        said = b"Authorization: Bearer %b\r\n" % token.encode() if token else b""
        for again in (self._used, False):
            try:
                connection = self._connection = self._connection or self._new()
                if connection.sock is None:
                    connection.connect()
                self._head = self._head or self._made_head()
                request = b"%b%bContent-Length: %d\r\n\r\n%b" % (self._head, said, len(body), body)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may say why before it hangs up
                    connection.sock.sendall(request)
                answer = read_answer(connection.sock, MOST_REPLY_BYTES)
                if not answer.stays:
                    connection.close()
                self._used = True
                return self._judged(answer.code, answer.body, answer.retry_after)
            except (http.client.HTTPException, OSError, ValueError) as error:
                self._forget(error)
                if not again or isinstance(error, TimeoutError):
                    return Outcome(kind="again", why=_short(f"{type(error).__name__}: {error}"))
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Forget the connection; the next try makes a new one."""
        self._used = False
        if self._connection is not None:
            self._connection.close()

    def interrupt(self) -> None:
        """From another thread: end a try that waits."""
        sock = None if self._connection is None else self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not TLS's own, which pulls its state from under a read

    def _made_head(self) -> bytes:
        """Raises `ValueError` where the address has letters that no request may have."""
        host = f"[{self._host}]" if ":" in self._host else self._host.encode("idna").decode()
        if any(letter <= " " or letter == "\x7f" for letter in self._path):
            raise ValueError(f"{self._path!r} cannot be asked for")
        port = "" if self._port is None else f":{self._port}"
        return (
            f"POST {self._path} HTTP/1.1\r\nHost: {host}{port}\r\n"
            "Accept-Encoding: identity\r\nContent-Type: application/msgpack\r\n"
        ).encode("ascii")

    def _new(self) -> http.client.HTTPConnection:
        """Raises `NoTrust` where the certificates of `ca_file` cannot be read: they may come later, as a token may."""
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        context = trusted(self._ca_file)
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)

    def _forget(self, error: Exception) -> None:
        self.close()
        if self._secure and "certificate" in str(error).lower():
            self._connection = None  # whom we trust may have been changed on disk

    def _judged(self, code: int, text: bytes, retry_after: str) -> Outcome:
        """Only the aggregator's own acknowledgement takes a report from us; what else answers at its address (a proxy,
        a login page, half an answer) says nothing about the report."""
        ack: Ack | None = None
        with contextlib.suppress(msgspec.DecodeError):
            ack = _ACK.decode(text)
        if code == 200 and ack is not None and ack.ok:
            if ack.order:
                self._on_order(ack.order)
            return Outcome(kind="accepted", code=code, repeated=ack.repeated)
        if code == 401:
            self._token = None  # it may have been changed on disk
        said = text[:WHY_CHARACTERS].decode("utf-8", "replace") if ack is None else ack.error
        wait_s = min(float(retry_after), RETRY_AFTER_MOST_S) if retry_after.isdecimal() else 0.0
        for_ever = code in REFUSED_FOR_EVER and (ack is not None or code == TOO_LARGE)
        kind: Literal["refused", "again"] = "refused" if for_ever else "again"
        words = f"HTTP {code}" if ack is not None else f"HTTP {code}, not from an aggregator"
        return Outcome(kind=kind, code=code, why=_short(f"{words}: {said}" if said else words), wait_s=wait_s)

    def _read_token(self) -> str:
        if self._token is None and self._token_file:
            try:
                token = Path(self._token_file).read_text().strip()
            except (OSError, ValueError):
                return ""  # told at the start; the aggregator says 401 until it is there
            if not token.isascii() or not token.isprintable():
                return ""  # no header can carry it, and the error would quote it
            self._token = token
        return self._token or ""


def _short(text: str) -> str:
    """One line of few words."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:WHY_CHARACTERS]).strip()
