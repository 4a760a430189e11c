"""The sender against a real HTTP server that accepts, refuses, hangs up, stays silent and comes back."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch.agent.backoff import BackOff
from gpuwatch.agent.sender import Parcel, Sender
from gpuwatch.agent.spool import Spool
from gpuwatch.agent.wire_client import Line
from gpuwatch.clock import SystemClock

Answer = Callable[[http.server.BaseHTTPRequestHandler, bytes], None]


def say(handler: http.server.BaseHTTPRequestHandler, code: int, **more: object) -> None:
    body = json.dumps({"ok": code == 200} | more).encode()
    handler.send_response(code)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


class Server:
    """An aggregator that does what the test says."""

    def __init__(self, port: int = 0, certificate: Path | None = None) -> None:
        self.got: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.answer: Answer = lambda handler, body: say(handler, 200)
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                server.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.got.append(body)
                server.headers.append({**dict(self.headers), "path": self.path})
                server.answer(self, body)

            def log_message(self, *_: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def make(tmp_path: Path, *urls: str, timeout_s: float = 5.0, first_s: float = 0.02) -> Sender:
    (tmp_path / "token").write_text("secret-token\n")
    lines = [Line(url, token_file=str(tmp_path / "token"), ca_file="", timeout_s=timeout_s) for url in urls]
    spool = Spool(tmp_path / "spool", max_bytes=1 << 20, max_reports=100)
    return Sender(lines, spool, BackOff(first_s, 0.2), SystemClock())


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end_s = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_reports_go_out_in_order_over_one_connection(tmp_path: Path, server: Server) -> None:
    sender = make(tmp_path, server.url + "/behind/a/proxy/")
    sender.start()
    for number in range(20):
        sender.put(Parcel(b"%d" % number))
    until(lambda: sender.accepted_count == 20)
    assert server.got == [b"%d" % number for number in range(20)]
    assert server.connections == 1
    assert server.headers[0]["Authorization"] == "Bearer secret-token"
    assert server.headers[0]["Content-Type"] == "application/msgpack"
    assert server.headers[0]["path"] == "/behind/a/proxy/v1/reports"
    assert sender.waiting_count() == 0
    assert sender.last_accepted_unix_ns is not None


@pytest.mark.parametrize("code", [400, 403, 409, 413])
def test_what_is_refused_for_ever_is_set_aside_and_the_rest_goes_on(tmp_path: Path, server: Server, code: int) -> None:
    server.answer = lambda handler, body: say(handler, code if body == b"bad" else 200, error="no")
    sender = make(tmp_path, server.url)
    sender.start()
    for data in (b"bad", b"good"):
        sender.put(Parcel(data))
    until(lambda: sender.accepted_count == 1)
    assert server.got == [b"bad", b"good"]
    assert sender.refused == {code: 1}
    assert [path.read_bytes() for path in (tmp_path / "spool" / "refused").glob("*.report")] == [b"bad"]


@pytest.mark.parametrize("code", [401, 404, 429, 500, 503])
def test_what_may_succeed_later_is_repeated_with_the_same_bytes(tmp_path: Path, server: Server, code: int) -> None:
    answers = [code, code, 200]
    server.answer = lambda handler, body: say(handler, answers.pop(0) if answers else 200)
    sender = make(tmp_path, server.url)
    sender.start()
    sender.put(Parcel(b"one"))
    until(lambda: sender.accepted_count == 1)
    assert server.got == [b"one"] * 3
    assert sender.failures == {str(code): 2}
    assert sender.refused == {}
    assert sender.last_trouble == ""


def test_a_token_that_was_changed_is_read_again(tmp_path: Path, server: Server) -> None:
    def strict(handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        say(handler, 200 if handler.headers["Authorization"] == "Bearer new" else 401)

    server.answer = strict
    sender = make(tmp_path, server.url)
    sender.start()
    sender.put(Parcel(b"one"))
    until(lambda: sender.failures["401"] > 0)
    (tmp_path / "token").write_text("new")
    until(lambda: sender.accepted_count == 1)


def test_retry_after_is_obeyed(tmp_path: Path, server: Server) -> None:
    times: list[float] = []

    def busy(handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        times.append(time.monotonic())
        if len(times) > 1:
            say(handler, 200)
            return
        handler.send_response(429)
        handler.send_header("Retry-After", "1")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    server.answer = busy
    sender = make(tmp_path, server.url)
    sender.start()
    sender.put(Parcel(b"one"))
    until(lambda: sender.accepted_count == 1)
    assert times[1] - times[0] >= 0.99


def test_a_kept_connection_that_was_closed_costs_nothing(tmp_path: Path, server: Server) -> None:
    def hang_up(handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        say(handler, 200)
        handler.close_connection = True

    server.answer = hang_up
    sender = make(tmp_path, server.url)
    sender.start()
    for number in range(5):
        sender.put(Parcel(b"%d" % number))
        until(lambda count=number + 1: sender.accepted_count == count)  # type: ignore[misc]
    assert sender.failures == {}
    assert server.got == [b"%d" % number for number in range(5)]


def test_while_nobody_is_there_reports_wait_on_disk_and_come_in_order(tmp_path: Path) -> None:
    url = nobody()
    sender = make(tmp_path, url)
    sender.start()
    for number in range(10):
        sender.put(Parcel(b"%d" % number))
    until(lambda: len(list((tmp_path / "spool").glob("*.report"))) == 10)
    assert sender.failures["unreachable"] > 0
    assert sender.spool_bytes() == 10
    server = Server(int(url.rpartition(":")[2]))
    try:
        sender.put(Parcel(b"10"))
        until(lambda: sender.accepted_count == 11)
        assert server.got == [b"%d" % number for number in range(11)]
        assert list((tmp_path / "spool").glob("*.report")) == []
    finally:
        server.close()


def test_the_next_agent_sends_what_a_killed_one_left(tmp_path: Path, server: Server) -> None:
    spool = Spool(tmp_path / "spool", max_bytes=1 << 20, max_reports=100)
    spool.put(b"left", events=True)
    sender = make(tmp_path, server.url)
    sender.start()
    until(lambda: sender.accepted_count == 1)
    assert server.got == [b"left"]


def test_the_second_address_is_asked_at_once(tmp_path: Path, server: Server) -> None:
    sender = make(tmp_path, nobody(), server.url, first_s=60.0)
    sender.start()
    sender.put(Parcel(b"one"))
    sender.put(Parcel(b"two"))
    until(lambda: sender.accepted_count == 2)
    assert server.got == [b"one", b"two"]
    assert sender.failures == {"unreachable": 1}


def test_an_event_does_not_wait_for_the_end_of_a_pause(tmp_path: Path) -> None:
    url = nobody()
    sender = make(tmp_path, url, first_s=60.0)
    sender.start()
    sender.put(Parcel(b"gauge"))
    until(lambda: sender.failures["unreachable"] == 1)
    server = Server(int(url.rpartition(":")[2]))
    try:
        sender.put(Parcel(b"event", events=True))
        until(lambda: sender.accepted_count == 2)
        assert server.got == [b"gauge", b"event"]
    finally:
        server.close()


def test_a_repeated_report_is_known_as_such(tmp_path: Path, server: Server) -> None:
    server.answer = lambda handler, body: say(handler, 200, repeated=True)
    sender = make(tmp_path, server.url)
    sender.start()
    sender.put(Parcel(b"one"))
    until(lambda: sender.accepted_count == 1)
    assert sender.repeated_count == 1


def test_an_answer_that_is_no_json_counts_by_its_status(tmp_path: Path, server: Server) -> None:
    answers = [502]

    def proxy(handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        if not answers:
            say(handler, 200)
            return
        page = b"<html>Bad gateway</html>"
        handler.send_response(answers.pop(0))
        handler.send_header("Content-Length", str(len(page)))
        handler.end_headers()
        handler.wfile.write(page)

    server.answer = proxy
    sender = make(tmp_path, server.url)
    sender.start()
    sender.put(Parcel(b"one"))
    until(lambda: sender.accepted_count == 1)
    assert sender.failures == {"502": 1}


def test_a_finish_delivers_the_goodbye(tmp_path: Path, server: Server) -> None:
    sender = make(tmp_path, server.url)
    sender.start()
    sender.put(Parcel(b"last gauge"))
    assert sender.finish(Parcel(b"goodbye", events=True), 5.0)
    assert server.got == [b"last gauge", b"goodbye"]


@pytest.mark.parametrize("how", ["nobody", "silent"])
def test_a_finish_is_short_and_leaves_the_goodbye_in_the_spool(tmp_path: Path, server: Server, how: str) -> None:
    forever = threading.Event()
    server.answer = lambda handler, body: (forever.wait(30), None)[1]
    sender = make(tmp_path, nobody() if how == "nobody" else server.url, timeout_s=30.0, first_s=30.0)
    sender.start()
    sender.put(Parcel(b"gauge"))
    until(lambda: bool(server.got) or sender.failures["unreachable"] == 1)
    begun_s = time.monotonic()
    assert not sender.finish(Parcel(b"goodbye", events=True), 0.3)
    assert time.monotonic() - begun_s < 1.0
    forever.set()
    left = Spool(tmp_path / "spool", max_bytes=1 << 20, max_reports=100)
    assert [left.first()[1] for _ in range(1)] == [b"gauge"]  # type: ignore[index]
    assert len(left) == 2


def test_memory_is_bounded_when_the_disk_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("not a folder")
    sender = make(tmp_path, nobody(), first_s=0.001)
    for number in range(200):
        sender.put(Parcel(b"%d" % number))
    sender.start()
    until(lambda: sender.waiting_count() <= 64)
    assert sender.lost() == {"disk": 136}


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("trusted", [True, False])
def test_tls_is_spoken_only_with_whom_we_trust(tmp_path: Path, trusted: bool) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    both = tmp_path / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    server = Server(certificate=both)
    ca_file = str(certificate) if trusted else ""
    line = Line(f"https://127.0.0.1:{server.port}", token_file="", ca_file=ca_file, timeout_s=5.0)
    try:
        outcomes = [line.send(b"one"), line.send(b"two")]
    finally:
        line.close()
        server.close()
    if trusted:
        assert [outcome.kind for outcome in outcomes] == ["accepted", "accepted"]
        assert server.connections == 1
    else:
        assert [outcome.kind for outcome in outcomes] == ["again", "again"]
        assert "certificate" in outcomes[0].why.lower()
        assert server.got == []


LATER = {
    "200 without a body": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a login page": b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n<html>hello>",
    "JSON of somebody else": b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"status":"up"}',
    "200 that says no": b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"ok":false}',
    "broken off in the body": b'HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"ok"',
    "broken off in a chunk": b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n{"ok"',
    "a chunk of no size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "nothing": b"",
    "garbage": b"\x00\xff\xfe SSH-2.0\r\n\r\n" * 3,
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "moved": b"HTTP/1.1 308 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "a proxy's 403": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\nforbidden",
    "plain HTTP to a TLS port": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nplain",
    "patience in no number": b"HTTP/1.1 503 Busy\r\nRetry-After: \xb2\r\nContent-Length: 0\r\n\r\n",
    "a very long reason": b"HTTP/1.1 503 Busy\r\nContent-Length: 900025\r\n\r\n"
    + b'{"ok":false,"error":"\\n%s"}' % (b"x" * 900_000),
}


@pytest.mark.parametrize("answer", LATER.values(), ids=LATER)
def test_only_the_aggregators_word_takes_a_report(tmp_path: Path, server: Server, answer: bytes) -> None:
    def odd(handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        handler.wfile.write(answer)
        handler.close_connection = True

    server.answer = odd
    line = Line(server.url, token_file="", ca_file="", timeout_s=5.0)
    outcome = line.send(b"one")
    assert outcome.kind == "again"
    assert len(outcome.why) <= 250  # it goes into the service manager's status, with the watchdog's word
    assert outcome.why.isprintable()
    server.answer = lambda handler, body: say(handler, 200)
    assert line.send(b"one").kind == "accepted"


def test_a_proxy_for_which_a_report_is_too_large_does_not_stop_the_rest(tmp_path: Path, server: Server) -> None:
    def small(handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        handler.wfile.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")

    server.answer = small
    assert Line(server.url, token_file="", ca_file="").send(b"one").kind == "refused"


@pytest.mark.parametrize("token", [None, b"", b"\xff\xfe\x00", b"two\nlines", "märz".encode(), b"a\x00b"])
def test_a_token_that_is_no_token_ends_nothing(tmp_path: Path, server: Server, token: bytes | None) -> None:
    server.answer = lambda handler, body: say(
        handler, 200 if handler.headers["Authorization"] == "Bearer good" else 401
    )
    sender = make(tmp_path, server.url)
    (tmp_path / "token").unlink()
    if token is not None:
        (tmp_path / "token").write_bytes(token)
    sender.start()
    sender.put(Parcel(b"one"))
    until(lambda: sender.failures["401"] > 0)
    assert "two" not in sender.last_trouble
    (tmp_path / "token").write_text("good")
    until(lambda: sender.accepted_count == 1)


def test_a_spool_that_was_full_is_delivered_when_the_aggregator_is_back(tmp_path: Path) -> None:
    url = nobody()
    sender = make(tmp_path, url, first_s=0.3)
    sender._spool = Spool(tmp_path / "small", max_bytes=1 << 20, max_reports=3)
    sender.start()
    for number in range(6):
        sender.put(Parcel(b"%d" % number))
    until(lambda: sender.lost() == {"no_room": 3})
    server = Server(int(url.rpartition(":")[2]))
    try:
        for number in range(6, 9):  # each pushes the report out that would be sent next
            sender.put(Parcel(b"%d" % number))
        until(lambda: sender.waiting_count() == 0)
        assert server.got[-1] == b"8"
        assert sender.accepted_count + sender.lost()["no_room"] == 9
        sender.put(Parcel(b"9"))
        until(lambda: server.got[-1] == b"9")
    finally:
        server.close()


def on_a_full_disk(sender: Sender, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four gauges lie in the spool, and there is room for no fifth report."""
    sender.start()
    for number in range(4):
        sender.put(Parcel(b"%d" % number))
    until(lambda: len(list(spool.glob("*.report"))) == 4)
    real = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if len(list(spool.glob("*.report"))) >= 4:
            raise OSError(28, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)


