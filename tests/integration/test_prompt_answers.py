"""The usual report is answered in the parser; everything around it keeps the order and words of the ordinary way."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.aggregator import settings as settings_file
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.token import machine_token
from gpuwatch.model.wire import MAX_REPORT_BYTES, WIRE_VERSION, Envelope, Report
from gpuwatch.wiring.aggregator import Aggregator

SECRET = b"a secret of the tests, long enough"
TOML = """
[server]
listen = "127.0.0.1:0"
secret_file = "secret"
operator_token_file = "operator"
state_dir = "state"
hold_file = "HOLD"

[pools.p]
nodes = ["gpu[01-02]"]
gpus = 8
"""
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture
def sock(tmp_path: Path) -> Iterator[socket.socket]:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "operator").write_text("an operator of the tests")
    path = tmp_path / "aggregator.toml"
    path.write_text(TOML)
    made = Aggregator(settings_file.load(path))
    made.start()
    host, port = made.url.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port)), timeout=5.0) as connected:
        yield connected
    made.stop()


def body(sequence: int, *events: KernelEvent) -> bytes:
    facts = msgspec.Raw(msgspec.msgpack.encode(KernelLogFacts(readable=True, events=events)))
    envelopes = (Envelope("kernel_log", time.time_ns(), 0.01, "ok", facts=facts),)
    return msgspec.msgpack.encode(Report(WIRE_VERSION, "gpu01", "m1", "b", "a", sequence, time.time_ns(), envelopes))


def post(content: bytes, *, machine: str = "m1", headers: bytes = b"") -> bytes:
    token = machine_token(SECRET, machine).encode()
    head = b"POST /v1/reports HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\n%bContent-Length: %d\r\n\r\n"
    return head % (token, headers, len(content)) + content


def answers(sock: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """Status and body of so many answers."""
    came = b""
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        head, whole, rest = came.partition(b"\r\n\r\n")
        length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0)
        if whole and len(rest) >= length:
            found.append((int(head[9:12]), rest[:length]))
            came = rest[length:]
            continue
        data = sock.recv(65_536)
        assert data, f"closed after {found}"
        came += data
    return found


def event(key: str) -> KernelEvent:
    return KernelEvent(id=key, kind="xid", xid=13, at_unix_ns=time.time_ns(), text="an event")


def test_pipelined_requests_are_answered_in_their_order(sock: socket.socket) -> None:
    sock.sendall(post(body(1)) + post(body(2, event("e1"))) + post(body(3)) + HEALTH + post(b"garbage") + post(body(4)))
    codes = [code for code, _ in answers(sock, 6)]
    assert codes[3] in (200, 503)  # not ready yet, or it is
    assert [*codes[:3], *codes[4:]] == [200, 200, 200, 400, 200]


def test_a_report_that_comes_byte_by_byte_is_taken(sock: socket.socket) -> None:
    for byte in post(body(1)):
        sock.sendall(bytes([byte]))
    assert answers(sock, 1)[0] == (200, b'{"ok":true,"repeated":false,"error":"","next_step":"","order":""}')


@pytest.mark.parametrize("headers", [b"Connection: close\r\n", b"Expect: 100-continue\r\n"])
def test_an_unusual_connection_goes_the_ordinary_way(headers: bytes, sock: socket.socket) -> None:
    sock.sendall(post(body(1), headers=headers))
    assert {code for code, _ in answers(sock, 1)} <= {100, 200}


def test_a_repeated_report_says_so_and_one_with_another_body_conflicts(sock: socket.socket) -> None:
    first = body(1)
    sock.sendall(post(first) + post(first) + post(body(1)))
    said = answers(sock, 3)
    assert [code for code, _ in said] == [200, 200, 409]
    assert b'"repeated":true' in said[1][1]


def test_a_foreign_token_and_a_body_too_long_are_refused(sock: socket.socket) -> None:
    sock.sendall(post(body(1)) + post(body(2), machine="m2"))
    assert [code for code, _ in answers(sock, 2)] == [200, 401]
    sock.sendall(post(b"x" * (MAX_REPORT_BYTES + 1))[:2000])
    assert answers(sock, 1)[0][0] == 413
