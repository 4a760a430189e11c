"""Announcements of Google Cloud and EC2, in the published shapes, from a local service. Neither was run for real."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gpuwatch.errors import ProbeError
from gpuwatch.sdk import aws_notices, gcp_notices
from tests.fakes_hands import FakeClock

NOW_NS = 1_733_079_601 * 10**9  # 2024-12-01T19:00:01Z
DATE = "Sun, 01 Dec 2024 18:50:01 GMT"


class Service:
    """Answers by path; what is not there is 404."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def _do(self) -> None:
                service.asked.append((self.command, self.path, dict(self.headers)))
                status, text = service.answers.get(self.path, (404, ""))
                self.send_response_only(status)
                self.send_header("Date", DATE)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = _do  # noqa: N815

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.stop()


WINDOW = {
    "can_reschedule": "true",
    "latest_window_start_time": "2024-12-01T19:00:01Z",
    "maintenance_status": "PENDING",
    "type": "SCHEDULED",
    "window_end_time": "2024-12-01T21:00:01Z",
    "window_start_time": "2024-12-01T19:00:01Z",
}


def gcp(service: Service, word: str = "NONE", window: tuple[int, str] = (503, ""), preempted: str = "FALSE") -> Any:
    root = gcp_notices.ROOT
    service.answers[f"{root}maintenance-event"] = (200, word)
    service.answers[f"{root}preempted"] = (200, preempted)
    service.answers[f"{root}upcoming-maintenance?alt=json"] = window
    return gcp_notices.open_source(FakeClock(), base_url=service.url, timeout_s=5.0)


@pytest.mark.parametrize(
    "window", [(503, ""), (404, ""), (200, "NONE"), (200, '"NONE"'), (200, "{ }"), (200, '{"error": "none yet"}')]
)
def test_google_announces_nothing_in_many_words(service: Service, window: tuple[int, str]) -> None:
    assert gcp(service, window=window).read() == ()
    assert all(headers["Metadata-Flavor"] == "Google" for _, _, headers in service.asked)


@pytest.mark.parametrize("camel", [False, True])
def test_googles_window_by_its_own_clock(service: Service, camel: bool) -> None:
    told: dict[str, str] = dict(WINDOW)
    if camel:
        told = {"windowStartTime": told["window_start_time"], "windowEndTime": told["window_end_time"]}
    (notice,) = gcp(service, window=(200, json.dumps(told))).read()
    assert (notice.not_before_unix_ns, notice.in_s, notice.duration_s) == (NOW_NS, 600.0, 7200.0)
    assert (notice.ends_work, notice.started, notice.mine) == (True, False, True)


def test_googles_last_word_gives_an_hour_where_there_are_gpus(service: Service) -> None:
    clock = FakeClock()
    gcp(service, "TERMINATE_ON_HOST_MAINTENANCE")
    source = gcp_notices.Source(clock, base_url=service.url)
    said = []
    for seconds in (0.0, 1800.0, 1800.0):
        clock.pass_s(seconds)
        clock.step_s(-3600.0)
        (notice,) = source.read()
        said.append((notice.in_s, notice.started, notice.ends_work))
    assert said == [(3600.0, False, True), (1800.0, False, True), (0.0, True, True)]
    assert not gcp(service, "MIGRATE_ON_HOST_MAINTENANCE").read()[0].ends_work
    assert [notice.kind for notice in gcp(service, preempted="TRUE").read()] == ["preempt"]


@pytest.mark.parametrize(
    ("word", "window"), [("<html>", (503, "")), ("NONE", (200, "[1]")), ("NONE", (200, "{")), ("NONE", (500, ""))]
)
def test_what_google_cannot_have_meant_is_an_error(service: Service, word: str, window: tuple[int, str]) -> None:
    with pytest.raises(ProbeError):
        gcp(service, word, window).read()


EVENT = {
    "NotBefore": "1 Dec 2024 19:00:01 GMT",
    "Code": "system-reboot",
    "Description": "scheduled reboot",
    "EventId": "instance-event-0d59937288b749b32",
    "NotAfter": "1 Dec 2024 19:17:01 GMT",
    "State": "active",
}


def aws(service: Service, events: Any = None, spot: Any = None) -> Any:
    service.answers = {aws_notices.TOKEN: (200, "a-token")}
    if events is not None:
        service.answers[aws_notices.EVENTS] = (200, events if isinstance(events, str) else json.dumps(events))
    if spot is not None:
        service.answers[aws_notices.SPOT] = (200, spot if isinstance(spot, str) else json.dumps(spot))
    return aws_notices.open_source(FakeClock(), base_url=service.url, timeout_s=5.0)


def test_ec2s_event_by_its_own_clock_and_with_a_token(service: Service) -> None:
    (notice,) = aws(service, [EVENT, EVENT | {"State": "completed"}]).read()
    assert (notice.kind, notice.ends_work, notice.started, notice.mine) == ("system-reboot", True, False, True)
    assert (notice.not_before_unix_ns, notice.in_s, notice.duration_s) == (NOW_NS, 600.0, 1020.0)
    assert next((method, path) for method, path, _ in service.asked) == ("PUT", aws_notices.TOKEN)
    assert all(h.get("X-Aws-Ec2-Metadata-Token") == "a-token" for m, _, h in service.asked if m == "GET")


def test_ec2_announces_nothing(service: Service) -> None:
    assert aws(service).read() == ()
    assert aws(service, []).read() == ()


def test_ec2_takes_a_spot_machine(service: Service) -> None:
    (notice,) = aws(service, [], {"action": "terminate", "time": "2024-12-01T18:52:01Z"}).read()
    assert (notice.kind, notice.in_s, notice.ends_work) == ("terminate", 120.0, True)


@pytest.mark.parametrize(
    ("events", "spot"), [("{", None), ("[7]", None), ([{"State": "active"}], None), ("7", None), ([], "{}"), ([], "x")]
)
def test_what_ec2_cannot_have_meant_is_an_error(service: Service, events: Any, spot: Any) -> None:
    with pytest.raises(ProbeError):
        aws(service, events, spot).read()


def test_a_token_that_is_refused_is_asked_for_anew(service: Service) -> None:
    source = aws(service, [EVENT])
    source.read()
    service.answers[aws_notices.EVENTS] = (401, "")
    with pytest.raises(ProbeError):
        source.read()
    service.answers[aws_notices.EVENTS] = (200, "[]")
    assert source.read() == ()
    assert [path for method, path, _ in service.asked if method == "PUT"] == [aws_notices.TOKEN] * 2


def test_without_a_token_nothing_is_known(service: Service) -> None:
    with pytest.raises(ProbeError):
        aws_notices.open_source(FakeClock(), base_url=service.url, timeout_s=5.0).read()
