"""What strangers may cost: heads without end, requests that never end, more connections than there are files."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.aggregator import bounded, server
from gpuwatch.aggregator import settings as settings_file
from gpuwatch.model.token import machine_token
from gpuwatch.model.wire import WIRE_VERSION, Report
from gpuwatch.wiring.aggregator import Aggregator

SECRET = b"a secret of the tests, long enough"
OPERATOR = "an operator of the tests"
TOML = """
[server]
listen = "127.0.0.1:0"
secret_file = "secret"
operator_token_file = "operator"
state_dir = "state"
hold_file = "HOLD"

[pools.p]
nodes = ["gpu[01-02]", "rack/1"]
gpus = 8
"""
POST = f"POST /v1/reports HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {machine_token(SECRET, 'm1')}\r\n".encode()
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, int]]:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "operator").write_text(OPERATOR)
    path = tmp_path / "aggregator.toml"
    path.write_text(TOML)
    made = Aggregator(settings_file.load(path))
    made.start()
    host, port = made.url.removeprefix("http://").rstrip("/").split(":")
    yield host, int(port)
    made.stop()


def answer(address: tuple[str, int], data: bytes) -> bytes:
    """What comes back for these bytes, until the other side closes or has said something whole."""
    with socket.create_connection(address, timeout=5.0) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(data)
        return sock.recv(65_536)
    return b""


def report_taken(address: tuple[str, int], sequence: int) -> bool:
    report = Report(WIRE_VERSION, "gpu01", "m1", "b", "a", sequence, time.time_ns())
    body = msgspec.msgpack.encode(report)
    return b'"ok":true' in answer(address, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)


ENDLESS: dict[str, tuple[bytes, Callable[[int], bytes]]] = {
    "headers": (b"GET / HTTP/1.1\r\n", lambda n: b"".join(b"X-%d-%d: v\r\n" % (n, i) for i in range(500))),
    "one-header": (b"GET / HTTP/1.1\r\nX: ", lambda _: b"v" * 8192),
    "address": (b"GET /", lambda _: b"v" * 8192),
    "chunk-extension": (CHUNKED + b"1;", lambda _: b"v" * 8192),
    "trailers": (CHUNKED + b"0\r\n", lambda _: b"X-Y: zzzzz\r\n" * 500),
    "tiny-chunks": (CHUNKED, lambda _: b"1\r\nx\r\n" * 2000),
}


@pytest.mark.parametrize(("begin", "more"), ENDLESS.values(), ids=ENDLESS)
def test_what_never_becomes_a_request_is_cut_off(
    begin: bytes, more: Callable[[int], bytes], address: tuple[str, int]
) -> None:
    sent = 0
    with socket.create_connection(address, timeout=5.0) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(begin)
        for number in range(4000):
            part = more(number)
            sock.sendall(part)
            sent += len(part)
    assert sent < 24 << 20  # what lies in the sockets' buffers, and a report's own limit in single bytes
    assert report_taken(address, 1)


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET / HT", POST + b"Content-Length: 500\r\n\r\nx", CHUNKED],
    ids=["nothing", "head", "body", "chunk"],
)
def test_a_request_that_does_not_end_is_ended(
    begun: bytes, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "MAX_REQUEST_S", 0.5)
    monkeypatch.setattr(server, "SWEEP_S", 0.1)
    with socket.create_connection(address, timeout=10.0) as sock:
        sock.sendall(begun)
        with contextlib.suppress(ConnectionError):
            assert sock.recv(100) == b""
    monkeypatch.undo()
    assert report_taken(address, 1)


def test_the_last_files_are_the_ledgers(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatch.aggregator.bounded.resource.getrlimit", lambda _: (bounded.OWN_FILES + 203, 0))
    agent = socket.create_connection(address, timeout=5.0)
    agent.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert agent.recv(1000).startswith(b"HTTP/1.1 200")
    crowd = [socket.create_connection(address, timeout=5.0) for _ in range(230)]
    for sock in crowd[-20:]:
        with contextlib.suppress(ConnectionError):
            assert sock.recv(10) == b""  # told at once
    agent.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert agent.recv(1000).startswith(b"HTTP/1.1 200")  # who is connected goes on
    for sock in [*crowd, agent]:
        sock.close()


@pytest.mark.parametrize(
    ("request_line", "token", "code"),
    [
        pytest.param("POST /api/v1/hold/gpu01", OPERATOR, 200, id="right"),
        pytest.param("POST /api/v1/hold/rack/1", OPERATOR, 200, id="slot-with-a-slash"),
        pytest.param("POST /api/v1/hold/rack%2F1", OPERATOR, 200, id="slot-with-a-quoted-slash"),
        pytest.param("POST /api/v1/approve/ask-restart_job-team/run-1-1", OPERATOR, 404, id="run-with-a-slash"),
        pytest.param("POST /api/v1/hold/../../etc", OPERATOR, 404, id="path-trick"),
        pytest.param("POST /api/v1/hold/gpu01", "", 401, id="no-token"),
        pytest.param("POST /api/v1/hold/gpu01", "wrong", 401, id="wrong-token"),
        pytest.param(f"POST /api/v1/hold/gpu01?token={OPERATOR.replace(' ', '+')}", "", 401, id="token-in-the-address"),
        pytest.param("GET /api/v1/hold/gpu01", OPERATOR, 405, id="get"),
        pytest.param("PUT /api/v1/fleet", OPERATOR, 405, id="put"),
    ],
)
def test_orders_need_the_token_in_its_header(
    request_line: str, token: str, code: int, address: tuple[str, int]
) -> None:
    head = f"{request_line} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
    head += f"Authorization: Bearer {token}\r\n" if token else ""
    head += "Cookie: token=x\r\nOrigin: http://evil\r\n\r\n"
    said = answer(address, head.encode() + b"{}")
    assert said.startswith(b"HTTP/1.1 %d " % code)
    assert b"access-control-allow" not in said.lower()
    if code == 404:
        assert json.loads(said.partition(b"\r\n\r\n")[2])["next_step"]


@pytest.mark.parametrize("body", [b"[" * 9000, b'{"x":' + b"[" * 9000, b'{"who": 5}', b'{"who": "\\ud800"}'])
def test_an_order_that_is_none_is_told_so(body: bytes, address: tuple[str, int]) -> None:
    head = f"POST /api/v1/hold/gpu01 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {OPERATOR}\r\n"
    said = answer(address, head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert said.startswith(b"HTTP/1.1 400 ")