def test_a_full_disk_costs_no_report_while_memory_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = nobody()
    sender = make(tmp_path, url, first_s=0.05)
    on_a_full_disk(sender, tmp_path / "spool", monkeypatch)
    for number in range(4, 24):
        sender.put(Parcel(b"%d" % number))
        time.sleep(0.01)
    tries = sender.failures["unreachable"]
    until(lambda: sender.failures["unreachable"] > tries + 1)
    assert (sender.lost(), sender.waiting_count()) == ({}, 24)
    server = Server(int(url.rpartition(":")[2]))
    try:
        until(lambda: sender.waiting_count() == 0)
        assert server.got == [b"%d" % number for number in range(24)]
    finally:
        server.close()


def test_a_full_disk_costs_gauges_where_an_event_must_outlive_us_or_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, spool = make(tmp_path, nobody(), first_s=0.05), tmp_path / "spool"
    on_a_full_disk(sender, spool, monkeypatch)
    sender.put(Parcel(b"gauge"))
    sender.put(Parcel(b"event", events=True))
    until(lambda: any(spool.glob("*-e.report")))
    assert sender.lost() == {"disk": 2}
    for number in range(80):
        sender.put(Parcel(b"%d" % number))
    until(lambda: sender.waiting_count() == 4 + 64)
    assert sender.lost() == {"disk": 2 + 80 - 64}
    assert any(spool.glob("*-e.report"))


