"""Answers as aggregators, proxies and broken servers give them: read at once or by `http.client`, to the same end."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from gpuwatch.agent.http_answer import Answer, read_answer

BODY = b'{"ok":true}'
MOST = 1000


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    yield ours, theirs
    ours.close()
    theirs.close()


def told(ends: tuple[socket.socket, socket.socket], *pieces: bytes, ended: bool = True) -> Answer:
    ours, theirs = ends
    for piece in pieces:
        theirs.sendall(piece)
    if ended:
        theirs.shutdown(socket.SHUT_WR)
    return read_answer(ours, MOST)


def head(*lines: bytes, code: bytes = b"200 OK") -> bytes:
    return b"\r\n".join((b"HTTP/1.1 " + code, *lines, b"", b""))


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (head(b"content-type: application/json", b"content-length: 11") + BODY, Answer(200, BODY)),
        (head(b"Server: x", b"Content-Length: 11", b"Date: now") + BODY, Answer(200, BODY)),
        (head(b"Content-Length: 11", b"Connection: close") + BODY, Answer(200, BODY, "", False)),
        (head(b"Connection: keep-alive", b"Content-Length: 11") + BODY, Answer(200, BODY)),
        (head(b"Transfer-Encoding: chunked") + b"b\r\n" + BODY + b"\r\n0\r\n\r\n", Answer(200, BODY)),
        (head() + BODY, Answer(200, BODY, "", False)),  # no length: until it hangs up
        (head(b"Content-Length: 0"), Answer(200, b"")),
        (head(b"Content-Length: 0", b"Retry-After: 7", code=b"503 No"), Answer(503, b"", "7")),
        (head(code=b"100 Continue") + head(b"Content-Length: 11") + BODY, Answer(200, BODY)),
        (head(b"Content-Length: 2000") + b"x" * 2000, Answer(200, b"x" * MOST, "", False)),  # more than asked for
        (b"HTTP/1.0 200 OK\r\nContent-Length: 11\r\n\r\n" + BODY, Answer(200, BODY, "", False)),
    ],
)
def test_an_answer_in_any_form(ends: tuple[socket.socket, socket.socket], said: bytes, answer: Answer) -> None:
    assert told(ends, said) == answer


@pytest.mark.parametrize("cut", range(1, 80, 3))
def test_an_answer_in_two_pieces(ends: tuple[socket.socket, socket.socket], cut: int) -> None:
    said = head(b"content-type: application/json", b"content-length: 11") + BODY
    ours, theirs = ends
    theirs.sendall(said[:cut])
    timer = threading.Timer(0.002, theirs.sendall, (said[cut:],))
    timer.start()
    assert read_answer(ours, MOST) == Answer(200, BODY)
    timer.join()


def test_what_is_no_answer(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(http.client.BadStatusLine):
        told(ends, b"what is this\r\n\r\n")


def test_a_connection_that_ends_without_an_answer(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(http.client.RemoteDisconnected):
        told(ends)


def test_an_answer_that_breaks_off_is_what_there_was(ends: tuple[socket.socket, socket.socket]) -> None:
    assert told(ends, head(b"Content-Length: 11") + BODY[:1]).body == BODY[:1]  # which is no acknowledgement


def test_two_lengths_are_not_the_usual_answer(ends: tuple[socket.socket, socket.socket]) -> None:
    said = head(b"Content-Length: 11", b"Content-Length: 3") + BODY
    assert told(ends, said).body in (BODY, BODY[:3])


def test_silence_times_out(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].settimeout(0.05)
    with pytest.raises(TimeoutError):
        told(ends, head(b"Content-Length: 11")[:20], ended=False)
