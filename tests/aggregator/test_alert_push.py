"""The push against a local server that answers as Alertmanager does; time by hand."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.aggregator import alertmanager
from gpuwatch.aggregator.alert_push import BATCH, BEAT_S, Pusher
from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.aggregator.alerts import Alert
from gpuwatch.aggregator.coverage import coverage
from gpuwatch.aggregator.money import Money
from gpuwatch.clock import SystemClock
from tests.alerting import desk_of
from tests.fakes_centre import Centre
from tests.fakes_hands import FakeClock


class Receiver:
    """What was posted, and how to answer: the status, how its clock differs, which alerts are refused."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.posts: list[list[dict[str, Any]]] = []
        self.proofs: list[str] = []
        self.status = 200
        self.ahead_s = 0.0
        self.refuses: set[str] = set()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.proofs.append(self.headers.get("Authorization", ""))
                status = receiver.status
                if status == 200 and self.path == "/prefix/api/v2/alerts":
                    told = json.loads(sent)
                    fine = [alert for alert in told if alert["labels"]["fault"] not in receiver.refuses]
                    receiver.posts.append(fine)
                    status = 200 if fine == told else 400  # the real one takes the others, too
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string(clock.unix_ns() / 1e9 + receiver.ahead_s)

            def log_message(self, *_: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/prefix/"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def take(self) -> list[dict[str, Any]]:
        """Everything posted since the last call."""
        taken = [alert for post in self.posts for alert in post]
        self.posts.clear()
        return taken


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def receiver(clock: FakeClock) -> Iterator[Receiver]:
    made = Receiver(clock)
    yield made
    made.close()


class Bench:
    """One pusher, its clock, and the alerts that there should be."""

    def __init__(self, receiver: Receiver, settings: AlertmanagerSettings | None = None) -> None:
        self.clock = receiver.clock
        self.receiver = receiver
        self.settings = settings or AlertmanagerSettings()
        self.alerts: dict[str, Alert] = {}
        self.boot()

    def boot(self) -> None:
        self.pusher = Pusher(self.receiver.url, self.settings, lambda: tuple(self.alerts.values()), self.clock)

    def open(self, fault: str, now: str = "draining") -> None:
        annotations = {"summary": fault, "now": now, "story": "", "price": "$1"}
        at_ns = self.clock.unix_ns()
        self.alerts[fault] = Alert(
            id=fault,
            labels={"alertname": "A", "fault": fault},
            annotations=annotations,
            started_unix_ns=at_ns,
            ended_unix_ns=None,
            link="http://gw/",
        )

    def end(self, fault: str) -> None:
        self.alerts[fault] = msgspec.structs.replace(self.alerts[fault], ended_unix_ns=self.clock.unix_ns())

    def turn(self, pass_s: float = 1.0) -> list[str]:
        """Time goes on, one look; the faults that were told."""
        self.clock.pass_s(pass_s)
        self.pusher.turn()
        return sorted(alert["labels"]["fault"] for alert in self.receiver.take())


def test_it_is_told_at_once_then_again_before_it_expires_then_its_end(receiver: Receiver) -> None:
    bench = Bench(receiver)
    assert bench.turn() == []
    bench.open("f1")
    assert bench.turn() == ["f1"]
    assert [bench.turn(10) for _ in range(12)].count(["f1"]) == 2  # once a minute
    bench.open("f1", now="asking the cloud")
    assert bench.turn() == ["f1"]  # the story goes on
    bench.end("f1")
    assert bench.turn() == ["f1"]
    assert [bench.turn(60) for _ in range(20)].count(["f1"]) == 14  # as Prometheus does, for 15 minutes
    assert bench.turn(3600) == []


def test_away_for_an_hour_and_back_everything_open_and_every_end_is_told(receiver: Receiver) -> None:
    bench = Bench(receiver)
    bench.open("stays")
    bench.open("ends")
    assert bench.turn() == ["ends", "stays"]
    working_ns = bench.pusher.success_monotonic_ns
    receiver.status = 503
    bench.open("new")
    waits = []
    for _ in range(120):
        bench.clock.pass_s(30)
        waits.append(bench.pusher.turn())
    bench.end("ends")
    assert waits[:6] == [1.0, 2.0, 5.0, 10.0, 30.0, 30.0]
    assert bench.pusher.success_monotonic_ns == working_ns
    assert bench.pusher.failure_count == 120
    receiver.status = 200
    assert bench.turn() == ["ends", "new", "stays"]
    assert bench.pusher.success_monotonic_ns == bench.clock.monotonic_ns()


def test_the_next_process_tells_the_same_alerts_and_what_ended_meanwhile(receiver: Receiver) -> None:
    bench = Bench(receiver)
    bench.open("stays")
    bench.open("ends")
    bench.turn()
    bench.pusher.stop()
    bench.end("ends")
    bench.clock.pass_s(7200)
    bench.boot()
    assert bench.turn() == ["ends", "stays"]
    assert bench.turn(BEAT_S) == []


def test_while_all_is_well_an_empty_list_proves_that_it_listens(receiver: Receiver) -> None:
    bench = Bench(receiver)
    for _ in range(61):
        bench.clock.pass_s(1.0)
        bench.pusher.turn()
    assert receiver.posts == [[], [], []]
    assert bench.pusher.success_monotonic_ns is not None


def test_many_go_in_several_posts(receiver: Receiver) -> None:
    bench = Bench(receiver)
    for number in range(BATCH + 1):
        bench.open(f"f{number}")
    bench.clock.pass_s(1.0)
    bench.pusher.turn()
    assert [len(post) for post in receiver.posts] == [0, BATCH, 1]  # first it is asked what time it is


def test_a_story_with_a_bug_is_a_failure_and_the_thread_goes_on(receiver: Receiver) -> None:
    bench = Bench(receiver)

    def broken() -> tuple[Alert, ...]:
        raise ZeroDivisionError

    pusher = Pusher(receiver.url, bench.settings, broken, bench.clock)
    assert pusher.turn() == 1.0
    assert (pusher.failure_count, pusher.success_monotonic_ns) == (1, None)


@pytest.mark.parametrize("kind", ["token", "basic"])
def test_secrets_come_from_files_and_may_change(receiver: Receiver, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    if kind == "token":
        settings = AlertmanagerSettings(token_file=secret)
    else:
        settings = AlertmanagerSettings(username="gpuwatch", password_file=secret)
    bench = Bench(receiver, settings)
    bench.pusher.turn()
    assert bench.pusher.failure_count == 1  # no such file: said, and tried again
    for word in ("one", "two"):
        secret.write_text(word + "\n")
        bench.turn(BEAT_S)
    basic = ["Basic " + base64.b64encode(f"gpuwatch:{word}".encode()).decode() for word in ("one", "two")]
    assert receiver.proofs == (["Bearer one", "Bearer two"] if kind == "token" else basic)


def rfc3339_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize("step_s", [3600, -3600, -7 * 86_400])
def test_our_clock_steps_and_nothing_expires_or_is_refused(receiver: Receiver, step_s: int) -> None:
    """By our clock an open alert would be over an hour ago there, and one that ends now would end before it began."""
    bench = Bench(receiver)
    bench.open("stays")
    bench.open("ends")
    bench.turn()
    bench.clock.step_s(step_s)
    receiver.ahead_s = -step_s
    its_now_s = bench.clock.unix_ns() / 1e9 - step_s
    bench.end("ends")
    bench.clock.pass_s(60)
    bench.pusher.turn()
    told = {alert["labels"]["fault"]: alert for alert in receiver.take()}
    assert rfc3339_s(told["stays"]["endsAt"]) == pytest.approx(its_now_s + 60 + 900, abs=2)
    assert rfc3339_s(told["ends"]["endsAt"]) <= its_now_s + 62
    for alert in told.values():
        assert rfc3339_s(alert["startsAt"]) <= rfc3339_s(alert["endsAt"])


def test_a_clock_that_differs_from_ours_is_known_before_anything_is_told(receiver: Receiver) -> None:
    receiver.ahead_s = 86_400
    bench = Bench(receiver)
    bench.open("f1")
    bench.pusher.turn()
    (alert,) = receiver.take()
    assert rfc3339_s(alert["endsAt"]) == pytest.approx(bench.clock.unix_ns() / 1e9 + 86_400 + 900, abs=2)


def test_one_that_is_refused_holds_up_no_other_and_is_no_success(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(receiver)
    bench.turn()
    taken_ns = bench.pusher.success_monotonic_ns
    for number in range(9):
        bench.open(f"f{number}")
    receiver.refuses = {"f4"}
    bench.clock.pass_s(1.0)
    assert bench.pusher.turn() == 1.0
    told = {alert["labels"]["fault"] for alert in receiver.take()}
    assert told == {f"f{number}" for number in range(9)} - {"f4"}
    assert (bench.pusher.refused_count, bench.pusher.success_monotonic_ns) == (1, taken_ns)
    assert "fault='f4'" in caplog.text
    receiver.refuses = set()
    assert "f4" in bench.turn(60)
    assert bench.pusher.age_s() == 0


def test_an_end_is_repeated_while_anything_is_open_that_may_have_kept_it_quiet(receiver: Receiver) -> None:
    bench = Bench(receiver)
    bench.open("rack")
    bench.open("node")
    bench.turn()
    bench.end("node")
    assert "node" in bench.turn()
    assert all("node" in bench.turn(60) for _ in range(60))
    bench.end("rack")
    assert [("node" in bench.turn(60)) for _ in range(20)].count(True) >= 14
    assert bench.turn(60) == []


def test_a_number_that_counts_down_is_not_told_each_second(receiver: Receiver) -> None:
    bench = Bench(receiver)
    told = 0
    for left_s in range(600, 480, -1):
        at_ns = bench.alerts["f1"].started_unix_ns if bench.alerts else None
        bench.open("f1", now=f"job 7 may go on for {left_s} s more")
        if at_ns is not None:
            bench.alerts["f1"] = msgspec.structs.replace(bench.alerts["f1"], started_unix_ns=at_ns)
        told += len(bench.turn())
    assert told <= 3


def test_an_answer_that_comes_a_byte_at_a_time_is_given_up(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alertmanager, "DEADLINE_S", 0.5)
    slow = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        with contextlib.suppress(OSError):
            connection, _ = slow.accept()
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 90:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()
    begun_s = time.monotonic()
    with pytest.raises(alertmanager.AlertError):
        alertmanager.Alertmanager(f"http://127.0.0.1:{slow.getsockname()[1]}", AlertmanagerSettings()).post(b"[]")
    assert time.monotonic() - begun_s < 3
    slow.close()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhal", id="half"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another-protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\nDate: yesterday\r\n\r\n", id="no-date"),
        pytest.param(b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n", id="redirect"),
        pytest.param(b"HTTP/1.1 503 Busy\r\n\r\n" + b"\xff\xfe" * 99, id="503-no-text"),
    ],
)
def test_odd_answers_are_failures_or_harmless(clock: FakeClock, answer: bytes) -> None:
    odd = socket.create_server(("127.0.0.1", 0))

    def once() -> None:
        connection, _ = odd.accept()
        asked = b""
        while not asked.endswith(b"[]"):  # what is not read would reset the connection
            asked += connection.recv(65536)
        connection.sendall(answer)
        connection.close()

    threading.Thread(target=once, daemon=True).start()
    pusher = Pusher(f"http://127.0.0.1:{odd.getsockname()[1]}", AlertmanagerSettings(), lambda: (), clock)
    assert pusher.turn() == 1.0
    assert (pusher.age_s() is not None) == (b"200 OK" in answer)  # the status is said when they are taken
    odd.close()


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    made = Centre(tmp_path, mode="replace")
    made.settle()
    yield made
    assert made.store is not None
    made.store.close()


def seen_of(centre: Centre) -> list[int]:
    busy = {saga.action.slot for saga in centre.executor.open()}
    now_ns = centre.clock.monotonic_ns()
    found = coverage(centre.settings, centre.fleet, centre.stage.scene, centre.book.open, busy, now_ns)["p"]
    return [found.node_count, found.seen_node_count, found.gpu_count, found.seen_gpu_count]


def test_a_real_incident_from_its_opening_over_a_restart_to_its_end(centre: Centre) -> None:
    looks: list[int] = []

    def money() -> Money:
        looks.append(1)
        return Money(as_of_unix_ns=1)

    desk = desk_of(centre, money)
    assert desk.alerts() == ()
    centre.agents["m-gpu04"].speaks = False
    centre.cloud.set_state("m-gpu04", "failed")
    centre.scheduler.down.add("gpu04")
    while not centre.opened():
        centre.second()
    centre.seconds(2)
    (first,) = desk.alerts()
    assert (first.labels["alertname"], first.ended_unix_ns) == ("GpuwatchNodeDead", None)
    centre.boot()
    desk = desk_of(centre, money)
    centre.seconds(2)
    (again,) = desk.alerts()
    assert (again.labels, again.started_unix_ns) == (first.labels, first.started_unix_ns)
    centre.scheduler.down.discard("gpu04")
    for _ in range(400):
        centre.second()
        if not centre.book.open:
            break
    (over,) = desk.alerts()
    assert over.labels == first.labels
    assert over.ended_unix_ns is not None
    assert over.annotations["now"].startswith("over: ")
    looks.clear()
    for _ in range(100):
        centre.second()
        desk.alerts()
    assert looks == []  # nobody works out a price that nobody will read
    centre.clock.pass_s(90_000)


def test_what_is_ill_is_not_unseen_and_what_is_unheard_is(tmp_path: Path) -> None:
    centre = Centre(tmp_path, mode="observe")
    centre.settle()
    assert seen_of(centre) == [8, 8, 64, 64]
    centre.agents["m-gpu03"].speaks = False  # silent, and nobody else says a word: we are blind for it
    centre.seconds(40)
    assert seen_of(centre) == [8, 7, 64, 56]
    centre.cloud.set_state("m-gpu03", "failed")
    centre.scheduler.down.add("gpu03")
    centre.seconds(40)
    assert centre.book.open
    assert seen_of(centre) == [8, 8, 64, 64]  # it has an incident of its own now
    assert centre.store is not None
    centre.store.close()


def test_one_that_hangs_keeps_nobody_waiting(receiver: Receiver) -> None:
    hung = socket.create_server(("127.0.0.1", 0))  # takes the connection, and never answers
    clock, settings = SystemClock(), AlertmanagerSettings()
    urls = (f"http://127.0.0.1:{hung.getsockname()[1]}", receiver.url)
    pushers = [Pusher(url, settings, lambda: (), clock) for url in urls]
    for pusher in pushers:
        pusher.start()
    until_s = time.monotonic() + 10.0
    while pushers[1].success_monotonic_ns is None and time.monotonic() < until_s:
        time.sleep(0.01)
    begun_s = time.monotonic()
    for pusher in pushers:
        pusher.stop()
    assert time.monotonic() - begun_s < 1.0
    assert [pusher.success_monotonic_ns is None for pusher in pushers] == [True, False]
    hung.close()