def test_a_fault_of_the_disk_ends_no_sending(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = make(tmp_path, server.url)
    faults = [RuntimeError("a surprise")]

    def send(self: Line, body: bytes, real: Callable[[Line, bytes], object] = Line.send) -> object:
        if faults:
            raise faults.pop()
        return real(self, body)

    monkeypatch.setattr(Line, "send", send)
    sender.start()
    sender.put(Parcel(b"one"))
    until(lambda: sender.accepted_count == 1)
    assert sender.failures == {"fault": 1}


def test_an_answer_that_trickles_in_is_cut_short(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwatch.agent.sender.TRY_TAKES_S", 0.2)
    tries: list[bytes] = []

    def trickle(handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        tries.append(body)
        if len(tries) > 2:
            say(handler, 200)
            return
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        with contextlib.suppress(OSError):
            for _ in range(1000):
                handler.wfile.write(b"X-A: b\r\n")
                time.sleep(0.02)

    server.answer = trickle
    sender = make(tmp_path, server.url, timeout_s=2.0)
    sender.start()
    count = 0
    while not sender.accepted_count:
        sender.put(Parcel(b"%d" % count))
        count += 1
        time.sleep(0.05)
        assert count < 200
    until(lambda: sender.accepted_count == count)
    assert sender.lost() == {}


def test_memory_is_bounded_while_one_try_takes_long(tmp_path: Path, server: Server) -> None:
    forever = threading.Event()
    server.answer = lambda handler, body: say(handler, 200 if forever.wait(30) else 500)
    sender = make(tmp_path, server.url, timeout_s=30.0)
    sender.start()
    sender.put(Parcel(b"first"))
    until(lambda: bool(server.got))
    for number in range(600):
        sender.put(Parcel(b"%d" % number, events=number % 10 == 0))
    assert sender.waiting_count() == 256
    assert sender.lost() == {"memory": 345}
    for _ in range(10):
        sender.put(Parcel(bytes(1 << 20)))
    assert sum(len(parcel.data) for parcel in sender._outbox) <= 8 << 20
    assert [parcel.data for parcel in sender._outbox if parcel.events][:60] == [b"%d" % n for n in range(0, 600, 10)]
    forever.set()
    until(lambda: sender.waiting_count() == 0)
    assert server.got[0] == b"first"


@pytest.mark.needs("openssl")
def test_certificates_that_come_late_are_used(tmp_path: Path) -> None:
    line = Line("https://127.0.0.1:1", token_file="", ca_file=str(tmp_path / "ca.pem"), timeout_s=1.0)
    outcome = line.send(b"one")
    assert (outcome.kind, outcome.code) == ("again", 0)
    assert outcome.why == f"NoTrust: ca_file {tmp_path / 'ca.pem'}: No such file or directory"[:200]


def test_tls_to_a_port_that_speaks_none_is_tried_again(tmp_path: Path, server: Server) -> None:
    line = Line(server.url.replace("http", "https", 1), token_file="", ca_file="", timeout_s=5.0)
    assert line.send(b"one").kind == "again"


def test_what_waits_goes_to_the_new_address_at_once(tmp_path: Path, server: Server) -> None:
    sender = make(tmp_path, nobody(), first_s=30.0)
    sender.start()
    sender.put(Parcel(b"one"))
    sender.put(Parcel(b"two"))
    until(lambda: sender.failures["unreachable"] > 0)
    line = Line(server.url, token_file=str(tmp_path / "token"), ca_file="")
    begun_s = time.monotonic()
    sender.change([line], BackOff(0.02, 0.2))
    until(lambda: len(server.got) == 2)
    assert time.monotonic() - begun_s < 5.0
    assert server.got == [b"one", b"two"]
    assert sender.finish(Parcel(b"end"), 5.0)
