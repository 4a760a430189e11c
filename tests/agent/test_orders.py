"""Orders are passed on as they are, and nothing more."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.agent.orders import OrderFile
from gpuwatch.agent.wire_client import Line
from gpuwatch.model.wire import Ack

ORDER = '{"order":{"because":"\\n\\u00e4"},"key":"…"}'


def test_the_file_holds_the_last_order(tmp_path: Path) -> None:
    path = tmp_path / "hands" / "order"
    file = OrderFile(path)
    file.put(ORDER)
    assert path.read_text() == ORDER
    written = path.stat().st_ino
    file.put(ORDER)
    assert path.stat().st_ino == written
    file.put("another")
    assert path.read_text() == "another"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_takes_nothing_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "hands").touch()
    file = OrderFile(tmp_path / "hands" / "order")
    file.put(ORDER)
    file.put(ORDER)
    assert caplog.text.count("cannot be passed on") == 1
    (tmp_path / "hands").unlink()
    file.put(ORDER)
    assert (tmp_path / "hands" / "order").read_text() == ORDER


@pytest.fixture
def replies() -> Iterator[tuple[str, list[tuple[int, Ack]]]]:
    """An aggregator that answers what stands in the list, and its address."""
    said: list[tuple[int, Ack]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            code, ack = said.pop(0)
            body = msgspec.json.encode(ack)
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", said
    server.shutdown()
    server.server_close()


def test_only_an_accepted_report_brings_an_order(replies: tuple[str, list[tuple[int, Ack]]]) -> None:
    url, said = replies
    orders: list[str] = []
    line = Line(url, token_file="", ca_file="", on_order=orders.append)
    said += [
        (200, Ack(ok=True)),
        (200, Ack(ok=True, order=ORDER)),
        (200, Ack(ok=True, repeated=True, order="again")),
        (500, Ack(ok=False, order="not this")),
        (409, Ack(ok=False, order="nor this")),
    ]
    kinds = [line.send(b"report").kind for _ in range(5)]
    line.close()
    assert kinds == ["accepted", "accepted", "accepted", "again", "refused"]
    assert orders == [ORDER, "again"]
